"""What every result of the Python API has: finite numbers, whole texts, one for each input."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .oracle import Wrong

SPECIALS = ("[MASK]", "[PAD]")


def check_result(result: Any, *, own_words: str = "") -> None:
    """Raise `Wrong` if a result contains NaN or infinity, an empty text, or tokens that are no words.

    `own_words` is what the caller wrote, which a result may contain whatever it is.
    """
    for name, value in _fields(result):
        if name == "standard_errors" and len(result.draw_nll) == 1:
            continue  # one draw has no spread
        if isinstance(value, np.ndarray) or hasattr(value, "numpy"):
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Wrong("not finite", f"{type(result).__name__}.{name} contains {array[~np.isfinite(array)][:3]}")
        elif isinstance(value, float) and not np.isfinite(value):
            raise Wrong("not finite", f"{type(result).__name__}.{name} is {value}")
    for text in getattr(result, "texts", ()):
        if not isinstance(text, str) or not text.strip():
            raise Wrong("empty text", f"{type(result).__name__} contains the text {text!r}")
        if any(word in text for word in SPECIALS if word not in own_words) and type(result).__name__ == "Texts":
            raise Wrong("no words", f"{type(result).__name__} contains the text {text!r}")


def _fields(result: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(result):
        found = [(field.name, getattr(result, field.name)) for field in dataclasses.fields(result)]
    else:
        found = [("value", result)]
    nested = [item for _, value in found if dataclasses.is_dataclass(value) for item in _fields(value)]
    lists = [(name, item) for name, value in found if isinstance(value, (tuple, list)) for item in value]
    return [*found, *nested, *lists]
