"""Interface and registry of sources, the rows that they yield, and sources with named columns."""

import dataclasses
import difflib
import glob
import logging
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from mm_ldlm.core import (
    Kinds,
    PositiveFloat,
    PositiveInt,
    SourceError,
    UnsafePathError,
    bounded,
    config,
    nearest,
    reason_of,
    refuse_if,
    setting,
    show,
)
from mm_ldlm.core.files import InputFile, inside, problem
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable, excerpt, printable
from mm_ldlm.data.corpus.record import GROUP, LABEL, PAIR, is_storable, label_text
from mm_ldlm.data.corpus.splits import SPLITS, Split
from mm_ldlm.data.store.fingerprint import file_sha256

log = logging.getLogger(__name__)

SPLIT_WORDS: dict[str, str] = {
    "train": "train", "validation": "validation", "test": "test",
    "valid": "validation", "dev": "validation", "val": "validation",
}  # fmt: skip
"""Names of splits in sources → names used here"""
AUTO = "auto"
"""Value of `delimiter` for which the delimiter is recognised"""
Delimiter = Annotated[str, bounded(pattern=r"^([\s\S]|auto)$")]
Header = bool | tuple[str, ...]
HELD_OUT = "held_out"
"""Split of rows that the keyed hash divides between validation and test"""


class Row(NamedTuple):
    """One text of a source, not yet normalised.

    Attributes:
        file, line: path or data set, and number of the line or row, counted from 1.
        split: split of the row, if the source has its own splits.
        meta: what the record keeps besides the text; values that JSON can represent.
        pair: second text of a pair.
        describes: digest of the object that the text describes, such as an image; `meta` has a reference to it.
        group: value that determines the split instead of the text, such as the author, or the document of a piece.
        vector: the vector of the text as the source contains it: a list of numbers, an array, or text.
    """

    text: str
    file: str
    line: int
    split: Annotated[str, bounded(pattern=rf"^({'|'.join(SPLITS)}|{HELD_OUT})$")] | None = None
    meta: Mapping[str, Any] = {}
    pair: str | None = None
    describes: str | None = None
    vector: Any = None
    group: str | None = None


@dataclasses.dataclass(frozen=True)
class Opening:
    """Inputs of a source besides its own keys.

    Attributes:
        seed: seed of the run, for sources that generate their texts.
        max_row_bytes: largest size of a line, a document or a cell.
        normalise: maps a text to the form in which it is stored.
    """

    seed: int
    max_row_bytes: int
    normalise: Callable[[str], str] = str


@config
class SourceConfig:
    """Base class and interface of the kinds of sources, with the keys that all of them have.

    A kind that reads files defines `read`; any other kind defines `rows`, which reads nothing before the first row is
    requested, and `describe`.

    Attributes:
        name: name in the records and in the report; the kind by default.
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
        """Yield the rows in a reproducible order; by default file by file."""
        for path in self.find():
            yield from self.read(path, opening)

    def describe(self, opening: Opening) -> Any:
        """Return plain JSON that changes with the content; log the number of files, and of those that a glob misses."""
        found = self.find()
        if len(found) > 1:
            log.info("source '%s': %d files", self.label, len(found))
        for path in map(Path, self.paths):
            if (
                glob.has_magic(path.name)
                and "**" not in path.parts
                and (number := len(glob.glob(str(path.parent / "*" / path.name))))
            ):
                log.warning(
                    "source '%s': %s leaves out at least %d files in subfolders. To read them too: %s",
                    self.label, path, number, setting("ingestion.path", str(path.parent / "**" / path.name)),
                )  # fmt: skip
        return describe_files(found)

    def as_kind(self, cls: Any, **changed: Any) -> Any:
        """Make a source of another kind with the keys that both have; `changed` replaces some of them."""
        keys = {each.name for each in dataclasses.fields(cls)} - {"kind"}
        return cls(**{key: getattr(self, key) for key in keys if hasattr(self, key)} | changed)

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
    def meta_keys(self) -> set[str] | None:
        """Keys of the `meta` of its records; None if they are not known before the rows are read."""
        return None

    @property
    def paths(self) -> list[str]:
        """Files, folders and globs that the key `path` names."""
        return [path for key, path in self.files if key == "path"]

    @property
    def has_vectors(self) -> bool:
        """Whether the source contains a vector for each text."""
        return any(getattr(self, key, None) is not None for key in ("vectors", "vector_column"))

    def find(self) -> list[Path]:
        """List the files that the key `path` names, in its order, each once; the files of a glob are sorted.

        Raises:
            SourceError: a file is missing or is not a regular file, or a glob matches nothing.
        """
        found: list[Path] = []
        for pattern in self.paths:
            matches = [pattern]
            if glob.has_magic(pattern) and not os.path.lexists(pattern):
                matches = [each for each in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(each)]
            found += [self.file(path).check() for path in matches or [pattern]]
        return list(dict.fromkeys(found))

    def file(self, path: str | Path, *, key: str = "path") -> InputFile:
        """Return the `InputFile` of a path of the source; its errors name the key to correct."""
        remedy = f"Correct the '{key}' of source '{self.label}', or put the file there (relative to {Path.cwd()})."
        if os.path.isdir(path):
            suffixes = [each.suffix for each in Path(path).iterdir() if each.is_file()] or [".txt"]
            suffix = statistics.mode(suffixes)
            named = suffix if 2 * suffixes.count(suffix) >= len(suffixes) else ""  # news.en-00001-of-00100, …
            remedy = f"Name its files: {setting('ingestion.path', f'{path}/*{named}')}."
        return InputFile(path, remedy=remedy, error=SourceError)


def describe_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Describe each file by name, size and sha256, without its location or time.

    Raises:
        SourceError: a file cannot be read.
    """
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            found.append({"name": printable(path.name), "bytes": path.stat().st_size, "sha256": file_sha256(path)})
        except OSError as error:
            raise damaged(path, 0, error) from None
    return found


