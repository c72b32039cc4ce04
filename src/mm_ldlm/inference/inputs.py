"""Checks of the arguments of `MMLDLM`, and the files that they are read from."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.core.files import InputFile
from mm_ldlm.core.messages import nearest, shorten, show
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.lengths import Length, how_many_lengths

Floats = npt.NDArray[np.float32]

log = logging.getLogger(__name__)

READ = "it reads them as [UNK]"
"""What happens to words outside the vocabulary: the model reads them."""
INFILLED = f"{READ}, and the result keeps them as they are written"
"""The same for texts with gaps, of which only the gaps are written."""
EDITED = f"{READ}, and the result keeps those that are not rewritten"
"""The same for texts of which a part is rewritten."""
ENCODED = "the encoder reads them, but the model cannot write them"
"""The same for texts whose latents are the targets."""


_READERS_OF_TABLES = {
    ".csv": "read_csv('FILE')", ".tsv": "read_csv('FILE', sep='\\t')", ".json": "read_json('FILE')",
    ".jsonl": "read_json('FILE', lines=True)", ".parquet": "read_parquet('FILE')",
}  # fmt: skip
"""How pandas reads the files whose lines are no texts, by suffix"""


def check_texts(texts: str | Sequence[str], *, what: str = "texts") -> list[str]:
    """Return a list of non-empty strings; a single string becomes a list of one, and a column of Arrow a list."""
    if isinstance(texts, (pa.Array, pa.ChunkedArray)):
        texts = texts.to_pylist()
    if isinstance(texts, pa.Table) or getattr(texts, "ndim", 1) == 2:  # a data frame, whose items are names of columns
        raise SamplingError(
            f"{what}: expected a text or a list of texts, found {type(texts).__name__}. Give one column."
        )
    if not isinstance(texts, (str, Iterable)) or isinstance(texts, (bytes, Mapping, set, frozenset)):
        raise SamplingError(f"{what}: expected a text or a list of texts, found {type(texts).__name__}.")
    try:
        listed = [texts] if isinstance(texts, str) else list(texts)
    except Exception as error:
        raise SamplingError(f"{what}: expected a list of texts, found one that cannot be read ({error}).") from None
    if not listed:
        raise SamplingError(f"{what}: expected at least one text, found none.")
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise SamplingError(f"{what}[{index}]: expected a text, found {type(text).__name__} {show(text)}.")
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise SamplingError(
                f"{what}[{index}] {show(text)} contains an unpaired surrogate, which is not valid Unicode."
            )
        if not text.strip():
            raise SamplingError(f"{what}[{index}] is empty. Remove it, or add words.")
    return listed


def read_once(values: Any) -> Any:
    """Return a generator or another iterator as a list, and anything else unchanged: an iterator ends with its first
    reader.

    Raises:
        SamplingError: the iterator raised an exception.
    """
    if not isinstance(values, Iterator):
        return values
    try:
        return list(values)
    except Exception as error:
        reason = show(str(error), 100)
        raise SamplingError(f"expected texts or vectors, found an iterator that cannot be read ({reason}).") from None


def are_texts(values: Any) -> bool:
    """Return whether a value is a text, or a list or a column (of pandas, numpy or Arrow) that begins with one."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    listed = isinstance(values, Sequence) and not isinstance(values, (bytes, range))
    if isinstance(values, str) or not (listed or getattr(values, "ndim", 0) == 1):
        return isinstance(values, str)
    return isinstance(next(iter(values), None), str)


def read_texts(path: str | Path) -> list[str]:
    """Read the lines of a UTF-8 text file that are not blank; a table or JSON, whose lines are no texts, is refused."""
    file = InputFile(check_path(path), remedy="Give a UTF-8 file with one text per line.", error=SamplingError)
    file.check()
    if (reader := _READERS_OF_TABLES.get((suffix := Path(path).suffix).lower())) is not None:
        raise SamplingError(
            f"{show(str(path))}: expected one text per line, found a {suffix} file, whose lines are no texts. Extract "
            f"""a column, for example by `python -c "import pandas as pd; print(*pd.{reader}['COLUMN'].dropna().str"""
            """.split().str.join(' '), sep='\\n')" > texts.txt`."""
        )
    return check_texts([line.strip() for line in file.lines() if line.strip()], what=str(path))


def check_lengths(lengths: Sequence[int], texts: Sequence[str], *, max_length: int, what: str = "texts") -> None:
    """Refuse texts without tokens and texts of more tokens than the model reads."""
    for index, length in enumerate(lengths):
        if length == 0:
            raise SamplingError(
                f"{what}[{index}] {show(texts[index])} has no token in this model's vocabulary. Remove it."
            )
        if length > max_length:
            raise SamplingError(
                f"{what}[{index}] has {length} tokens, but the model reads at most {max_length} "
                f"(tokenizer.max_length): {show(texts[index], 60)}. Shorten or split it."
            )


def warn_of_unknown(ids: Sequence[Sequence[int]], texts: Sequence[str], *, unk_id: int, effect: str = READ) -> None:
    """Warn about texts with words outside the model's vocabulary; `effect` states what happens to these words."""
    if rows := [row for row, tokens in enumerate(ids) if unk_id in tokens]:
        log.warning(
            "%d of %d texts contain words outside this model's vocabulary; %s: %s",
            len(rows), len(texts), effect, ", ".join(show(texts[row], 60) for row in rows[:3]),
        )  # fmt: skip


