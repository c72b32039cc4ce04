"""Quarantine: the rows that are not used, with their location and the reason."""

from typing import Any, NamedTuple

import pyarrow as pa

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)
"""Columns of the quarantine store of ingestion"""
EXCERPT_CHARACTERS = 160
DAMAGE = (
    "encoding", "nul", "oversized", "broken_json", "broken_csv", "missing_column", "wrong_type", "missing_file",
    "broken_file", "unsafe_path", "unreadable_file", "filter_error", "no_vector", "wrong_dimension", "not_finite",
)  # fmt: skip
"""Reasons that indicate a damaged or misread source; they count against `max_bad_fraction`."""


class BadRow(NamedTuple):
    """A row that goes to quarantine: its location, the reason, a detail in words and the beginning of its content."""

    file: str
    line: int
    reason: str
    detail: str
    excerpt: str = ""


class Unusable(Exception):
    """Raised for a row, or a part of one, that goes to quarantine; arguments as in `BadRow`."""

    def __init__(self, reason: str, detail: str, content: Any = "") -> None:
        super().__init__(reason, detail, content)
        self.reason, self.detail, self.content = reason, detail, content

    def at(self, file: str, line: int) -> BadRow:
        """Return the damaged row at a location."""
        return BadRow(file, line, self.reason, self.detail, excerpt(self.content))


def excerpt(value: Any) -> str:
    """Return the beginning of a value, without characters that a store or a terminal refuses."""
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
