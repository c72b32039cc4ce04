"""The source protocol: rows and bad rows, each with its location."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

EXCERPT_CHARACTERS = 160

DAMAGE = (
    "encoding", "nul", "oversized", "broken_json", "broken_csv", "missing_column", "wrong_type", "missing_file",
    "broken_image", "unsafe_path", "unreadable_file", "filter_error", "no_vector", "wrong_dimension", "not_finite",
    "other_tokens",
)  # fmt: skip
"""Reasons that indicate a damaged or misread source; they count against `max_bad_fraction`."""


HELD_OUT = "held_out"
"""Split of rows that the keyed hash divides between validation and test."""


class StoredTokens(NamedTuple):
    """Tokens that a source contains for a text: ids of the whole vocabulary (L,), without special tokens at the ends.

    `decoded` is true if the text itself was decoded from them.
    """

    ids: npt.NDArray[np.int32]
    decoded: bool


class Row(NamedTuple):
    """One text of a source, not yet normalised.

    `file` is the path or data set, `line` counts lines or rows from 1, `split` (or `HELD_OUT`) is set where the source
    has its own splits, `meta` is a JSON object as text, and `pair` is the second text of a pair. `image` is the digest
    of the row's image (`corpus.images.digest`); the reference to the image is in `meta`. `vector` (d,) is the vector of
    the text, as the source contains it; `tokens` are compared with those of the configured tokenizer.
    """

    text: str
    file: str
    line: int
    split: str | None = None
    meta: str | None = None
    pair: str | None = None
    image: str | None = None
    vector: npt.NDArray[Any] | None = None
    tokens: StoredTokens | None = None


class BadRow(NamedTuple):
    """A row that cannot be read: its location, the reason (one of `DAMAGE`), a detail in words and an excerpt."""

    file: str
    line: int
    reason: str
    detail: str
    excerpt: str = ""


class Source(Protocol):
    """Yields rows in a reproducible order and describes its content."""

    def rows(self) -> Iterator[Row | BadRow]: ...

    def describe(self) -> Any:
        """Return plain JSON that changes when the content changes (file digests, revisions)."""


def excerpt(value: Any) -> str:
    """Return the beginning of a value in printable form."""
    if isinstance(value, bytes):
        value = value[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace")
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError, OverflowError) as error:  # deep nesting, or numbers and dates without a form
        text = f"{type(value).__name__} ({error})"
    return printable(text[:EXCERPT_CHARACTERS])


def printable(text: str) -> str:
    """Escape lone surrogates and NUL, so that every store and terminal accepts the text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
