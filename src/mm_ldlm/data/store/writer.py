"""Writers of stores: directories of Arrow IPC shards with the manifest last, which `shards` reads.

`write_store` writes a store at once. `Parts` and `Progress` continue what a killed run left, with the same bytes:
`Parts` a store of shards in any order and by several processes, `Progress` several stores in row order, with a state.
"""

import dataclasses
import hashlib
import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import FingerprintError
from mm_ldlm.core.files import InputFile, recorded, remove_temporaries, write_bytes, write_json
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.manifest import NAME, Manifest, Shard
from mm_ldlm.data.store.shards import ShardStore

logger = logging.getLogger(__name__)
DEFAULT_SHARD_ROWS = 65_536
PROGRESS = "progress.json"


def shard_name(number: int) -> str:
    """Return the file name of a shard; names sort in row order up to a million shards."""
    return f"part-{number:06d}.arrow"


def fixed_lists(values_nd: npt.NDArray[Any]) -> pa.FixedSizeListArray:
    """Convert a matrix (n, d) to a column of lists of d numbers, in its type."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values_nd).reshape(-1)), values_nd.shape[1])


def write_shard(directory: str | Path, name: str, table: pa.Table) -> Shard:
    """Write a table as one shard, atomically; the manifest that names the shard is written later.

    Equal tables give equal bytes.
    """
    # A chunk of a slice at offset 0 would keep the bytes of later rows; combined chunks hold only their own rows.
    columns = [column.combine_chunks() for column in table.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=table.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    write_bytes(Path(directory) / name, memoryview(data))
    return Shard(name=name, rows=table.num_rows, bytes=data.size, sha256=hashlib.sha256(data).hexdigest())


def write_store(
    directory: str | Path, tables: Iterable[Any], *, kind: str, schema: pa.Schema, shard_rows: int = DEFAULT_SHARD_ROWS,
    fingerprints: Mapping[str, str] = {}, meta: Mapping[str, Any] = {},
) -> Manifest:  # fmt: skip
    """Write a store from tables, or mappings of columns, in row order, and commit it with the manifest.

    Shards of `shard_rows` are written as soon as they are full. An existing manifest is removed first, so that a partly
    written store is never mistaken for the old one.
    """
    directory, shards, waiting = Path(directory), list[Shard](), schema.empty_table()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / NAME).unlink(missing_ok=True)
    for table in tables:
        added = pa.table({name: table[name] for name in schema.names}, schema=schema)
        waiting = pa.concat_tables([waiting, added])
        while len(waiting) >= shard_rows:
            shards.append(write_shard(directory, shard_name(len(shards)), waiting.slice(0, shard_rows)))
            waiting = waiting.slice(shard_rows)
    if len(waiting) or not shards:  # an empty store has a shard as well, with its columns
        shards.append(write_shard(directory, shard_name(len(shards)), waiting))
    for path in _others(directory, shards):
        path.unlink()
    manifest = Manifest(
        kind=kind, rows=sum(shard.rows for shard in shards), shards=tuple(shards), fingerprints=dict(fingerprints),
        meta={"columns": schema.names, **meta},
    )  # fmt: skip
    manifest.write(directory)
    return manifest


def _others(folder: Path, shards: Iterable[Shard]) -> list[Path]:
    """List the shards in a folder that an earlier store left."""
    names = {shard.name for shard in shards}
    return [path for path in folder.glob("part-*.arrow") if path.name not in names]


@dataclasses.dataclass(frozen=True)
class Parts:
    """A store in `workspace` that is made from inputs with the fingerprints `made_by`, in numbered shards.

    The shards are written in any order and by several processes, and the store can be continued:

    part-000000.arrow …        finished shards
    .extract/plan.json         fingerprints of the inputs; a store of other inputs is refused
    .extract/part-000000.json  record of a finished shard, written after the shard
    manifest.json              written last; then `.extract` is removed
    """

    workspace: Path
    made_by: Mapping[str, str]

    @property
    def folder(self) -> Path:
        """Folder of the records, while the store is being written."""
        return self.workspace / ".extract"

    def record(self, number: int) -> Path:
        """Return the path of the record of a shard; it exists if the shard is finished."""
        return self.folder / f"part-{number:06d}.json"

    @property
    def earlier(self) -> Mapping[str, str]:
        """Fingerprints of the inputs of the store that is in the workspace, finished or not; empty if there is none."""
        if Manifest.exists(self.workspace):
            return Manifest.read(self.workspace).fingerprints
        return recorded(self.folder / "plan.json") or {}

    def begin(self) -> set[int]:
        """Return the numbers of the shards that are finished and intact, and remove all others.

        A finished store of which a shard is missing or damaged loses its manifest, and its other shards are kept.

        Raises:
            FingerprintError: the workspace contains a store of other inputs; nothing was changed.
        """
        self.workspace.mkdir(parents=True, exist_ok=True)
        remove_temporaries(self.workspace)
        manifest = Manifest.read(self.workspace) if Manifest.exists(self.workspace) else None
        found = self.earlier
        if found and found != self.made_by:
            other = sorted(name for name in {*found, *self.made_by} if found.get(name) != self.made_by.get(name))
            raise FingerprintError(
                f"{self.workspace}: expected a store made with {other[0]} {self.made_by.get(other[0])}, found one that "
                f"differs in {', '.join(other)} ({found.get(other[0])}). Nothing was changed. Restore the earlier "
                "settings, or remove the folder to compute everything again."
            )
        records = (recorded(path, Shard) for path in sorted(self.folder.glob("part-*.json")))
        shards = [shard for shard in (records if manifest is None else manifest.shards) if shard is not None]
        kept = [shard for shard in shards if shard.is_intact(self.workspace)]
        if lost := [shard.name for shard in shards if shard not in kept]:
            logger.warning("%s: %s are missing or damaged, and are computed again", self.workspace, ", ".join(lost))
        numbers = {int(Path(shard.name).stem.removeprefix("part-")): shard for shard in kept}
        if manifest is not None and not lost:
            shutil.rmtree(self.folder, ignore_errors=True)  # of a writer that was killed after it committed
            return set(numbers)
        # From here on the shards are recorded one by one, so that a kill during the repair loses nothing.
        write_json(self.folder / "plan.json", dict(self.made_by))
        for number, shard in numbers.items():
            write_json(self.record(number), dataclasses.asdict(shard))
        (self.workspace / NAME).unlink(missing_ok=True)
        stems = {Path(shard.name).stem for shard in kept}
        for path in [*self.workspace.glob("part-*.arrow"), *self.folder.glob("part-*.json")]:
            if path.stem not in stems:
                path.unlink()
        return set(numbers)

    def write(self, number: int, table: pa.Table) -> None:
        """Write a shard, then its record."""
        shard = write_shard(self.workspace, shard_name(number), table)
        write_json(self.record(number), dataclasses.asdict(shard))

    def shards(self, count: int) -> tuple[Shard, ...]:
        """Return the records of `count` finished shards; an empty store has one as well, without rows.

        Raises:
            StoreError: one was not written.
        """
        remedy = "Run the embedding pipeline again, which writes only what is missing."
        return tuple(InputFile(self.record(number), remedy=remedy).json(Shard) for number in range(count))

    def commit(self, shards: tuple[Shard, ...], *, kind: str, schema: pa.Schema, meta: dict[str, Any]) -> Manifest:
        """Write the manifest, and remove the records."""
        manifest = Manifest(
            kind=kind, rows=sum(shard.rows for shard in shards), shards=shards, fingerprints=dict(self.made_by),
            meta={"columns": schema.names, **meta},
        )  # fmt: skip
        manifest.write(self.workspace)
        shutil.rmtree(self.folder, ignore_errors=True)
        return manifest


class Progress:
    """The committed shards of stores that are written together, and a state of plain JSON that belongs to them.

    A killed run leaves the shards of its last commit. The next run with the same inputs continues there and ends with
    the same bytes; one with other inputs starts again.

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
        self._path = next(iter(self.folders.values())) / PROGRESS
        self.state, self.shards = fresh, {name: list[Shard]() for name in folders}
        found = recorded(self._path) or {}
        try:
            shards = {name: [Shard(**shard) for shard in found["shards"][name]] for name in folders}
            if found["fingerprint"] == fingerprint(self.made_by) and all(
                shard.is_intact(folders[name]) for name in folders for shard in shards[name]
            ):
                self.state, self.shards = found["state"], shards
        except (LookupError, TypeError):  # no progress, or another version's
            pass
        for name, folder in self.folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            remove_temporaries(folder)
            if Manifest.exists(folder) and Manifest.read(folder).shards != tuple(self.shards[name]):
                (folder / NAME).unlink()
            for path in _others(folder, self.shards[name]):
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
