"""Progress of stores that are written together, shard by shard: kept after each shard, and read by the next run.

A killed run leaves the shards of its last commit. The next run with the same inputs continues there and ends with the
same bytes; one with other inputs starts again.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_ldlm.core.files import recorded, remove_temporaries, write_json
from mm_ldlm.data.store import Manifest, Shard, ShardStore, write_shard
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.manifest import NAME as MANIFEST
from mm_ldlm.data.store.writer import shard_name

NAME = "progress.json"


class Progress:
    """The committed shards of each store, and a state of plain JSON that belongs to them.

    Attributes:
        state: the state of the last commit, or `fresh`.
        shards: store → its shards on disk.
    """

    def __init__(self, folders: Mapping[str, Path], *, made_by: Mapping[str, str], fresh: dict[str, Any]) -> None:
        """Read the progress in the first folder if its shards are intact and its inputs the same, or start again.

        Everything else that earlier runs left in the folders is removed. The manifest of a finished store of the same
        inputs is kept.
        """
        self.folders, self.made_by = dict(folders), dict(made_by)
        self._path = next(iter(self.folders.values())) / NAME
        self.state, self.shards = fresh, {name: list[Shard]() for name in folders}
        found = recorded(self._path) or {}
        try:
            shards = {name: [Shard(**shard) for shard in found["shards"][name]] for name in folders}
            if found["fingerprint"] == fingerprint(self.made_by) and all(
                shard.is_intact(folders[name]) for name in folders for shard in shards[name]
            ):
                self.state, self.shards = found["state"], shards
        except (LookupError, TypeError):  # no progress, or that of another version
            pass
        for name, folder in self.folders.items():
            self._clear(folder, keep={shard.name for shard in self.shards[name]})

    def _clear(self, folder: Path, *, keep: set[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder)
        stale = [path for path in folder.glob("part-*.arrow") if path.name not in keep]
        if Manifest.exists(folder) and (stale or not keep or Manifest.read(folder).fingerprints != self.made_by):
            (folder / MANIFEST).unlink()
        for path in stale:
            path.unlink()

    def commit(self, tables: Mapping[str, pa.Table], state: dict[str, Any]) -> None:
        """Write a shard of each store that has rows, then the state that includes them."""
        self.state = state
        for name, table in tables.items():
            if table.num_rows:
                shards = self.shards[name]
                shards.append(write_shard(self.folders[name], shard_name(len(shards)), table))
        plain = {name: [dataclasses.asdict(shard) for shard in shards] for name, shards in self.shards.items()}
        write_json(self._path, {"fingerprint": fingerprint(self.made_by), "shards": plain, "state": state})

    def store(self, name: str) -> ShardStore:
        """Open the committed shards of a store."""
        shards = tuple(self.shards[name])
        return ShardStore(self.folders[name], Manifest(kind=name, rows=sum(s.rows for s in shards), shards=shards))

    def manifest(self, name: str, *, kind: str, schema: pa.Schema, **meta: Any) -> Manifest:
        """Return the manifest of a finished store, which the caller writes."""
        shards = tuple(self.shards[name])
        if not shards:  # an empty store has a shard as well, with its columns
            shards = (write_shard(self.folders[name], shard_name(0), schema.empty_table()),)
        return Manifest(
            kind=kind, rows=sum(shard.rows for shard in shards), shards=shards, fingerprints=self.made_by,
            meta={"columns": schema.names, **meta},
        )  # fmt: skip
