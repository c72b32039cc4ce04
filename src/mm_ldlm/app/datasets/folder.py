"""Catalog dataset of an object that saves itself to a folder, such as a tokenizer or a normaliser."""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError

from mm_ldlm.core.files import new_directory
from mm_ldlm.data.store import NOT_NEEDED


class FolderDataset(AbstractDataset[Any, Any]):
    """Dataset that saves by `save(directory)` of the object and loads by `load(directory)` of its class.

    The folder is written under a temporary name and renamed, so that it is complete if it exists. The catalog names the
    class (`holds: package.module:Class`); it is never read from the folder. The dataset exists if its `marker` file
    does. With `optional`, a missing folder loads as None, and saving `store.NOT_NEEDED` does nothing.
    """

    def __init__(
        self, *, filepath: str, holds: str, marker: str, optional: bool = False, metadata: dict[str, Any] | None = None
    ) -> None:
        self._path = Path(filepath)
        self._holds = holds
        self._marker = marker
        self._optional = optional
        self.metadata = metadata

    def load(self) -> Any:
        if not self._exists():
            if self._optional:
                return None
            marker = str(self._path / self._marker)
            raise DatasetError(
                f"{self._path}: no {self._marker} found. Run the pipeline that writes it first."
            ) from FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), marker)
        return self._class().load(self._path)

    def save(self, data: Any) -> None:
        if data is NOT_NEEDED and self._optional:
            return
        if not isinstance(data, self._class()):
            raise DatasetError(f"expected a {self._holds} for this catalog entry, found {type(data).__name__}.")
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
