"""Lengths of texts as requests give them: which values are valid, and which lengths a sampler can write."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Any

from mm_ldlm.core.config import InvalidValue
from mm_ldlm.core.messages import show
from mm_ldlm.diffusion.process import ProcessTraits

Length = str | int
"""'argmax' | 'sample' (of the length distribution) | 'top-n' (try the n most probable lengths) | a number."""


def how_many_lengths(length: Any) -> int:
    """Return n for 'top-n', and 1 for every other valid length.

    Raises:
        ValueError: `length` is none of 'argmax', 'sample', 'top-n' or a number of at least 1.
    """
    if isinstance(length, Integral) and not isinstance(length, bool):
        if length < 1:
            raise InvalidValue(f"length must be at least 1 token, found {length}", "length")
        return 1
    if isinstance(length, str):
        if length in ("argmax", "sample"):
            return 1
        if found := re.fullmatch(r"top-([1-9][0-9]{0,8})", length):
            return int(found[1])
    raise InvalidValue(
        f"length must be 'argmax', 'sample', 'top-n' (as in 'top-3') or a number, found {show(length)}", "length"
    )


def refuse_long(length: Length | None, *, max_length: int, sampler: Any, process: ProcessTraits | None) -> str | None:
    """Explain why a text of a length cannot be written by a sampler; None if it can, or if the length is not a number.

    Args:
        max_length: number of tokens that the model reads at once.
        sampler: the text sampler; None: the text must fit the model whatever writes it.
        process: traits of the model's process; None if the model is not a diffusion model.
    """
    if length is None or isinstance(length, str) or length <= max_length:
        return None
    if sampler is not None and sampler.exceeds_window:
        return None
    blocks = ", or use the sampler 'blocks'" if process is not None and process.only_masks else ""
    return (
        f"expected a text of at most {max_length} tokens, the model's maximum length; found a request for {length}. "
        f"Request a shorter text{blocks}."
    )
