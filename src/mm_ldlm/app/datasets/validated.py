"""Catalog dataset of the validated dataset: a manifest that names the stores of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.io import AbstractDataset, DatasetError

if TYPE_CHECKING:
    from mm_ldlm.data import Dataset

NAME = "dataset.json"


class ValidatedDataset(AbstractDataset[Mapping[str, Any], "Dataset"]):
    """Dataset of a folder with `dataset.json`; it loads as `mm_ldlm.data.Dataset`.

    Saving receives the stores by name, as a node has them. A `ShardStore` provides its own directory; the folder of any
    other object (the tokenizer, the normaliser, or None for a field that a node only names) is in the catalog entry
    under `stores: {name: {filepath: ...}}`. Kedro makes relative paths absolute only under the key `filepath`.
    """

    def __init__(
        self, *, filepath: str, stores: dict[str, dict[str, str]] | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        self._path = Path(filepath)
        self._folders = {name: Path(about["filepath"]) for name, about in (stores or {}).items()}
        self.metadata = metadata

    def load(self) -> Dataset:
        from mm_ldlm.data import Dataset

        return Dataset.open(self._path)

    def save(self, data: Mapping[str, Any]) -> None:
        from mm_ldlm.data import commit

        if not isinstance(data, Mapping):
            raise DatasetError(f"expected the stores of a dataset by name, found {type(data).__name__}.")
        commit(self._path, stores={name: self._folder(name, store) for name, store in data.items()})

    def _folder(self, name: str, store: Any) -> Path:
        directory = getattr(store, "directory", None) or self._folders.get(name)
        if directory is None:
            raise DatasetError(
                f"expected the folder of the store '{name}' in the catalog entry of the dataset, found only "
                f"{', '.join(self._folders) or 'none'}. Add it there under stores."
            )
        return Path(directory)

    def _exists(self) -> bool:
        return (self._path / NAME).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}
