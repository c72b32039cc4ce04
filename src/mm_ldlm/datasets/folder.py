"""An object that keeps itself in a folder: tokenizer, normaliser."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError

from mm_ldlm.store.atomic import new_directory


class FolderDataset(AbstractDataset[Any, Any]):
    """Saves by the object's own `save(directory)`, loads by its class's `load(directory)`.

    The folder is written beside its final place and renamed, so it is never half there. The class is named in the
    catalog (`holds: package.module:Class`): what a folder holds is never read from the folder itself. It exists once
    its `marker` file does.
    """

    def __init__(self, *, filepath: str, holds: str, marker: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self._holds = holds
        self._marker = marker
        self.metadata = metadata

    def load(self) -> Any:
        if not self._exists():
            raise DatasetError(f"{self._path} holds no {self._marker}: run the pipeline that writes it first.")
        return self._class().load(self._path)

    def save(self, data: Any) -> None:
        if not isinstance(data, self._class()):
            raise DatasetError(f"this catalog entry holds {self._holds}, found {type(data).__name__}.")
        with new_directory(self._path) as directory:
            data.save(directory)

    def _class(self) -> Any:
        module, _, name = self._holds.partition(":")
        if not module.startswith("mm_ldlm.") or not name:
            raise DatasetError(
                f"'holds: {self._holds}' must name a class of this project as mm_ldlm.room.module:Class."
            )
        return getattr(importlib.import_module(module), name)

    def _exists(self) -> bool:
        return (self._path / self._marker).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix(), "holds": self._holds}
