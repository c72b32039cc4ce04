"""Arguments of requests: texts, token ids, raw latents and samplers, as lists, columns, arrays or files.

Everything else is checked by `core.check` where a request begins. Below, arguments are trusted.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from mm_ldlm.core import SamplingError, check, foreign_code, parse_kind, show
from mm_ldlm.data.latents.recognition import described
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.limits import Draws, Steps
from mm_ldlm.sampling.registry import LATENT_SAMPLERS

Floats = npt.NDArray[np.float32]
MODEL = "the model (tokenizer.max_length)"

# --- texts and ids ----------------------------------------------------------------------------------------------------


def texts_of(value: Any, *, name: str = "texts") -> list[str]:
    """Return texts as a list: one text, a list, or a column of pandas, numpy or Arrow.

    Raises:
        SamplingError: it is something else, or an item is not a text with words.
    """
    texts = [value] if isinstance(value, str) else listed(value, name=name)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip() or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise SamplingError(
                f"{name}[{index}]: expected a text that is not blank, in valid Unicode, found {show(text)}. Remove it."
            )
    return texts


def is_column(value: Any) -> bool:
    """Return whether a value may have items of one dimension; an object that does not answer may."""
    try:
        return bool(getattr(value, "ndim", 1) == 1)
    except Exception:  # of an object of the caller, such as a released memoryview
        return True


def listed(value: Any, *, name: str) -> list[Any]:
    """Return the items of a list, an iterator or one column as a list; everything else is refused."""
    with foreign_code(lambda reason: SamplingError(
        f"{name}: expected a list or one column, found {type(value).__name__} ({reason})."
    ), Exception):  # fmt: skip
        if isinstance(value, (pa.Array, pa.ChunkedArray)):
            return list(value.to_pylist())
        if isinstance(value, (str, bytes, Mapping, AbstractSet, pa.Table)) or not is_column(value):
            raise TypeError("not one column")
        return list(value)


def check_lengths(counts: Sequence[int], texts: Sequence[str], *, most: int, of: str, name: str = "texts") -> None:
    """Refuse texts without tokens and texts of more than `most` tokens `of` the model or of the encoder."""
    if wrong := [row for row, count in enumerate(counts) if not 1 <= count <= most]:
        row = wrong[0]
        raise SamplingError(
            f"{name}[{row}]: expected 1 to {most} tokens of {of}, found {counts[row]} in {show(texts[row], 60)}; "
            f"{len(wrong)} of {len(texts)} texts are like this. Remove, shorten or split them, or set too_long to "
            "truncate, if the request has it."
        )


def check_tokens(ids: Any, texts: Any, *, shape: DataShape) -> list[Any]:
    """Return the ids in rows; raise SamplingError unless each text has a row of 1..max_length ids of words."""
    rows = listed(ids, name="ids") if is_column(ids) else list(np.atleast_1d(array_of(ids, name="ids")))
    names = texts_of(texts)
    if len(rows) != len(names):
        raise SamplingError(f"expected one row of ids for each of {len(names)} texts, found {len(rows)} rows.")
    for index, row in enumerate(rows):
        row_L = array_of(row, name=f"ids[{index}]")
        special_L = (row_L == shape.pad_id) | (row_L == shape.mask_id) | (row_L < 0) | (row_L >= shape.vocab_size)
        if row_L.ndim != 1 or not np.issubdtype(row_L.dtype, np.integer) or special_L.any():
            raise SamplingError(
                f"ids[{index}]: expected ids of words from 0 to {shape.vocab_size - 1}, without [PAD] and [MASK] "
                f"({shape.pad_id}, {shape.mask_id}), found {show(row, 60)}."
            )
    check_lengths([*map(len, rows)], names, most=shape.max_length, of=MODEL)
    return rows


# --- latents ----------------------------------------------------------------------------------------------------------


def array_of(values: Any, *, name: str) -> npt.NDArray[Any]:
    """Convert real numbers (an array, a tensor, a column of vectors, nested lists) to an array; others are refused."""
    with foreign_code(lambda reason: SamplingError(
        f"{name}: expected real numbers, in rows of one length, found {show(values, 100)} ({reason}). Correct it."
    ), Exception):  # fmt: skip
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
            values = (values.float() if values.is_floating_point() else values).numpy()
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1:
            array = np.asarray(list(array))  # a column of pandas or Arrow with a vector in each row
        if np.ma.is_masked(values):
            raise TypeError("some of its numbers are masked")
        if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
            raise TypeError(f"values of type {array.dtype}")
    return array


def vectors_of(values: Any, *, dim: int, name: str = "latents", count: int | None = None) -> Floats:
    """Convert latents to finite float32 (n, dim), n = `count` if it is given; a single vector becomes one row."""
    array = array_of(values, name=name)
    array = array.reshape(0, dim) if array.shape == (0,) else np.atleast_2d(array)
    if array.ndim != 2 or array.shape[1] != dim or count not in (None, len(array)):
        looks = described(array) if array.ndim == 2 and array.shape[1] != dim else ""
        raise SamplingError(
            f"{name}: expected {'' if count is None else f'{count} '}vectors of dim {dim}, found shape "
            f"{tuple(array.shape)}{looks and f', which looks like {looks}'}. Use vectors of the encoder that the model "
            f"was trained on, one for each text{looks and ', or fit an adapter (`mm-ldlm align`)'}."
        )
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if (rows := np.flatnonzero(~np.isfinite(array).all(axis=1))).size:
        raise SamplingError(
            f"{name}: expected finite float32 numbers, found NaN, infinity or numbers beyond float32 in {len(rows)} of "
            f"{len(array)} vectors (rows {show(rows[:8].tolist(), 60)}). Remove these vectors."
        )
    return array


# --- samplers ---------------------------------------------------------------------------------------------------------


def latent_sampler_of(sampler: Any, steps: int | None, draws: int | None = None, *, name: str = "sampler") -> Any:
    """Return a latent sampler: a kind or a configuration, with the caller's steps and draws."""
    given = {"steps": check(steps, Steps | None, name="steps"), "draws": check(draws, Draws | None, name="draws")}
    sampler = "ddim" if sampler is None else sampler
    chosen = parse_kind(LATENT_SAMPLERS, {"kind": sampler} if isinstance(sampler, str) else sampler, at=name)
    return chosen if steps is None and draws is None else chosen.override(**given)
