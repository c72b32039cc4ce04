"""Vectors in sources: cells of a table that contain a list of numbers, and `.npy` files beside text files.

A vector is returned in its own dimension and type; the cleaner compares them with the declared encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import InputFile

Vector = npt.NDArray[Any]
"""(d,) of a type of numbers"""
BESIDE = "beside"
"""Value of the key `vectors` of a text file: its vectors are in the .npy file of the same name beside it."""
_BRACKETS = {"[": "]", "{": "}", "(": ")"}


def vector_of(value: Any) -> Vector:
    """Return the vector that a cell contains: numbers in a list, an array, or written as "[0.1, 0.2]" or "{0.1,0.2}".

    Raises:
        ValueError: the cell contains something else; the message completes "column 'x' contains …".
    """
    if isinstance(value, str):
        return _written(value)
    if isinstance(value, (list, tuple)):
        kinds = {type(item) for item in value}
        if not kinds <= {int, float}:
            other = next(item for item in value if type(item) not in (int, float))
            raise ValueError(f"a list with {_describe(other)}, expected a list of numbers")
        try:
            value = np.array(value, np.float64)
        except OverflowError:
            raise ValueError("a list with a whole number beyond float64, expected a list of numbers") from None
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{_describe(value)}, expected a list of numbers")
    if value.ndim != 1:
        raise ValueError(f"an array of shape {value.shape}, expected one list of numbers")
    if value.dtype.kind not in "iuf":
        raise ValueError(f"an array of type {value.dtype}, expected numbers")
    return value


def column_vectors(column: pa.Array | pa.ChunkedArray) -> list[Any] | None:
    """Return the cells of a column of lists of numbers as arrays, without Python numbers; None for other columns."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        return None
    missing = np.asarray(column.is_null())
    if pa.types.is_fixed_size_list(kind):
        starts = (np.arange(len(column)) + column.offset) * kind.list_size
        stops = starts + kind.list_size
        values = column.values
    else:
        offsets = column.offsets.to_numpy()
        starts, stops, values = offsets[:-1], offsets[1:], column.values
    flat = values.to_numpy(zero_copy_only=False)
    holes = np.asarray(values.is_null()) if values.null_count else None
    found: list[Any] = [
        None if gone else flat[start:stop] for start, stop, gone in zip(starts, stops, missing.tolist(), strict=True)
    ]
    if holes is not None:  # a null among the numbers of a row: `vector_of` refuses the list
        for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            if found[row] is not None and holes[start:stop].any():
                found[row] = column[row].as_py()
    return found


def beside(path: Path) -> Path:
    """Return the .npy file that belongs to a text file: `texts.txt`, or `texts.txt.gz`, and `texts.npy`."""
    plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    return plain.with_suffix(".npy")


def missing_vectors(path: Path, *, texts: Path, fault: str) -> SourceError:
    """Return the error for a text file without its vectors."""
    return SourceError(
        f"{path} {fault}: expected the vectors of {texts}, one row for each line. Put the file there, or correct the "
        "source's 'vectors'."
    )


def open_vectors(path: Path, *, texts: Path, lines: int) -> npt.NDArray[Any]:
    """Map the .npy file (n, d) of the vectors of a text file with n lines, blank ones included.

    Raises:
        SourceError: the file is damaged, contains no matrix of numbers, or has another number of rows.
    """
    found = InputFile(path, remedy=f"Write the vectors of {texts} again.", error=SourceError).array()
    if found.ndim != 2 or found.dtype.kind not in "iuf":
        raise SourceError(
            f"{path}: expected a matrix of numbers (lines, dimension), found shape {found.shape} and type "
            f"{found.dtype}. Write the vectors of {texts} again."
        )
    if len(found) != lines:
        raise SourceError(
            f"{path}: expected one vector for each of the {lines} lines of {texts} (blank lines included), found "
            f"{len(found)} rows: the row of a line is unknown. Write both files from the same list."
        )
    return found


def _written(text: str) -> Vector:
    """Parse a list of numbers in brackets, separated by commas or by white space."""
    stripped = text.strip()
    if not stripped:
        raise ValueError("an empty text, expected a list of numbers")
    if len(stripped) < 2 or _BRACKETS.get(stripped[0]) != stripped[-1] or not stripped.isascii() or "_" in stripped:
        raise ValueError(f"the text {stripped[:40]!r}, expected a list of numbers such as [0.1, 0.2]")
    inner = stripped[1:-1]
    words = inner.split(",") if "," in inner else inner.split()
    try:
        return np.array([float(word) for word in words], np.float64)
    except ValueError:
        raise ValueError(f"the text {stripped[:40]!r}, in which not every item is a number") from None


def _describe(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.40}"
