"""The shard reader: directories of Arrow IPC shards, which `writer` writes.

A shard is one uncompressed IPC file with one record batch, so that each of its columns is one contiguous memory-mapped
array. Shards are opened on first use and their descriptors are closed at once (the mapping remains), so that a store
with thousands of shards needs no descriptors. Mapped pages count as resident memory although the kernel may drop them
at any time; a store releases them itself after `RESIDENT_BYTES`, so that random reads of a large store need little
memory.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import files
from mm_ldlm.core.errors import MissingShardError, ShardSchemaError, StoreError, TruncatedShardError, UnsafePathError
from mm_ldlm.data.store import shard_file
from mm_ldlm.data.store.columns import FixedColumn, IntColumn, ListColumn, Rows, StringColumn
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.data.store.manifest import Manifest
from mm_ldlm.data.store.shard_file import REMEDY
from mm_ldlm.data.store.verified import verify_file

RESIDENT_BYTES = 64 * 2**20
"""Mapped bytes that a store may touch before it releases its pages."""
_FAULT_BYTES = 64 * 2**10  # Linux maps this much around a page fault


class ShardStore:
    """A finished store, read by row number. Opening reads only the manifest and the sizes of the shards.

    The first read of a shard compares its checksum and its number of rows with the manifest (`verified`).
    Safe in worker processes: a fork keeps the mappings, and a pickle contains only the path and the manifest.
    """

    def __init__(self, directory: str | Path, manifest: Manifest) -> None:
        self.directory = Path(directory)
        self.manifest = manifest
        self._starts = np.cumsum([0, *(shard.rows for shard in manifest.shards)], dtype=np.int64)
        self._names = [shard.name for shard in manifest.shards]
        self._sizes = [shard.bytes for shard in manifest.shards]
        self._batches: dict[int, pa.RecordBatch] = {}
        self._opened: dict[int, dict[str, pa.Array]] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._touched: dict[int, int] = {}
        self._resident = 0
        self._schema: pa.Schema | None = None
        self._columns: dict[tuple[type, str], Any] = {}

    @classmethod
    def open(cls, directory: str | Path, kind: str | None = None) -> Self:
        """Open the finished store in `directory`.

        Raises:
            StoreError: There is no manifest, the kind or format differs, or a shard is missing or of the wrong size.
        """
        directory = Path(directory)
        manifest = Manifest.read(directory)
        if kind is not None and manifest.kind != kind:
            raise StoreError(
                f"{directory}: expected a store of kind {kind!r}, found {manifest.kind!r}. Correct the path."
            )
        store = cls(directory, manifest)
        store.check_files()
        return store

    def check_files(self) -> None:
        """Check that every shard exists in its full size, and that a manifest of no shards stands for an empty folder.

        Raises:
            MissingShardError, TruncatedShardError: for the first wrong shard; the message counts the others.
        """
        wrong: list[StoreError] = []
        if not self._names and (unnamed := sorted(self.directory.glob("part-*.arrow"))):
            raise StoreError(
                f"{self.directory}: expected the shards of this folder in its manifest, found a manifest of no shards "
                f"and {len(unnamed)} shards, the first of them {unnamed[0].name}. {REMEDY}"
            )
        for shard in self.manifest.shards:
            path = self.directory / shard.name
            try:
                about = path.lstat()
                if stat.S_ISLNK(about.st_mode):
                    about = files.inside(self.directory, shard.name).stat()
            except FileNotFoundError:
                wrong.append(MissingShardError(f"{path}: this shard is missing ({shard.rows} rows)"))
                continue
            except (OSError, UnsafePathError) as error:
                raise StoreError(f"{path}: this shard cannot be read ({error}). {REMEDY}") from None
            if not stat.S_ISREG(about.st_mode):
                raise StoreError(f"{path}: expected a shard, but it {files.problem(path)}. Remove it. {REMEDY}")
            size = about.st_size
            if size != shard.bytes:
                what = "truncated shard, " if size < shard.bytes else ""
                text = f"{path}: {what}expected {shard.bytes} bytes, found {size}"
                wrong.append(TruncatedShardError(text) if size < shard.bytes else StoreError(text))
        if wrong:
            more = f" ({len(wrong) - 1} more shards are wrong)" if len(wrong) > 1 else ""
            raise type(wrong[0])(f"{wrong[0]}{more}. {REMEDY}")

    @classmethod
    def finished(cls, directory: str | Path, fingerprints: Mapping[str, str]) -> Manifest | None:
        """Return the manifest of a finished store that was made from these inputs; None if there is none.

        None as well if a shard is missing or its checksum differs.
        """
        if not Manifest.exists(directory):
            return None
        manifest = Manifest.read(directory)
        if manifest.fingerprints != fingerprints:
            return None
        try:
            return None if cls.open(directory).damaged_shards() else manifest
        except StoreError:
            return None

    def verify(self) -> None:
        """Read every byte and compare checksums.

        Raises:
            StoreError: Some shards are damaged; the message names each.
        """
        if damaged := self.damaged_shards():
            raise StoreError(
                f"{self.directory}: checksum differs in {', '.join(damaged)} ({len(damaged)} of {len(self._names)} "
                f"shards): the bytes on disk changed after they were written. Remove these shards. {REMEDY}"
            )

    def damaged_shards(self) -> list[str]:
        """Return the names of the shards whose sha256 differs from the manifest."""
        return [s.name for s in self.manifest.shards if file_sha256(self.directory / s.name) != s.sha256]

    def __len__(self) -> int:
        return self.manifest.rows

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["directory"], state["manifest"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"ShardStore({str(self.directory)!r}, kind={self.manifest.kind!r}, rows={len(self)})"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, from the first shard."""
        if self._schema is None:
            if self._names:
                self._verify(0)
                self._schema = shard_file.read(self.directory / self._names[0]).schema
            else:
                self._schema = self._schema_of_empty()
        return self._schema

    def _schema_of_empty(self) -> pa.Schema:
        path = self.directory / "schema.arrow"
        if not path.is_file():
            return pa.schema([])
        try:
            found = pa.ipc.read_schema(pa.py_buffer(path.read_bytes()))
            found.names  # noqa: B018  # raises where a name is not UTF-8
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise StoreError(f"{path}: not a readable schema ({error}). {REMEDY}") from None
        return found

    # -- columns ------------------------------------------------------------------------------------------------------

    def fixed(self, name: str) -> FixedColumn:
        return self._column(FixedColumn, name)

    def lists(self, name: str) -> ListColumn:
        return self._column(ListColumn, name)

    def strings(self, name: str) -> StringColumn:
        return self._column(StringColumn, name)

    def ints(self, name: str) -> IntColumn:
        return self._column(IntColumn, name)

    def _column(self, cls: type, name: str) -> Any:
        self._refuse_unknown(name)
        key = (cls, name)
        if key not in self._columns:
            self._columns[key] = cls(self, name)
        return self._columns[key]

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return the first row of a shard and the row after its last row."""
        return int(self._starts[shard]), int(self._starts[shard + 1])

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return row numbers as an int64 array; StoreError when one is outside the store."""
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)), dtype=np.int64)
        found = np.asarray(rows, np.int64)
        if found.ndim != 1:
            raise StoreError(f"expected a list of row numbers, found an array of shape {found.shape}.")
        if len(found) and (found.min() < 0 or found.max() >= len(self)):
            bad = found[(found < 0) | (found >= len(self))][0]
            raise StoreError(f"{self.directory}: expected rows 0..{len(self) - 1}, found row {bad}.")
        return found

    def locate(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64], Any]]:
        """Yield (shard number, rows inside the shard, their places in the request) for each requested shard."""
        if not len(rows):
            return
        if len(self._names) == 1:
            yield 0, rows, slice(None)
            return
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(shards, kind="stable")
        in_order = shards[order]
        local = (rows - self._starts[shards])[order]
        cuts = np.flatnonzero(np.diff(in_order)) + 1
        edges = [0, *cuts.tolist(), len(rows)]
        firsts = in_order[edges[:-1]].tolist()
        if len(firsts) == 1:
            yield firsts[0], local, slice(None)
            return
        for shard, (start, stop) in zip(firsts, itertools.pairwise(edges), strict=True):
            yield shard, local[start:stop], order[start:stop]

    def array(self, shard: int, column: str, *, touched: int | None) -> pa.Array:
        """Return one column of one shard. `touched` rows are about to be read (None: all); mapped pages are counted."""
        opened = self._opened.get(shard)
        if opened is None:
            opened = self._open(shard)
        size = self._sizes[shard]
        more = size if touched is None else touched * _FAULT_BYTES
        before = self._touched.get(shard, 0)
        after = min(before + more, size)
        self._touched[shard] = after
        self._resident += after - before
        if self._resident > RESIDENT_BYTES and len(self._touched) > 1:
            self.release(keep=shard)
        found = opened.get(column)
        if found is None:
            found = opened[column] = self._column_of(shard, column)
        return found

    def release(self, *, keep: int | None = None) -> None:
        """Release the mapped pages; the data remain readable and are mapped again on the next read."""
        for shard in self._touched:
            if shard == keep:
                continue
            address, length = self._spans[shard]
            if not _drop_pages(address, length):
                self._opened.pop(shard, None)  # unmapped with the last view of it
                self._batches.pop(shard, None)
        self._touched = {shard: count for shard, count in self._touched.items() if shard == keep}
        self._resident = sum(self._touched.values())

    def _verify(self, shard: int) -> None:
        """Compare the checksum of a shard with the manifest, on its first use."""
        verify_file(self.directory, self._names[shard], sha256=self.manifest.shards[shard].sha256, remedy=REMEDY)

    def _open(self, shard: int) -> dict[str, pa.Array]:
        self._verify(shard)
        batch, mapped = shard_file.map_file(self.directory / self._names[shard])
        expected = self.manifest.shards[shard].rows
        if batch.num_rows != expected:
            raise StoreError(
                f"{self.directory / self._names[shard]}: expected {expected} rows, found {batch.num_rows}. {REMEDY}"
            )
        if batch.schema.names != self.schema.names or batch.schema.types != self.schema.types:
            wanted, found = shard_file.describe(self.schema), shard_file.describe(batch.schema)
            raise ShardSchemaError(
                f"{self.directory / self._names[shard]}: expected the columns of the first shard, {wanted}, "
                f"found {found}. Remove the wrong shard. {REMEDY}"
            )
        # Only pages of the file may be dropped: dropping anonymous memory would silently replace it by zeros.
        inside = all(
            mapped.address <= buffer.address and buffer.address + buffer.size <= mapped.address + mapped.size
            for column in batch.columns
            for buffer in _all_buffers(column)
        )
        self._spans[shard] = (mapped.address, mapped.size) if inside else (0, 0)
        self._batches[shard] = batch
        self._opened[shard] = {}
        return self._opened[shard]

    def _column_of(self, shard: int, column: str) -> pa.Array:
        """Return a column of an opened shard after validating it, once."""
        array = self._batches[shard].column(column)
        shard_file.validate(array, path=self.directory / self._names[shard], column=column)
        return array

    def take(self, rows: Rows) -> Any:
        """Return the requested rows in order: a table here, other types in the readers of a kind."""
        return self.table(rows)

    def table(self, rows: Rows) -> pa.Table:
        """Return all columns of the requested rows, in order."""
        rows = self.rows(rows)
        pieces, places = [], []
        for shard, inside, place in self.locate(rows):
            arrays = [self.array(shard, name, touched=len(inside)).take(pa.array(inside)) for name in self.schema.names]
            pieces.append(pa.Table.from_arrays(arrays, schema=self.schema))
            places.append(np.arange(len(rows)) if isinstance(place, slice) else place)
        if not pieces:
            return self.schema.empty_table()
        table = pa.concat_tables(pieces)
        order = np.concatenate(places)
        if len(pieces) == 1:
            return table
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return table.take(pa.array(back))

    def window(self, start: int, stop: int, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return consecutive rows as a table of slices, without copies; `stop` may exceed the number of rows."""
        schema = self._schema_of(columns)
        pieces = []
        for shard in range(len(self._names)):
            first, last = max(start, int(self._starts[shard])), min(stop, int(self._starts[shard + 1]))
            if first < last:
                offset = first - int(self._starts[shard])
                arrays = [self.array(shard, name, touched=None).slice(offset, last - first) for name in schema.names]
                pieces.append(pa.Table.from_arrays(arrays, schema=schema))
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def iter_tables(self, batch_rows: int = 65_536, *, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield tables of at most `batch_rows` consecutive rows of one shard, without copies."""
        schema = self._schema_of(columns)
        for shard in range(len(self._names)):
            arrays = [self.array(shard, name, touched=None) for name in schema.names]
            table = pa.Table.from_arrays(arrays, schema=schema)
            for start in range(0, table.num_rows, batch_rows):
                yield table.slice(start, batch_rows)

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of these columns; None means all."""
        names = self.schema.names if columns is None else columns
        for name in names:
            self._refuse_unknown(name)
        return pa.schema([self.schema.field(name) for name in names])

    def _refuse_unknown(self, name: str) -> None:
        if name not in self.schema.names:
            raise StoreError(f"{self.directory}: no column {name!r}; the store has {', '.join(self.schema.names)}.")


def _all_buffers(array: pa.Array) -> list[pa.Buffer]:
    return [buffer for buffer in array.buffers() if buffer is not None and buffer.size]


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _drop_pages(address: int, length: int) -> bool:
    """Tell the kernel to drop the read-only file pages in this span; False where the platform cannot do it."""
    if _libc is None or not length:
        return False
    start = (address + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    stop = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > start:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(mmap.MADV_DONTNEED))
    return True
