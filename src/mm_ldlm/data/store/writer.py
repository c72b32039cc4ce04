"""The shard writer: directories of Arrow IPC shards, which `shards` reads."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.files import write_bytes
from mm_ldlm.data.store.manifest import NAME, Manifest, Shard

DEFAULT_SHARD_ROWS = 65_536


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


class StoreWriter:
    """Writes a store from tables that arrive in row order.

    `append` divides them into shards of `shard_rows`; `finish` commits with the manifest. Creating a writer removes an
    existing manifest, so that a partly written store is never mistaken for the old one.
    """

    def __init__(
        self, directory: str | Path, *, kind: str, schema: pa.Schema, shard_rows: int = DEFAULT_SHARD_ROWS
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.kind, self.schema, self.shard_rows = kind, schema, shard_rows
        (self.directory / NAME).unlink(missing_ok=True)
        self._shards: list[Shard] = []
        self._waiting: list[pa.Table] = []
        self._rows_waiting = 0

    def append(self, table: pa.Table | dict[str, Any]) -> None:
        """Add rows as a table of the writer's schema or as a dict of columns."""
        if not isinstance(table, pa.Table):
            table = pa.table(table, schema=self.schema)
        self._waiting.append(table.select(self.schema.names).cast(self.schema))
        self._rows_waiting += table.num_rows
        while self._rows_waiting >= self.shard_rows:
            self._write(self.shard_rows)

    def finish(self, *, fingerprints: dict[str, str] | None = None, meta: dict[str, Any] | None = None) -> Manifest:
        """Write the remaining rows, remove shards of an earlier store, and commit."""
        if self._rows_waiting or not self._shards:  # an empty store has a shard as well, with its columns
            self._write(self._rows_waiting)
        kept = {shard.name for shard in self._shards}
        for file in self.directory.glob("part-*.arrow"):
            if file.name not in kept:
                file.unlink()
        manifest = Manifest(
            kind=self.kind,
            rows=sum(shard.rows for shard in self._shards),
            shards=tuple(self._shards),
            fingerprints=dict(fingerprints or {}),
            meta={"columns": self.schema.names, **(meta or {})},
        )
        manifest.write(self.directory)
        return manifest

    def _write(self, rows: int) -> None:
        table = pa.concat_tables([self.schema.empty_table(), *self._waiting])
        self._shards.append(write_shard(self.directory, shard_name(len(self._shards)), table.slice(0, rows)))
        rest = table.slice(rows)
        self._waiting = [rest] if rest.num_rows else []
        self._rows_waiting = rest.num_rows
