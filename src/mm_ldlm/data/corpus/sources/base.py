"""The kinds of sources, and the rows and damaged rows that a source yields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mm_ldlm.core.config import PositiveFloat, PositiveInt, config
from mm_ldlm.core.kinds import Kinds

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer

EXCERPT_CHARACTERS = 160
DAMAGE = (
    "encoding", "nul", "oversized", "broken_json", "broken_csv", "missing_column", "wrong_type", "missing_file",
    "broken_image", "unsafe_path", "unreadable_file", "filter_error", "no_vector", "wrong_dimension", "not_finite",
    "other_tokens",
)  # fmt: skip
"""Reasons that indicate a damaged or misread source; they count against `max_bad_fraction`."""
SPLIT_WORDS: dict[str, str] = {
    "train": "train", "validation": "validation", "test": "test",
    "valid": "validation", "dev": "validation", "val": "validation",
}  # fmt: skip
"""Names of splits in sources → names used here"""
HELD_OUT = "held_out"
"""Split of rows that the keyed hash divides between validation and test"""


class Row(NamedTuple):
    """One text of a source, not yet normalised.

    Attributes:
        file, line: path or data set, and number of the line or row from 1.
        split: set where the source has its own splits; may be `HELD_OUT`.
        meta: what the record keeps besides the text; values that JSON can represent.
        pair: second text of a pair.
        describes: digest of what the text describes, such as an image; `meta` has a reference to it.
        vector: the vector of the text as the source contains it: a list of numbers, an array, or text.
    """

    text: str
    file: str
    line: int
    split: str | None = None
    meta: Mapping[str, Any] = {}
    pair: str | None = None
    describes: str | None = None
    vector: Any = None


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


class Source(Protocol):
    """An opened source; it yields rows in a reproducible order."""

    def rows(self) -> Iterator[Row | BadRow]: ...

    def describe(self) -> Any:
        """Return plain JSON that changes when the content changes (file digests, revisions)."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """Everything that a source may need besides its own keys.

    Attributes:
        seed: seed of the run, for sources that generate their texts.
        max_row_bytes: bound on a line, a document and a cell.
        normalise: maps a text to the form in which it is stored.
        tokenizer: tokenizer of the records, for sources that contain tokens.
    """

    seed: int
    max_row_bytes: int
    normalise: Callable[[str], str] = str
    tokenizer: TextTokenizer | None = None


@config
class SourceConfig:
    """Keys of every kind of source; the base class of the kinds, and their interface.

    Attributes:
        name: the name used in the records and in the report; the kind by default.
        max_samples: maximum number of rows read from this source, bad rows included.
        weight: fraction of this source in the mixture; either all sources have a weight or none.
    """

    kind: str
    name: str | None = None
    max_samples: PositiveInt | None = None
    weight: PositiveFloat | None = None

    def open(self, opening: Opening) -> Source:
        """Return the reader, without reading anything yet."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name of the source in records and reports."""
        return self.name or self.kind

    @property
    def paths(self) -> tuple[str, ...]:
        """Files, folders and globs that the key `path` names."""
        path = getattr(self, "path", None) or ()
        return (path,) if isinstance(path, str) else tuple(path)

    @property
    def place(self) -> str:
        """Where the source is read, for messages."""
        return ", ".join(self.paths)

    @property
    def files(self) -> list[tuple[str, str]]:
        """(key, path) of every file, folder and glob that the configuration names."""
        return [("path", path) for path in self.paths]

    @property
    def has_vectors(self) -> bool:
        """Whether the source contains a vector for each text."""
        return False


SOURCES = Kinds(
    what="source",
    core={
        "text": "mm_ldlm.data.corpus.sources.text:TextConfig",
        "jsonl": "mm_ldlm.data.corpus.sources.delimited:JsonlConfig",
        "csv": "mm_ldlm.data.corpus.sources.delimited:CsvConfig",
        "parquet": "mm_ldlm.data.corpus.sources.columnar:ParquetConfig",
        "arrow": "mm_ldlm.data.corpus.sources.columnar:ArrowConfig",
        "disk": "mm_ldlm.data.corpus.sources.data_sets:DiskConfig",
        "hub": "mm_ldlm.data.corpus.sources.data_sets:HubConfig",
        "table": "mm_ldlm.data.corpus.sources.table:TableConfig",
    },
    group="sources",
    interface=SourceConfig,
)
"""Sources that `ingestion.sources` can choose"""
