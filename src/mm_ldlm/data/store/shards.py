"""The shard reader: directories of Arrow IPC shards, which `writer` writes.

A shard is one uncompressed IPC file with one record batch, so that each of its columns is one contiguous memory-mapped
array. Shards are opened on first use and their descriptors are closed at once (the mapping remains), so that a store
with thousands of shards needs no descriptors. Mapped pages count as resident memory although the kernel may drop them
at any time; a store releases them itself after `RESIDENT_BYTES`, so that random reads of a large store need little
memory.

A gather sorts the requested rows by shard once, takes the rows of each shard, and restores the requested order, without
a Python step per row.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import StoreError
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.store.manifest import REMEDY, Manifest

Rows = Any
"""A sequence of row numbers, an int64 array, or a slice."""
RESIDENT_BYTES = 64 * 2**20
"""Mapped bytes that a store may touch before it releases its pages."""
_FAULT_BYTES = 64 * 2**10  # Linux maps this much around a page fault


class Column:
    """A column of lists across all shards of a store; `ShardStore.gather` reads numbers and texts."""

    def __init__(self, store: "ShardStore", name: str, what: str, fits: Callable[[pa.DataType], bool]) -> None:
        """Find the column.

        Args:
            what: the values that it should have, in words.
            fits: test of the Arrow types that can be read.
        """
        self.store, self.name = store, name
        self.type = store.schema_of([name]).field(0).type
        if not fits(self.type):
            raise StoreError(
                f"{store.directory}: expected {what} in column {name!r}, found {self.type}. Open the store as its own "
                "kind, or write it again."
            )


class FixedColumn(Column):
    """A `fixed_size_list<float>[d]` column.

    Attributes:
        dtype: numpy type of its values.
    """

    def __init__(self, store: "ShardStore", name: str) -> None:
        super().__init__(store, name, "a fixed-size list", pa.types.is_fixed_size_list)
        self.dim = int(self.type.list_size)
        self.dtype = self._matrix(pa.array([], self.type)).dtype

    def take(self, rows: Rows) -> npt.NDArray[Any]:
        """Return (n, d) in the stored type, in the requested order; a copy."""
        return self._matrix(self.store.gather(self.name, rows)).copy()

    def shard(self, number: int) -> npt.NDArray[Any]:
        """Return all rows of one shard, (rows, d) in the stored dtype, without a copy."""
        return self._matrix(self.store.array(number, self.name, touched=None))

    def _matrix(self, array: pa.FixedSizeListArray) -> npt.NDArray[Any]:
        values = array.flatten().to_numpy(zero_copy_only=True)
        return np.reshape(values, (len(array), self.dim))


class ListColumn(Column):
    """A `list<int32>` column: ragged rows as one flat array and offsets, or as a padded matrix."""

    def take(self, rows: Rows) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return (values, offsets): row i is `values[offsets[i]:offsets[i + 1]]`; offsets has n + 1 entries."""
        array = self.store.gather(self.name, rows)
        offsets = array.offsets.to_numpy().astype(np.int64)
        return np.array(array.flatten()), offsets - offsets[0]

    def padded(self, rows: Rows, *, pad: int, length: int) -> npt.NDArray[np.int64]:
        """Return (n, `length`) int64, right-padded; no row is longer than `length`."""
        values, offsets = self.take(rows)
        lengths = np.diff(offsets)
        out = np.full((len(lengths), length), pad, np.int64)
        out[np.arange(length) < lengths[:, None]] = values
        return out


# -- the store ---------------------------------------------------------------------------------------------------------


