"""Catalog dataset of the stores of features: a folder, in which each store is committed by its own manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset

from mm_ldlm.data.store import NotNeeded


class FeaturesDataset(AbstractDataset[NotNeeded, Path]):
    """Dataset that loads as the folder of all stores; nodes open those of their configuration.

    Models with other parameters share the folder, so the dataset never counts as existing: the node that makes the
    stores keeps those that are finished.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self.metadata = metadata

    def load(self) -> Path:
        return self._path

    def save(self, data: NotNeeded) -> None:
        """Do nothing: the node has committed every store."""

    def _exists(self) -> bool:
        return False

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}
