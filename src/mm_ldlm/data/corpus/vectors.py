"""Vectors as sources contain them: lists of numbers, arrays, or texts such as "[0.1, 0.2]"."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.corpus.quarantine import Unusable

_BRACKETS = {"[": "]", "{": "}", "(": ")"}


def vector_of(value: Any, *, dim: int, remedy: Callable[[int], str] | None = None) -> npt.NDArray[np.float32]:
    """Return the vector of a row (d,) as finite float32.

    Args:
        remedy: returns the remedy if all vectors have another dimension, given this dimension.

    Raises:
        Unusable: it is missing, is not a list of numbers, or has another dimension than `dim`.
    """
    if value is None:
        raise Unusable("no_vector", "the source contains no vector for this text")
    vector = np.asarray(None)
    with contextlib.suppress(ValueError, OverflowError):
        vector = np.asarray(_written(value) if isinstance(value, str) else value)
    if vector.ndim != 1 or vector.dtype.kind not in "iuf":
        raise Unusable("wrong_type", "expected a list of numbers as the vector, such as [0.1, 0.2]", value)
    if len(vector) != dim:
        detail = f"a vector of dimension {len(vector)}, expected {dim}"
        raise Unusable("wrong_dimension", detail if remedy is None else f"{detail}. {remedy(len(vector))}")
    with np.errstate(over="ignore"):
        vector = vector.astype(np.float32, copy=False)
    if not np.isfinite(vector).all():
        raise Unusable("not_finite", "the vector contains NaN, infinity or a number beyond float32")
    return vector


def _written(text: str) -> list[float] | None:
    """Parse a list of numbers in brackets, separated by commas or by white space; None for another text."""
    inner = text.strip()
    if len(inner) < 2 or _BRACKETS.get(inner[0]) != inner[-1] or not inner.isascii() or "_" in inner:
        return None
    inner = inner[1:-1]
    return [float(word) for word in (inner.split(",") if "," in inner else inner.split())]
