"""Catalog dataset of a workspace: a directory that the catalog owns and a node fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from kedro.io import AbstractDataset, DatasetError


class WorkspaceDataset(AbstractDataset[NoReturn, Path]):
    """Dataset that loads as the `Path` of a directory, which is created if it is missing; it is never saved.

    A long-running node receives it as an input, fills it resumably, and returns a manifest, which the catalog entry of
    the store (a `StoreDataset` on the same path) commits. The workspace itself always exists.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(filepath)
        self.metadata = metadata

    def load(self) -> Path:
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path

    def save(self, data: NoReturn) -> None:
        raise DatasetError(f"{self._path} is a workspace, which nodes fill. Remove it from the outputs of the node.")

    def _exists(self) -> bool:
        return True

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}
