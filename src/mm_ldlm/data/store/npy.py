"""Reading of `.npy` files from outside: the header is compared with the size of the file before memory is allocated."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt


def read_npy(source: str | Path | bytes) -> npt.NDArray[Any]:
    """Read one array of numbers; pickled objects are never loaded.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a `.npy` file, contains objects, or its size differs from that of its header.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        _check_size(file)
        file.seek(0)
        try:
            found = np.lib.format.read_array(file, allow_pickle=False)
        except (ValueError, EOFError, MemoryError, TypeError, OverflowError) as error:
            raise ValueError(str(error) or type(error).__name__) from None
    return np.asarray(found)


def map_npy(path: str | Path) -> npt.NDArray[Any]:
    """Map one array of numbers into memory, read-only, so that only the rows that are used are read.

    Raises:
        OSError: the file cannot be read.
        ValueError: as in `read_npy`.
    """
    with open(path, "rb") as file:
        shape, fortran_order, dtype, start = _check_size(file)
    if 0 in shape:
        return np.empty(shape, dtype)
    order: Literal["F", "C"] = "F" if fortran_order else "C"
    return np.memmap(path, dtype, "r", start, shape, order)


def _check_size(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return (shape, Fortran order, type, offset of the values) from the header, after comparing it with the size."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(file)
    except Exception as error:  # numpy's parser of the header raises errors of tokenize, ast and struct, among others
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"its header cannot be read ({text[0]:.120})") from None
    if dtype.hasobject:
        raise ValueError("it contains pickled objects, which are never loaded")
    start, end = file.tell(), file.seek(0, os.SEEK_END)
    expected = math.prod(shape) * dtype.itemsize
    if any(size < 0 for size in shape) or expected != end - start:
        raise ValueError(
            f"its header states an array of shape {str(shape)[:60]}, type {dtype} and {expected} bytes, found "
            f"{end - start} bytes"
        )
    return shape, fortran_order, dtype, start
