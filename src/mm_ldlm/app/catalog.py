"""The catalog, and the entries that every run has: imported by all commands, so without pandas and its datasets."""

from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DataCatalog

from mm_ldlm.core.files import refuse_other


class Catalog(DataCatalog):
    """Kedro's catalog, of which an entry with a pipe, a device or a folder in the place of its file is never opened: it
    would wait for ever, in a run as in a notebook.
    """

    def get(self, *arguments: Any, **options: Any) -> AbstractDataset[Any, Any] | None:
        """Return an entry, with which Kedro loads, saves and previews.

        Raises:
            StoreError: something other than a file is in the place of its file.
        """
        found = super().get(*arguments, **options)
        if (path := getattr(found, "_filepath", None)) is not None:
            refuse_other(str(path))
        return found


class AtPath(AbstractDataset[Any, Any]):
    """Base of the datasets of a folder. With `optional`, it may be missing: it then loads as None, and saving
    `store.NOT_NEEDED` does nothing.
    """

    def __init__(self, *, filepath: str, optional: bool = False, metadata: dict[str, Any] | None = None) -> None:
        self._path, self._optional, self.metadata = Path(filepath), optional, metadata

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}


class WorkspaceDataset(AtPath):
    """Dataset that loads as the `Path` of a directory, which is created if it is missing.

    A long-running node receives it as an input and fills it resumably. As an output, such as the folder of all stores
    of features, it never counts as existing, and there is nothing to save: the node keeps what is finished.
    """

    def load(self) -> Path:
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path

    def save(self, data: Any) -> None:
        """Do nothing: the node has written everything."""

    def _exists(self) -> bool:
        return False