def damaged(path: Path, number: int, error: Exception) -> SourceError:
    """Return the error for a truncated or unreadable file; continuing would lose rows silently."""
    return SourceError(
        f"{path}: damaged, or not of the type that its name suggests, after line {number} ({reason_of(error)}). Fetch "
        "the file again or take it out of the source's 'path'."
    )


def read_named(folder: Path, name: str, most: int) -> tuple[Path, bytes]:
    """Return the path and at most `most` bytes of a file in a folder; a row names the file.

    Raises:
        Unusable: it is missing, not a regular file or not readable, or its name leads out of the folder.
    """
    try:
        path = inside(folder, name)
        if (fault := problem(path)) is not None:
            raise Unusable("missing_file", f"{name!r:.200} {fault}")
        with open(path, "rb") as file:
            return path, file.read(most)
    except UnsafePathError:
        raise Unusable("unsafe_path", f"{name!a:.200} is not the name of a file inside the folder") from None
    except OSError as error:
        raise Unusable("unreadable_file", f"{name!r:.200}: {error}") from None


# -- named columns -----------------------------------------------------------------------------------------------------


@config
class ColumnsConfig(SourceConfig):
    """A source whose rows have named columns.

    Attributes:
        columns: columns that contain a text; each text becomes a separate row. Without a header: "0", "1", ...
        group_column: a column whose value determines the split, such as a page or an author: rows with the same value
            are in one split. Without it, the texts of one row are a group.
        meta_columns: columns kept as JSON in `meta`.
        label_column: a column that contains the label of the text, kept in `meta` under "label". A row without a label
            is quarantined.
        labels: accepted labels; a row with another label is quarantined. Without it, every label is accepted.
        pair_column: a column that contains the second text of a pair, kept in `meta` under "pair".
        vector_column: a column that contains the vector of the text (`encoder.kind: precomputed`): a list of numbers.
    """

    columns: Annotated[tuple[str, ...], bounded(min_length=1)] = ("text",)
    group_column: str | None = None
    meta_columns: tuple[str, ...] = ()
    label_column: str | None = None
    labels: tuple[str, ...] | None = None
    pair_column: str | None = None
    vector_column: str | None = None

    def __post_init__(self) -> None:
        refuse_if(
            self.labels is not None and self.label_column is None,
            "'labels' needs 'label_column'",
            "labels",
            "label_column",
        )
        one = len(self.columns) == 1
        refuse_if(
            (self.pair_column and not one) or (self.vector_column and (self.pair_column or not one)),
            "a vector belongs to one text, and a pair consists of two: expected one of 'columns' with "
            f"'pair_column' or with 'vector_column', found {list(self.columns)}",
            "columns",
        )

    @property
    def required(self) -> list[str]:
        """Columns that every row must have: all columns that are read, except those that are only kept in `meta`."""
        single = ("group_column", "label_column", "pair_column", "vector_column", "split_column")
        return [*self.columns, *filter(None, (getattr(self, key, None) for key in single))]

    @property
    def read_columns(self) -> list[str]:
        """All columns that are read, each once."""
        return list(dict.fromkeys([*self.columns, *self.meta_columns, *self.required]))

    @property
    def meta_keys(self) -> set[str] | None:
        named = {LABEL: self.label_column, GROUP: self.group_column, PAIR: self.pair_column}
        return {*self.meta_columns, *(key for key, column in named.items() if column is not None)}

    def present(self, names: Sequence[str], file: str) -> list[str] | None:
        """Return the columns to read from a table, or None if a required one is missing; the message then lists all.

        Raises:
            SourceError: a column that is read occurs twice.
        """
        for name in self.read_columns:
            if (count := list(names).count(name)) > 1:
                raise SourceError(f"{file}: expected one column '{name}', found {count}. Rename or remove the others.")
        return None if {*self.required} - {*names} else [name for name in self.read_columns if name in names]

    def rows_of(
        self, fields: Mapping[str, Any], *, file: str, line: int, split: str | None = None
    ) -> Iterator[Row | BadRow]:
        """Yield a row for each text column. A cell that could not be read is an `Unusable` instead of its value."""
        for column in self.columns:
            try:
                yield self._row(fields, column, Row("", file, line, split))
            except Unusable as error:
                yield BadRow(file, line, error.reason, error.detail, excerpt(error.content or dict(fields)))

    def _row(self, fields: Mapping[str, Any], column: str, row: Row) -> Row:
        text, pair, vector = self._text(fields, column, "text_column"), None, None
        meta = {name: self._cell(fields, name) for name in self.meta_columns if name in fields}
        if self.label_column is not None:
            meta[LABEL] = self._label(fields, "label_column", "no_label", self.labels)
        if self.pair_column is not None:
            pair = self._text(fields, self.pair_column)
        if self.vector_column is not None:
            vector = self._cell(fields, self.vector_column, "vector_column")
        group = None
        if self.group_column is not None:
            group = meta[GROUP] = self._label(fields, "group_column", "no_group", None)
        elif len(self.columns) > 1:
            group = "\n".join(str(fields.get(name)) for name in self.columns)
        split = row.split or self.split_of(fields)
        return row._replace(text=text, split=split, meta=meta, pair=pair, vector=vector, group=group)

    def split_of(self, fields: Mapping[str, Any]) -> str | None:
        """Return the split of a row; None for the hash split, or if the source divides its rows otherwise."""
        return None

    def remedy(self, fields: Mapping[str, Any], name: str, option: str | None) -> str:
        """Return the remedy for a missing column.

        Args:
            fields: columns and values of the first row.
            option: the short form that names the column; None if there is none.
        """
        vector = option == "vector_column"
        others = [
            each
            for each, value in list(fields.items())[:12]
            if each not in self.read_columns
            and (not vector or isinstance(value, list) or str(value).strip()[:1] in ("[", "("))
        ]
        if not (option and others):
            return "None of them contains lists of numbers." if vector else nearest(name, fields).strip()
        alike = max(others, key=lambda each: difflib.SequenceMatcher(None, each.lower(), name.lower()).ratio())
        return f"Choose one of them: {setting(f'ingestion.{option}', alike[:40])}."

    def _cell(self, fields: Mapping[str, Any], name: str, option: str | None = None) -> Any:
        if name not in fields:
            found = ", ".join(list(fields)[:12])[:100] or "nothing"
            remedy = self.remedy(fields, name, option)
            raise Unusable("missing_column", f"no column '{name}'. Found {found}. {remedy}".strip())
        found = fields[name]
        if isinstance(found, Unusable):
            raise Unusable(found.reason, f"column '{name}' contains {found.detail}", found.content)
        return found

    def _text(self, fields: Mapping[str, Any], name: str, option: str | None = None) -> str:
        value = self._cell(fields, name, option)
        if not isinstance(value, str | None):
            raise Unusable("wrong_type", f"column '{name}' contains {type(value).__name__}, expected text", value)
        return value or ""

    def _label(self, fields: Mapping[str, Any], key: str, missing: str, known: Sequence[str] | None) -> str:
        column = getattr(self, key)
        value = self._cell(fields, column, key)
        label = label_text(value)
        if label is None or not is_storable(label):
            reason = missing if value is None or not str(value).strip() else "wrong_type"
            raise Unusable(reason, f"column '{column}' contains {show(value, 80)}, expected text or a whole number")
        if known is not None and label not in known:
            raise Unusable("unknown_label", f"label {label!r:.80}, expected one of {', '.join(known)}")
        return label


