"""Columns as numpy arrays: gathers over many memory-mapped shards without a Python step per row.

A gather sorts the requested rows by shard once, copies the rows of each shard into the result by fancy indexing, and
keeps the requested order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.errors import StoreError

Rows = Any
"""A sequence of row numbers, an int64 array, or a slice."""


class Shards(Protocol):
    """The part of `ShardStore` that a column reads."""

    @property
    def directory(self) -> Path: ...

    @property
    def schema(self) -> pa.Schema: ...

    def __len__(self) -> int: ...

    def rows(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return row numbers as an int64 array."""
        ...

    def locate(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64], Any]]:
        """Yield (shard number, rows inside the shard, their places in the request)."""
        ...

    def array(self, shard: int, column: str, *, touched: int | None) -> pa.Array:
        """Return one column of one shard."""
        ...


class Column:
    """Base class: one column across all shards of a store."""

    def __init__(self, store: Shards, name: str) -> None:
        self.store = store
        self.name = name
        self.type: pa.DataType = store.schema.field(name).type

    def __len__(self) -> int:
        return len(self.store)

    def _require(self, what: str, found: bool) -> None:
        """Raise StoreError unless the column has the type that this class reads."""
        if not found:
            raise StoreError(
                f"{self.store.directory}: expected {what} in column {self.name!r}, found {self.type}. Open the store "
                "as its own kind, or write it again."
            )

    def _pieces(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Any, npt.NDArray[np.int64], Any]]:
        """Yield (array of one shard, rows inside it, their places in the result)."""
        for shard, inside, place in self.store.locate(rows):
            yield self.store.array(shard, self.name, touched=len(inside)), inside, place


class FixedColumn(Column):
    """A `fixed_size_list<float>[d]` column as an (n, d) matrix."""

    def __init__(self, store: Shards, name: str) -> None:
        super().__init__(store, name)
        self._require("a fixed-size list", pa.types.is_fixed_size_list(self.type))
        self.dim = int(self.type.list_size)
        self.dtype = _dtype(self.type.value_type)

    def shard(self, number: int) -> npt.NDArray[Any]:
        """Return all rows of one shard, (rows, d) in the stored dtype, without a copy."""
        array = self.store.array(number, self.name, touched=None)
        return _matrix(array, self.dim)

    def take(self, rows: Rows) -> npt.NDArray[Any]:
        """Return (n, d) in the stored dtype and the requested order; a copy."""
        rows = self.store.rows(rows)
        out = np.empty((len(rows), self.dim), self.dtype)
        for array, inside, place in self._pieces(rows):
            out[place] = _matrix(array, self.dim)[inside]
        return out

    def __getitem__(self, rows: Rows) -> npt.NDArray[Any]:
        """Return (n, d) for a slice or an array of rows, (d,) for one row."""
        if isinstance(rows, (int, np.integer)):
            return self.take([int(rows) + (len(self) if rows < 0 else 0)])[0]
        return self.take(rows)


class ListColumn(Column):
    """A `list<int32>` column: ragged rows as one flat array and offsets, or as a padded matrix."""

    def __init__(self, store: Shards, name: str) -> None:
        super().__init__(store, name)
        self._require("a list", pa.types.is_list(self.type) or pa.types.is_large_list(self.type))
        self.dtype = _dtype(self.type.value_type)

    def lengths(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the number of items in each row, (n,)."""
        rows = self.store.rows(rows)
        out = np.empty(len(rows), np.int64)
        for array, inside, place in self._pieces(rows):
            offsets = _numpy(array.offsets)
            out[place] = offsets[inside + 1].astype(np.int64) - offsets[inside]
        return out

    def take(self, rows: Rows) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return (values, offsets): row i is `values[offsets[i]:offsets[i + 1]]`; offsets has n + 1 entries."""
        rows = self.store.rows(rows)
        found = []
        lengths = np.empty(len(rows), np.int64)
        for array, inside, place in self._pieces(rows):
            starts_all = _numpy(array.offsets)
            starts = starts_all[inside].astype(np.int64)
            lengths[place] = starts_all[inside + 1] - starts
            found.append((_numpy(array.values), starts, place))
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        out = np.empty(int(offsets[-1]), self.dtype)
        for values, starts, place in found:
            count = lengths[place]
            total = int(count.sum())
            before = np.cumsum(count) - count
            step = np.arange(total, dtype=np.int64) - np.repeat(before, count)
            gathered = values[np.repeat(starts, count) + step]
            if len(found) == 1 and isinstance(place, slice):
                out = gathered
            else:
                out[np.repeat(offsets[:-1][place], count) + step] = gathered
        return out, offsets

    def padded(self, rows: Rows, *, pad: int, length: int | None = None) -> npt.NDArray[np.int64]:
        """Return (n, L) int64, right-padded; L is the length of the longest row unless `length` is given.

        Raises:
            StoreError: A row is longer than `length`.
        """
        values, offsets = self.take(rows)
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        if length is not None and longest > length:
            raise StoreError(
                f"{self.store.directory}: expected at most {length} items per row of {self.name!r}, "
                f"found {longest}. Give a larger length."
            )
        length = longest if length is None else length
        out = np.full((len(lengths), length), pad, np.int64)
        out[np.arange(length) < lengths[:, None]] = values
        return out


class IntColumn(Column):
    """A numeric column as an (n,) array."""

    def __init__(self, store: Shards, name: str) -> None:
        super().__init__(store, name)
        self._require("numbers", pa.types.is_integer(self.type) or pa.types.is_floating(self.type))

    def take(self, rows: Rows) -> npt.NDArray[Any]:
        """Return (n,) in the stored dtype."""
        rows = self.store.rows(rows)
        out = np.empty(len(rows), _dtype(self.type))
        for array, inside, place in self._pieces(rows):
            out[place] = _numpy(array)[inside]
        return out

    def __getitem__(self, rows: Rows) -> npt.NDArray[Any]:
        return self.take(rows)


class StringColumn(Column):
    """A text column as Python strings (None where the store holds a null)."""

    def __init__(self, store: Shards, name: str) -> None:
        super().__init__(store, name)
        self._require("texts", pa.types.is_string(self.type) or pa.types.is_large_string(self.type))

    def take(self, rows: Rows) -> list[Any]:
        """Return n strings in the requested order."""
        rows = self.store.rows(rows)
        out: npt.NDArray[np.object_] = np.empty(len(rows), object)
        for array, inside, place in self._pieces(rows):
            out[place] = array.take(pa.array(inside)).to_numpy(zero_copy_only=False)
        return out.tolist()

    def __getitem__(self, rows: Rows) -> list[Any]:
        return self.take(rows)


def _matrix(array: pa.FixedSizeListArray, dim: int) -> npt.NDArray[Any]:
    flat = array.values.to_numpy(zero_copy_only=True)
    return flat[array.offset * dim : (array.offset + len(array)) * dim].reshape(len(array), dim)


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    return array.to_numpy(zero_copy_only=True)


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of a numeric Arrow type. (Arrow's `to_pandas_dtype` needs pandas, which may be missing.)"""
    return np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind)))
