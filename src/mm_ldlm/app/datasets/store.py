"""Catalog dataset of a shard store, which is committed by its manifest and loaded as a reader."""

# No `from __future__ import annotations` here: kedro-viz reads the return type of `preview` as an object.
import importlib
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from mm_ldlm.app.datasets.preview import PREVIEW_ROWS, preview_of
from mm_ldlm.data.store import NOT_NEEDED, Manifest, NotNeeded, ShardStore

READERS = {"latents": "mm_ldlm.data.latents.store:LatentStore"}
"""Kinds with a reader of their own; all others open as `ShardStore`."""


class StoreDataset(AbstractDataset[Manifest | NotNeeded, ShardStore | None]):
    """Dataset of a directory of Arrow shards; it exists if its `manifest.json` does.

    Saving writes the `Manifest` that a node returned (nothing changes if the node has already written it). Loading
    opens the reader; shards stay on disk, memory-mapped. With `optional`, a store that was never committed loads as
    None, and saving `store.NOT_NEEDED` does nothing.
    """

    def __init__(
        self, *, filepath: str, kind: str, optional: bool = False, metadata: dict[str, Any] | None = None
    ) -> None:
        self._path = Path(filepath)
        self._kind = kind
        self._optional = optional
        self.metadata = metadata

    def load(self) -> ShardStore | None:
        if self._optional and not self._exists():
            return None
        return _reader(self._kind).open(self._path, self._kind)

    def save(self, data: Manifest | NotNeeded) -> None:
        if data is NOT_NEEDED and self._optional:
            return
        if not isinstance(data, Manifest):
            raise DatasetError(f"expected the Manifest of a {self._kind!r} store, found {type(data).__name__}.")
        if data.kind != self._kind:
            raise DatasetError(f"expected the manifest of a {self._kind!r} store, found that of a {data.kind!r} store.")
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


def _reader(kind: str) -> type[ShardStore]:
    if kind not in READERS:
        return ShardStore
    module, _, name = READERS[kind].partition(":")
    reader: type[ShardStore] = getattr(importlib.import_module(module), name)
    return reader