class ShardStore:
    """A finished store, read by row number. Opening reads only the manifest and the sizes of the shards.

    The first read of a shard compares its checksum, its number of rows and its columns (`Shard.verify`).
    Safe in worker processes: a fork keeps the mappings, and a pickle contains only the path and the manifest.
    """

    def __init__(self, directory: str | Path, manifest: Manifest) -> None:
        self.directory = Path(directory)
        self.manifest = manifest
        self._starts = np.cumsum([0, *(shard.rows for shard in manifest.shards)], dtype=np.int64)
        self._batches: dict[int, pa.RecordBatch] = {}
        self._maps: dict[int, pa.Buffer] = {}
        self._valid: set[tuple[int, str]] = set()
        self._touched: dict[int, int] = {}

    @classmethod
    def open(cls, directory: str | Path, kind: str | None = None) -> Self:
        """Open the finished store in `directory`.

        Raises:
            StoreError: There is no manifest, the kind or format differs, or a shard is missing or of the wrong size.
        """
        store = cls(directory, Manifest.read(directory))
        if kind is not None and store.manifest.kind != kind:
            raise StoreError(
                f"{directory}: expected a store of kind {kind!r}, found {store.manifest.kind!r}. Correct the path."
            )
        for shard in store.manifest.shards:
            shard.check(store.directory)
        return store

    def __len__(self) -> int:
        return self.manifest.rows

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory, self.manifest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r}, kind={self.manifest.kind!r}, rows={len(self)})"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._batch(0).schema if self.manifest.shards else pa.schema([])

    # -- columns ------------------------------------------------------------------------------------------------------

    def fixed(self, name: str) -> FixedColumn:
        return FixedColumn(self, name)

    def lists(self, name: str) -> ListColumn:
        return ListColumn(self, name, "a list", pa.types.is_list)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last row."""
        return int(self._starts[shard]), int(self._starts[shard + 1])

    def rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return row numbers as an int64 array; StoreError when one is outside the store."""
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)), dtype=np.int64)
        found = np.asarray(rows, np.int64)
        if found.ndim != 1 or (len(found) and (found.min() < 0 or found.max() >= len(self))):
            raise StoreError(
                f"{self.directory}: expected a list of row numbers from 0 to {len(self) - 1}, found an array of shape "
                f"{found.shape} from {found.min(initial=0)} to {found.max(initial=0)}."
            )
        return found

    def array(self, shard: int, column: str, *, touched: int | None) -> pa.Array:
        """Return one column of one shard. `touched` rows are about to be read (None: all); mapped pages are counted."""
        found, size = self._batch(shard).column(column), self.manifest.shards[shard].bytes
        more = size if touched is None else touched * _FAULT_BYTES
        self._touched[shard] = min(self._touched.get(shard, 0) + more, size)
        if sum(list(self._touched.values())) > RESIDENT_BYTES:
            self.release(keep=shard)
        if (shard, column) not in self._valid:
            _validate(found, path=self.directory / self.manifest.shards[shard].name, column=column)
            self._valid.add((shard, column))
        return found

    def release(self, *, keep: int | None = None) -> None:
        """Release the mapped pages; the data remain readable and are mapped again on the next read."""
        for shard in self._touched.keys() - {keep}:
            self._touched.pop(shard, None)  # another thread may have released it
            if hasattr(mmap, "MADV_DONTNEED"):
                address, size = self._maps[shard].address, self._maps[shard].size
                ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)

    def _batch(self, number: int) -> pa.RecordBatch:
        """Map a shard into memory on first use, with checks that keep damaged bytes from ending the process."""
        if number in self._batches:
            return self._batches[number]
        shard = self.manifest.shards[number]
        path = self.directory / shard.name
        shard.verify(self.directory)
        door = InputFile(path, remedy=REMEDY)
        with door.parsing(
            "a readable shard", pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeError, ValueError
        ):
            with pa.memory_map(str(path)) as file:  # an `mmap.mmap` would keep its descriptor
                mapped = file.read_buffer()
            reader = pa.ipc.open_file(pa.BufferReader(mapped))
            batch = reader.get_batch(0)
            batch.validate()
            names = batch.schema.names
        if (count := reader.num_record_batches) != 1 or batch.num_rows != shard.rows:
            door.refuse(f"one batch of {shard.rows} rows", f"{count}, the first with {batch.num_rows}")
        columns = batch.schema if number == 0 else self.schema
        if not batch.schema.equals(columns) or len(set(names)) < len(names):
            wanted, found = (", ".join(f"{f.name}: {f.type}" for f in each) for each in (columns, batch.schema))
            door.refuse(f"the columns of the first shard, {wanted}", found)
        self._maps[number], self._batches[number] = mapped, batch
        return batch

    def table(self, rows: Rows) -> pa.Table:
        """Return all columns of the requested rows, in order; a copy."""
        rows = self.rows(rows)
        return pa.Table.from_arrays([self.gather(name, rows) for name in self.schema.names], schema=self.schema)

    def gather(self, column: str, rows: Rows) -> Any:
        """Return the values of a column in the requested rows, in order, as an Arrow array; a copy."""
        rows = self.rows(rows)
        shards: Any = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(shards, kind="stable")
        pieces = [pa.array([], self.schema_of([column]).field(0).type)]
        groups: list[Any] = np.split(order, np.flatnonzero(np.diff(shards[order])) + 1)
        for asked in groups if len(rows) else []:
            shard = int(shards[asked[0]])
            inside = pa.array(rows[asked] - self._starts[shard])
            pieces.append(self.array(shard, column, touched=len(asked)).take(inside))
        found = pieces[-1] if len(pieces) < 3 else pa.concat_arrays(pieces)
        return found if (np.diff(order) > 0).all() else found.take(pa.array(np.argsort(order)))

    def window(self, start: int, stop: int, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return consecutive rows as a table of slices, without copies; `stop` may exceed the number of rows."""
        schema, pieces = self.schema_of(columns), []
        begin = int(np.searchsorted(self._starts, start, side="right")) - 1
        end = int(np.searchsorted(self._starts, min(stop, len(self))))
        for shard in range(begin, end):
            first, last = self.bounds(shard)
            offset, length = max(start - first, 0), min(stop, last) - max(start, first)
            arrays = [self.array(shard, name, touched=None).slice(offset, length) for name in schema.names]
            pieces.append(pa.Table.from_arrays(arrays, schema=schema))
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def iter_tables(self, batch_rows: int = 65_536, *, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield tables of at most `batch_rows` consecutive rows of one shard, without copies."""
        for shard in range(len(self.manifest.shards)):
            first, last = self.bounds(shard)
            for start in range(first, last, batch_rows):
                yield self.window(start, min(start + batch_rows, last), columns=columns)

    def schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of these columns; None means all."""
        schema = self.schema
        if missing := [name for name in columns or () if name not in schema.names]:
            raise StoreError(f"{self.directory}: no column {missing[0]!r}; the store has {', '.join(schema.names)}.")
        return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def _validate(array: pa.Array, *, path: Path, column: str) -> None:
    """Check that the offsets of a column stay inside its buffers; reading a damaged one could end the process.

    Only texts may be null.

    Raises:
        StoreError: The column is damaged.
    """
    door = InputFile(path, remedy=REMEDY)
    with door.parsing(f"an intact column {column!r}", pa.ArrowException, UnicodeError, AttributeError):
        array.validate(full=True)
        parts = [array]
        while parts[-1].type.num_fields == 1:
            parts.append(parts[-1].values)
        nulls = sum(part.null_count for part in parts if not pa.types.is_string(part.type))
    if nulls:
        door.refuse(f"no nulls in column {column!r}", str(nulls))