def check_tokens(ids: Any, texts: Any, *, shape: DataShape) -> None:
    """Raise SamplingError unless each text has a row of 1..max_length ids of words, and there is at least one."""
    for name, value in (("ids", ids), ("texts", texts)):
        listed = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))
        if not listed or (isinstance(value, np.ndarray) and value.ndim == 0):
            raise SamplingError(f"{name}: expected a list with one entry for each text, found {show(value, 60)}.")
    if bad := [text for text in texts if not isinstance(text, str)]:
        raise SamplingError(f"texts: expected a list of texts, found {show(bad[0], 60)} among them.")
    if len(ids) != len(texts):
        raise SamplingError(f"expected one row of ids for each of {len(texts)} texts, found {len(ids)} rows.")
    if len(ids) == 0:
        raise SamplingError("ids: expected at least one row, found none.")
    for index, row in enumerate(ids):
        if not isinstance(row, (Sequence, np.ndarray)) or isinstance(row, (str, bytes)):
            raise SamplingError(f"ids[{index}]: expected a list of ids, found {show(row, 60)}.")
    check_lengths([len(row) for row in ids], texts, max_length=shape.max_length)
    for index, row in enumerate(ids):
        for token in row:
            if not _is_integer(token) or not 0 <= token < shape.vocab_size:
                raise SamplingError(f"ids[{index}]: expected ids in 0..{shape.vocab_size - 1}, found {show(token)}.")
            if token in (shape.pad_id, shape.mask_id):
                name = "[PAD]" if token == shape.pad_id else "[MASK]"
                raise SamplingError(f"ids[{index}]: expected ids of words, found {token}, which is {name}. Remove it.")


def check_integer(value: Any, *, name: str, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return an argument as an int; true, false, fractions and texts are refused.

    Raises:
        SamplingError: it is not an integer, below the minimum or above the maximum.
    """
    if not _is_integer(value):
        raise SamplingError(f"{name}: expected an integer, found {show(value, 60)}.")
    if minimum is not None and value < minimum:
        raise SamplingError(f"{name} must be at least {minimum}, found {show(int(value), 60)}.")
    if maximum is not None and value > maximum:
        raise SamplingError(f"{name} must be at most {maximum:,}, found {show(int(value), 60)}.")
    return int(value)


def check_optional(value: Any, *, name: str, maximum: int) -> int | None:
    """Return a count from 1 to the maximum, or None if it is not given."""
    return None if value is None else check_integer(value, name=name, minimum=1, maximum=maximum)


def check_seed(value: Any) -> int:
    """Return a seed: an integer from 0 to 2⁶³ − 1. Noise is a function of 64 bits, so others would repeat these."""
    return check_integer(value, name="seed", minimum=0, maximum=2**63 - 1)


def check_flag(value: Any, *, name: str) -> bool:
    """Return an argument that is true or false; numbers and texts are refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise SamplingError(f"{name}: expected True or False, found {show(value, 60)}.")
    return bool(value)


def check_fraction(value: Any, *, name: str) -> float:
    """Return a number between 0 and 1, both included."""
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    if not is_number or not 0 <= value <= 1:
        raise SamplingError(f"{name} must lie between 0 and 1, found {show(value, 60)}.")
    return float(value)


def check_path(path: Any) -> Path:
    """Return a path; everything but a string and a Path is refused."""
    if not isinstance(path, (str, Path)):
        raise SamplingError(f"expected a path, found {show(path, 60)}.")
    return Path(path)


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
        raise SamplingError(
            f"{name} must be one of {', '.join(choices)}, found {show(value, 60)}.{nearest(value, choices)}"
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_array(values: Any, *, what: str) -> npt.NDArray[Any]:
    """Convert real numbers (an array, a tensor or nested lists) to an array; everything else is refused."""
    try:
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
            values = (values.float() if values.is_floating_point() else values).numpy()
        if np.ma.is_masked(values):
            raise SamplingError(
                f"{what}: expected numbers alone, found {int(np.ma.getmaskarray(values).sum())} that are masked. "
                "Remove these vectors, or fill them."
            )
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1 and all(isinstance(row, (list, np.ndarray)) for row in array):
            array = np.asarray(list(array))  # a column of pandas or Arrow with a vector in each row
    except SamplingError:
        raise
    except ValueError:
        raise SamplingError(f"{what}: expected vectors, found rows of unequal length.") from None
    except Exception as error:
        reason = show(str(error), 100)
        raise SamplingError(f"{what}: expected an array, found {type(values).__name__} ({reason}).") from None
    if array.dtype == object or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise SamplingError(
            f"{what}: expected real numbers, found {type(values).__name__} with values of dtype "
            f"{shorten(str(array.dtype), 60)}. Give an array of numbers or one column of vectors."
        )
    return array


def check_latents(latents: Any, *, dim: int, what: str = "latents") -> Floats:
    """Convert latents to finite float32 (n, dim); a single vector becomes one row."""
    array = check_array(latents, what=what)
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
            f"{len(array)} vectors (rows {show(rows[:8].tolist(), 60)}). Remove these vectors."
        )
    return array


def read_npy(path: str | Path, *, dim: int) -> Floats:
    """Read and check the vectors of a `.npy` file; pickled objects are never loaded."""
    remedy = "Give a .npy file of vectors, a plain array that numpy.save wrote."
    array = InputFile(check_path(path), remedy=remedy, error=SamplingError, name=show(str(path))).array()
    return check_latents(np.array(array), dim=dim, what=str(path))
