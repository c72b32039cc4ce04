"""The kinds of sources, and the rows and damaged rows that a source yields."""

import dataclasses
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mm_ldlm.core import Kinds, PositiveFloat, PositiveInt, SourceError, config, reason_of
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.store.fingerprint import file_sha256

EXCERPT_CHARACTERS = 160
DAMAGE = (
    "encoding", "nul", "oversized", "broken_json", "broken_csv", "missing_column", "wrong_type", "missing_file",
    "broken_file", "unsafe_path", "unreadable_file", "filter_error", "no_vector", "wrong_dimension", "not_finite",
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


@dataclasses.dataclass(frozen=True)
class Opening:
    """Everything that a source may need besides its own keys.

    Attributes:
        seed: seed of the run, for sources that generate their texts.
        max_row_bytes: bound on a line, a document and a cell.
        normalise: maps a text to the form in which it is stored.
        tokenizer: tokenizer of the records (`TextTokenizer`), for sources that contain tokens.
    """

    seed: int
    max_row_bytes: int
    normalise: Callable[[str], str] = str
    tokenizer: Any = None


@config
class SourceConfig:
    """Keys of every kind of source; the base class of the kinds, and their interface.

    A kind that reads files defines `read`; any other kind defines `rows`, which reads nothing before the first row is
    asked for, and `describe`.

    Attributes:
        name: the name used in the records and in the report; the kind by default.
        max_samples: maximum number of rows read from this source, bad rows included.
        weight: fraction of this source in the mixture; either all sources have a weight or none.
    """

    kind: str
    name: str | None = None
    max_samples: PositiveInt | None = None
    weight: PositiveFloat | None = None

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        """Yield the rows of one file, in a reproducible order."""
        raise NotImplementedError

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        """Yield the rows in a reproducible order: here those of all files, one file after another."""
        for path in self.find():
            yield from self.read(path, opening)

    def describe(self, opening: Opening) -> Any:
        """Return plain JSON that changes when the content changes."""
        return describe_files(self.find())

    @property
    def label(self) -> str:
        """Name of the source in records and reports."""
        return self.name or self.kind

    @property
    def files(self) -> list[tuple[str, str]]:
        """(key, path) of every file, folder and glob that the configuration names."""
        path = getattr(self, "path", None) or ()
        return [("path", each) for each in ((path,) if isinstance(path, str) else path)]

    @property
    def paths(self) -> list[str]:
        """Files, folders and globs that the key `path` names."""
        return [path for key, path in self.files if key == "path"]

    @property
    def has_vectors(self) -> bool:
        """Whether the source contains a vector for each text."""
        return any(getattr(self, key, None) is not None for key in ("vectors", "vector_column"))

    def find(self, key: str = "path") -> list[Path]:
        """List the files that a key names, in that order, each once; the files of a glob are sorted.

        Raises:
            SourceError: a file is missing or is not a regular file, or a glob matches nothing.
        """
        found: list[Path] = []
        for pattern in [path for name, path in self.files if name == key]:
            matches = [pattern]
            if glob.has_magic(pattern) and not os.path.lexists(pattern):
                matches = [each for each in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(each)]
            found += [self.file(path, key=key).check() for path in matches or [pattern]]
        return list(dict.fromkeys(found))

    def file(self, path: str | Path, *, key: str = "path") -> InputFile:
        """Return the door to a file of the source."""
        remedy = f"Correct the '{key}' of source '{self.label}', or put the file there (looked from {Path.cwd()})."
        return InputFile(path, remedy=remedy, error=SourceError)


def describe_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Describe each file by name, size and sha256, without its location or time."""
    return [{"name": printable(p.name), "bytes": p.stat().st_size, "sha256": file_sha256(p)} for p in paths]


def damaged(path: Path, number: int, error: Exception) -> SourceError:
    """Return the error for a truncated or unreadable file; continuing would lose rows silently."""
    return SourceError(
        f"{path}: damaged, or not of the type that its name suggests, after line {number} ({reason_of(error)}). Fetch "
        "the file again or take it out of the source's 'path'."
    )


SOURCES = Kinds(
    what="source",
    core={
        "text": "mm_ldlm.data.corpus.sources.lines:TextConfig",
        "jsonl": "mm_ldlm.data.corpus.sources.delimited:JsonlConfig",
        "csv": "mm_ldlm.data.corpus.sources.delimited:CsvConfig",
        "parquet": "mm_ldlm.data.corpus.sources.columnar:ParquetConfig",
        "arrow": "mm_ldlm.data.corpus.sources.columnar:ArrowConfig",
        "disk": "mm_ldlm.data.corpus.sources.columnar:DiskConfig",
        "hub": "mm_ldlm.data.corpus.sources.fields:HubConfig",
        "table": "mm_ldlm.data.corpus.sources.fields:TableConfig",
    },
    group="sources",
    interface=SourceConfig,
)
"""Sources that `ingestion.sources` can choose"""
