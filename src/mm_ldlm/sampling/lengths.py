"""Lengths of texts as requests give them: which values are valid, and which lengths a sampler can write."""

from __future__ import annotations

from typing import Annotated, Any

from mm_ldlm.core.config import Rows, bounded
from mm_ldlm.diffusion.process import ProcessTraits

Length = Annotated[str, bounded(pattern=r"^(argmax|sample|top-[1-9][0-9]{0,8})$")] | Rows
"""'argmax' | 'sample' (of the length distribution) | 'top-n' (try the n most probable lengths) | a number."""
DrawnLength = Annotated[str, bounded(pattern=r"^(argmax|sample)$")] | Rows
"""The same without 'top-n', which ranks texts instead of drawing them"""


def lengths_tried(length: Length) -> int:
    """Return n for 'top-n', and 1 for every other length."""
    return int(length.removeprefix("top-")) if isinstance(length, str) and length.startswith("top-") else 1


def length_refusal(
    length: Length | None, *, max_length: int, sampler: Any, process: ProcessTraits | None
) -> str | None:
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
