"""Columns as numpy arrays: gathers over many memory-mapped shards without a Python step per row.

A gather sorts the requested rows by shard once, copies the rows of each shard into the result by fancy indexing, and
keeps the requested order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.errors import StoreError

Rows = Any
"""A sequence of row numbers, an int64 array, or a slice."""


class Shards(Protocol):
    """What a column needs of its store (`ShardStore`)."""

    directory: Path

    def rows(self, rows: Rows) -> npt.NDArray[np.int64]: ...
    def locate(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64], Any]]: ...
    def array(self, number: int, name: str, *, touched: int | None) -> pa.Array: ...


class Column:
    """Base class: one column across all shards of a store.

    Attributes:
        dtype: numpy type of its values.
        shape: of the value of one row.
    """

    what: ClassVar[str]
    fits: ClassVar[tuple[Callable[[pa.DataType], bool], ...]]
    """tests of the Arrow types that can be read"""
    shape: tuple[int, ...] = ()

    def __init__(self, store: Shards, field: pa.Field) -> None:
        self.store, self.name, self.type = store, field.name, field.type
        if not any(fits(field.type) for fits in self.fits):
            raise StoreError(
                f"{store.directory}: expected {self.what} in column {self.name!r}, found {self.type}. Open the store "
                "as its own kind, or write it again."
            )
        self.dtype = _dtype(field.type)

    def gather(self, array: pa.Array, inside: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the values of these rows of a shard."""
        found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=True)[inside]
        return found

    def pieces(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Any, npt.NDArray[np.int64], Any]]:
        """Yield (array of one shard, rows inside it, their places in the result)."""
        for shard, inside, place in self.store.locate(rows):
            yield self.store.array(shard, self.name, touched=len(inside)), inside, place

    def take(self, rows: Rows) -> Any:
        """Return the values of the requested rows, in their order: (n, *shape) in the stored type; a copy."""
        rows = self.store.rows(rows)
        out: npt.NDArray[Any] = np.empty((len(rows), *self.shape), self.dtype)
        for array, inside, place in self.pieces(rows):
            out[place] = self.gather(array, inside)
        return out


class NumberColumn(Column):
    """A numeric column as an (n,) array."""

    what = "numbers"
    fits = (pa.types.is_integer, pa.types.is_floating)


class FixedColumn(Column):
    """A `fixed_size_list<float>[d]` column as an (n, d) matrix."""

    what = "a fixed-size list"
    fits = (pa.types.is_fixed_size_list,)

    def __init__(self, store: Shards, field: pa.Field) -> None:
        super().__init__(store, field)
        self.dim = int(self.type.list_size)
        self.shape = (self.dim,)

    def gather(self, array: pa.Array, inside: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self._matrix(array)[inside]

    def shard(self, number: int) -> npt.NDArray[Any]:
        """Return all rows of one shard, (rows, d) in the stored dtype, without a copy."""
        return self._matrix(self.store.array(number, self.name, touched=None))

    def _matrix(self, array: pa.FixedSizeListArray) -> npt.NDArray[Any]:
        flat: npt.NDArray[Any] = array.values.to_numpy(zero_copy_only=True)
        return flat[array.offset * self.dim : (array.offset + len(array)) * self.dim].reshape(len(array), self.dim)


class StringColumn(Column):
    """A text column as Python strings (None where the store holds a null)."""

    what = "texts"
    fits = (pa.types.is_string, pa.types.is_large_string)

    def gather(self, array: pa.Array, inside: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = array.take(pa.array(inside)).to_numpy(zero_copy_only=False)
        return found

    def take(self, rows: Rows) -> list[Any]:
        """Return n strings in the requested order."""
        found: list[Any] = super().take(rows).tolist()
        return found


class ListColumn(Column):
    """A `list<int32>` column: ragged rows as one flat array and offsets, or as a padded matrix."""

    what = "a list"
    fits = (pa.types.is_list, pa.types.is_large_list)

    def take(self, rows: Rows) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return (values, offsets): row i is `values[offsets[i]:offsets[i + 1]]`; offsets has n + 1 entries."""
        rows = self.store.rows(rows)
        found = []
        lengths = np.empty(len(rows), np.int64)
        for array, inside, place in self.pieces(rows):
            starts_all = array.offsets.to_numpy(zero_copy_only=True)
            starts = starts_all[inside].astype(np.int64)
            lengths[place] = starts_all[inside + 1] - starts
            found.append((array.values.to_numpy(zero_copy_only=True), starts, place))
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        out = np.empty(int(offsets[-1]), self.dtype)
        for values, starts, place in found:
            count = lengths[place]
            step = np.arange(int(count.sum()), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
            out[np.repeat(offsets[:-1][place], count) + step] = values[np.repeat(starts, count) + step]
        return out, offsets

    def padded(self, rows: Rows, *, pad: int, length: int | None = None) -> npt.NDArray[np.int64]:
        """Return (n, L) int64, right-padded; L is the length of the longest row unless `length` is given.

        Raises:
            StoreError: A row is longer than `length`.
        """
        values, offsets = self.take(rows)
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        length = longest if length is None else length
        if longest > length:
            raise StoreError(
                f"{self.store.directory}: expected at most {length} items per row of {self.name!r}, found {longest}. "
                "Give a larger length."
            )
        out = np.full((len(lengths), length), pad, np.int64)
        out[np.arange(length) < lengths[:, None]] = values
        return out


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of a column's values. (Arrow's `to_pandas_dtype` needs pandas, which may be missing.)"""
    kind = kind.value_type if kind.num_fields else kind
    names = {"halffloat": "float16", "float": "float32", "double": "float64", "string": "O", "large_string": "O"}
    return np.dtype(names.get(str(kind), str(kind)))