@config
class TableFilesConfig(ColumnsConfig):
    """Files with named columns.

    Attributes:
        path: a file, a glob, or a list of files and globs; relative to the working directory.
        split: the split of every row of this source, instead of the hash split.
        split_column: a column that contains train, validation or test.
    """

    path: str | tuple[str, ...]
    split: Split | None = None
    split_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(self.split and self.split_column, "give 'split' or 'split_column', not both", "split", "split_column")

    def split_of(self, fields: Mapping[str, Any]) -> str | None:
        if self.split_column is None:
            return self.split
        word = self._text(fields, self.split_column)
        if word.lower() not in SPLIT_WORDS:
            raise Unusable(
                "wrong_type",
                f"column '{self.split_column}' contains {word!r:.80}, expected one of {', '.join(SPLIT_WORDS)}",
            )
        return SPLIT_WORDS[word.lower()]


SOURCES = Kinds(
    what="source",
    core={
        "text": "mm_ldlm.data.corpus.sources.lines:TextConfig",
        "jsonl": "mm_ldlm.data.corpus.sources.jsonl:JsonlConfig",
        "table": "mm_ldlm.data.corpus.sources.table:TableConfig",
    },
    group="sources",
    interface=SourceConfig,
)
"""Sources that `ingestion.sources` can choose"""
