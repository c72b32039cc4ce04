"""Catalog datasets of directories: filled by a node and committed by a manifest, or written by an object."""

# No `from __future__ import annotations` here: kedro-viz reads the return type of `preview` as an object.
import errno
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from mm_ldlm.app.datasets.tables import PREVIEW_ROWS, preview_of
from mm_ldlm.core.files import new_directory
from mm_ldlm.data.store import NOT_NEEDED, Manifest, NotNeeded, ShardStore

if TYPE_CHECKING:
    from mm_ldlm.data import Dataset

READERS = {"latents": "mm_ldlm.data.latents.store:LatentStore"}
"""Kinds of stores with a separate reader; all others open as `ShardStore`."""


class WorkspaceDataset(AbstractDataset[NoReturn, Path]):
    """Dataset that loads as the `Path` of a directory, which is created if it is missing; it is never saved.

    A long-running node receives it as an input and fills it resumably. The workspace itself always exists.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path, self.metadata = Path(filepath), metadata

    def load(self) -> Path:
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path

    def save(self, data: NoReturn) -> None:
        raise DatasetError(f"{self._path} is a workspace, which nodes fill. Remove it from the outputs of the node.")

    def _exists(self) -> bool:
        return True

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}


class StoreDataset(AbstractDataset[Manifest | NotNeeded, ShardStore | None]):
    """Dataset of a directory of Arrow shards; it exists if its `manifest.json` does.

    A node fills the directory, which it receives as the parameter `{name}_workspace`, and returns the `Manifest`.
    Saving writes it (nothing changes if the node has already written it). Loading opens the reader; shards stay on
    disk, memory-mapped. With `optional`, a store that was never committed loads as None, and saving `store.NOT_NEEDED`
    does nothing.
    """

    def __init__(
        self, *, filepath: str, kind: str, optional: bool = False, metadata: dict[str, Any] | None = None
    ) -> None:
        self._path, self._kind, self._optional, self.metadata = Path(filepath), kind, optional, metadata

    def load(self) -> ShardStore | None:
        if self._optional and not self._exists():
            return None
        reader: type[ShardStore] = _named(READERS[self._kind]) if self._kind in READERS else ShardStore
        return reader.open(self._path, self._kind)

    def save(self, data: Manifest | NotNeeded) -> None:
        if data is NOT_NEEDED and self._optional:
            return
        if not isinstance(data, Manifest) or data.kind != self._kind:
            found = f"that of a {data.kind!r} store" if isinstance(data, Manifest) else type(data).__name__
            raise DatasetError(f"expected the manifest of a {self._kind!r} store, found {found}.")
        missing = [shard.name for shard in data.shards if not (self._path / shard.name).is_file()]
        if missing:
            raise DatasetError(
                f"the manifest names {len(data.shards)} shards, {len(missing)} of them are not in {self._path} "
                f"(first: {missing[0]}). The node must write to the workspace of this entry."
            )
        if not Manifest.exists(self._path) or Manifest.read(self._path) != data:
            data.write(self._path)

    def _exists(self) -> bool:
        return Manifest.exists(self._path)

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix(), "kind": self._kind}

    def preview(self, nrows: int = PREVIEW_ROWS) -> TablePreview:
        """Show the first rows as a table in kedro-viz."""
        store = self.load()
        if store is None:
            return TablePreview({"index": [], "columns": [], "data": []})
        return preview_of(store.table(range(min(nrows, len(store)))))


class FolderDataset(AbstractDataset[Any, Any]):
    """Dataset that saves by `save(directory)` of the object and loads by `load(directory)` of its class.

    The folder is written under a temporary name and renamed, so that it is complete if it exists. The catalog names the
    class (`holds: package.module:Class`); it is never read from the folder. The dataset exists if its `marker` file
    does. With `optional`, a missing folder loads as None, and saving `store.NOT_NEEDED` does nothing.
    """

    def __init__(
        self, *, filepath: str, holds: str, marker: str, optional: bool = False, metadata: dict[str, Any] | None = None
    ) -> None:
        self._path, self._holds, self._optional, self.metadata = Path(filepath), holds, optional, metadata
        self._marker = self._path / marker

    def load(self) -> Any:
        if self._exists():
            return _named(self._holds).load(self._path)
        if self._optional:
            return None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._marker))

    def save(self, data: Any) -> None:
        if data is NOT_NEEDED and self._optional:
            return
        if not isinstance(data, _named(self._holds)):
            raise DatasetError(f"expected a {self._holds} for this catalog entry, found {type(data).__name__}.")
        with new_directory(self._path) as directory:
            data.save(directory)

    def _exists(self) -> bool:
        return self._marker.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix(), "holds": self._holds}


class FeaturesDataset(AbstractDataset[NotNeeded, Path]):
    """Dataset that loads as the folder of all stores of features; nodes open those of their configuration.

    Models with other parameters share the folder, so the dataset never counts as existing: the node that makes the
    stores keeps those that are finished.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path, self.metadata = Path(filepath), metadata

    def load(self) -> Path:
        return self._path

    def save(self, data: NotNeeded) -> None:
        """Do nothing: the node has committed every store."""

    def _exists(self) -> bool:
        return False

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}


class ValidatedDataset(AbstractDataset[Mapping[str, Path], "Dataset"]):
    """Dataset of a folder with `dataset.json`; it loads as `mm_ldlm.data.Dataset`. Saving receives folders by name."""

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path, self.metadata = Path(filepath), metadata

    def load(self) -> "Dataset":
        from mm_ldlm.data import Dataset

        return Dataset.open(self._path)

    def save(self, data: Mapping[str, Path]) -> None:
        from mm_ldlm.data import commit

        commit(self._path, stores=data)

    def _exists(self) -> bool:
        return (self._path / "dataset.json").is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path.as_posix()}


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
