"""Checks of the arguments of `MMLDLM`, and the files that they are read from."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.errors import SamplingError
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.lengths import Length, how_many_lengths
from mm_ldlm.store import npy

Floats = npt.NDArray[np.float32]

log = logging.getLogger(__name__)


def check_texts(texts: str | Sequence[str], *, what: str = "texts") -> list[str]:
    """Return a list of non-empty strings; a single string becomes a list of one."""
    if not isinstance(texts, (str, Iterable)) or isinstance(texts, (bytes, Mapping)):
        raise SamplingError(f"{what}: expected a text or a list of texts, found {type(texts).__name__}.")
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise SamplingError(f"{what}: expected at least one text, found none.")
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise SamplingError(f"{what}[{index}]: expected a text, found {type(text).__name__} {text!r}.")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise SamplingError(f"{what}[{index}] {text!r} contains an unpaired surrogate, which is not valid Unicode.")
        if not text.strip():
            raise SamplingError(f"{what}[{index}] is empty. Remove it, or add words.")
    return listed


def read_texts(path: str | Path) -> list[str]:
    """Read the non-empty lines of a UTF-8 text file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SamplingError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SamplingError(f"{path} cannot be read as UTF-8 text ({error}).") from None
    return check_texts([line.strip() for line in lines if line.strip()], what=str(path))


def check_lengths(lengths: Sequence[int], texts: Sequence[str], *, max_length: int, what: str = "texts") -> None:
    """Refuse texts without tokens and texts of more tokens than the model reads."""
    for index, length in enumerate(lengths):
        if length == 0:
            raise SamplingError(f"{what}[{index}] {texts[index]!r} has no token in this model's vocabulary. Remove it.")
        if length > max_length:
            raise SamplingError(
                f"{what}[{index}] has {length} tokens, but the model reads at most {max_length} "
                f"(tokenizer.max_length): {_short(texts[index])!r}. Shorten or split it."
            )


def warn_of_unknown(ids: Sequence[Sequence[int]], texts: Sequence[str], *, unk_id: int) -> None:
    """Warn about texts with words outside the model's vocabulary, which the model reads and writes as [UNK]."""
    if rows := [row for row, tokens in enumerate(ids) if unk_id in tokens]:
        log.warning(
            "%d of %d texts contain words outside this model's vocabulary, which it reads and writes as [UNK]: %s",
            len(rows), len(texts), ", ".join(repr(_short(texts[row])) for row in rows[:3]),
        )  # fmt: skip


def check_tokens(ids: Sequence[Sequence[int]], texts: Sequence[str], *, shape: DataShape) -> None:
    """Raise SamplingError unless each text has a row of 1..max_length ids of words, and there is at least one."""
    if len(ids) != len(texts):
        raise SamplingError(f"expected one row of ids for each of {len(texts)} texts, found {len(ids)} rows.")
    if len(ids) == 0:
        raise SamplingError("ids: expected at least one row, found none.")
    for index, row in enumerate(ids):
        if not isinstance(row, (Sequence, np.ndarray)) or isinstance(row, (str, bytes)):
            raise SamplingError(f"ids[{index}]: expected a list of ids, found {_short(repr(row))}.")
    check_lengths([len(row) for row in ids], texts, max_length=shape.max_length)
    for index, row in enumerate(ids):
        for token in row:
            if not _is_integer(token) or not 0 <= token < shape.vocab_size:
                raise SamplingError(f"ids[{index}]: expected ids in 0..{shape.vocab_size - 1}, found {token!r}.")
            if token in (shape.pad_id, shape.mask_id):
                name = "[PAD]" if token == shape.pad_id else "[MASK]"
                raise SamplingError(f"ids[{index}]: expected ids of words, found {token}, which is {name}. Remove it.")


def check_integer(value: Any, *, name: str, minimum: int | None = None) -> int:
    """Return an argument as an int; true, false, fractions and texts are refused.

    Raises:
        SamplingError: it is not an integer, or below the minimum.
    """
    if not _is_integer(value):
        raise SamplingError(f"{name}: expected an integer, found {_short(repr(value))}.")
    if minimum is not None and value < minimum:
        raise SamplingError(f"{name} must be at least {minimum}, found {value}.")
    return int(value)


def check_length(length: Any) -> Length:
    """Return a length: 'argmax', 'sample', 'top-n' or an int.

    Raises:
        SamplingError: it is none of them.
    """
    try:
        how_many_lengths(length)
    except ValueError as error:
        raise SamplingError(f"{error}.") from None
    return length if isinstance(length, str) else int(length)


def check_choice(value: Any, choices: Sequence[str], *, name: str) -> None:
    """Raise SamplingError unless an argument is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise SamplingError(f"{name} must be one of {', '.join(choices)}, found {value!r}.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_latents(latents: Any, *, dim: int, what: str = "latents") -> Floats:
    """Convert latents to finite float32 (n, dim); a single vector becomes one row."""
    if isinstance(latents, torch.Tensor):
        latents = latents.detach().cpu().float().numpy()
    try:
        array = np.asarray(latents)
    except ValueError as error:
        raise SamplingError(f"{what}: expected vectors of dim {dim}, found rows of unequal length.") from error
    if array.dtype == object or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise SamplingError(f"{what}: expected real numbers, found dtype {array.dtype}.")
    array = np.atleast_2d(array)
    if array.ndim != 2 or array.shape[1] != dim:
        raise SamplingError(
            f"{what}: expected vectors of dim {dim}, found shape {tuple(array.shape)}. "
            f"Use vectors of the encoder that the model was trained on."
        )
    if len(array) == 0:
        raise SamplingError(f"{what}: expected at least one vector, found none.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    bad = ~np.isfinite(array).all(axis=1)
    if bad.any():
        rows = np.flatnonzero(bad)
        raise SamplingError(
            f"{what}: expected finite float32 numbers, found NaN, infinity or numbers beyond float32 in {len(rows)} of "
            f"{len(array)} vectors (rows {_short(rows[:8].tolist())}). Remove these vectors."
        )
    return array


def read_npy(path: str | Path, *, dim: int) -> Floats:
    """Read and check the vectors of a `.npy` file; pickled objects are never loaded."""
    path = Path(path)
    if not path.is_file():
        raise SamplingError(f"{path}: no such file.")
    try:
        array = npy.read_npy(path)
    except ValueError as error:
        raise SamplingError(
            f"{path} is not a .npy file of one array of numbers: {error}. Save a plain float array with numpy.save."
        ) from None
    except OSError as error:
        raise SamplingError(f"{path} cannot be read ({error}).") from None
    return check_latents(array, dim=dim, what=str(path))


def _short(value: Any, length: int = 60) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
