"""Catalog dataset of the validated dataset: a manifest that names the stores of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.io import AbstractDataset

if TYPE_CHECKING:
    from mm_ldlm.data import Dataset

NAME = "dataset.json"


class ValidatedDataset(AbstractDataset[Mapping[str, Path], "Dataset"]):
    """Dataset of a folder with `dataset.json`; it loads as `mm_ldlm.data.Dataset`. Saving receives folders by name."""

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self.metadata = metadata

    def load(self) -> Dataset:
        from mm_ldlm.data import Dataset

        return Dataset.open(self._path)

    def save(self, data: Mapping[str, Path]) -> None:
        from mm_ldlm.data import commit

        commit(self._path, stores=data)

    def _exists(self) -> bool:
        return (self._path / NAME).is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}
