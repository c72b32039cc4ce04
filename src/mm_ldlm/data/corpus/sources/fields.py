"""Named columns: the rows that they become, the keys of sources that read them, and the kinds `table` and `hub`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from mm_ldlm.core import InvalidValue, SourceError, bounded, config, nearest, reason_of
from mm_ldlm.data.corpus.record import LABEL, is_storable, label_text
from mm_ldlm.data.corpus.sources.base import (
    SOURCES,
    SPLIT_WORDS,
    BadRow,
    Opening,
    Row,
    SourceConfig,
    Unusable,
    excerpt,
)
from mm_ldlm.data.corpus.splits import Split

Splits = dict[str, Literal["train", "validation", "test", "hash"]]
_KINDS = {
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".txt": "text",
}  # fmt: skip
"""Kind of the source for a suffix; a folder is one that `Dataset.save_to_disk` wrote"""


@config
class ColumnsConfig(SourceConfig):
    """A source whose rows have named columns.

    Attributes:
        columns: columns that contain a text; each becomes a separate row. Without a header: "0", "1", ...
        meta_columns: columns kept as JSON in `meta`.
        label_column: a column that contains the label of the text, kept in `meta` under "label". A row without a label
            is quarantined.
        labels: the labels that are accepted; a row with another one is quarantined. Without it every label is accepted.
        pair_column: a column that contains the second text of a pair, kept in `meta` under "pair".
        vector_column: a column that contains the vector of the text (`encoder.kind: precomputed`): a list of numbers.
    """

    columns: Annotated[tuple[str, ...], bounded(min_length=1)] = ("text",)
    meta_columns: tuple[str, ...] = ()
    label_column: str | None = None
    labels: tuple[str, ...] | None = None
    pair_column: str | None = None
    vector_column: str | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.label_column is None:
            raise InvalidValue("'labels' needs 'label_column'", "labels", "label_column")
        one = len(self.columns) == 1
        if (self.pair_column and not one) or (self.vector_column and (self.pair_column or not one)):
            raise InvalidValue(
                "a vector belongs to one text, and a pair consists of two: expected one of 'columns' with "
                f"'pair_column' or with 'vector_column', found {list(self.columns)}",
                "columns",
            )

    @property
    def read_columns(self) -> list[str]:
        """All columns that are read, each once."""
        single = (self.label_column, self.pair_column, self.vector_column)
        return list(dict.fromkeys([*self.columns, *self.meta_columns, *(name for name in single if name)]))

    def present(self, names: Sequence[str], file: str) -> list[str] | None:
        """Return the columns that are read and that a table has; None for all, if a text is missing, for the message.

        Raises:
            SourceError: a column that is read occurs twice.
        """
        for name in self.read_columns:
            if (count := list(names).count(name)) > 1:
                raise SourceError(
                    f"{file}: expected one column '{name}', found {count}. Rename or remove the others, because the "
                    "source would have to choose one of them."
                )
        return None if {*self.columns} - {*names} else [name for name in self.read_columns if name in names]

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
        text, pair, vector = _text(fields, column), None, None
        meta = {name: _cell(fields, name) for name in self.meta_columns if name in fields}
        if self.label_column is not None:
            meta[LABEL] = self._label(_cell(fields, self.label_column), self.label_column)
        if self.pair_column is not None:
            pair = _text(fields, self.pair_column)
        if self.vector_column is not None:
            vector = _cell(fields, self.vector_column)
        split = row.split or self.split_of(fields)
        return row._replace(text=text, split=split, meta=meta, pair=pair, vector=vector)

    def split_of(self, fields: Mapping[str, Any]) -> str | None:
        """Return the split of a row; None for the hash split, or where the source divides its rows otherwise."""
        return None

    def _label(self, value: Any, column: str) -> str:
        if value is None or (isinstance(value, str) and not value.strip()):
            raise Unusable("no_label", f"column '{column}' is empty")
        label = label_text(value)
        if label is None or not is_storable(label):
            detail = f"column '{column}' contains {type(value).__name__}, expected a label: text or a whole number"
            raise Unusable("wrong_type", detail)
        if self.labels is not None and label not in self.labels:
            raise Unusable("unknown_label", f"label {label!r:.80}, expected one of {', '.join(self.labels)}")
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
        if self.split and self.split_column:
            raise InvalidValue("give 'split' or 'split_column', not both", "split", "split_column")

    @property
    def read_columns(self) -> list[str]:
        return list(dict.fromkeys([*super().read_columns, *([self.split_column] if self.split_column else [])]))

    def split_of(self, fields: Mapping[str, Any]) -> str | None:
        if self.split_column is None:
            return self.split
        word = _text(fields, self.split_column)
        if word.lower() not in SPLIT_WORDS:
            detail = f"column '{self.split_column}' contains {word!r:.80}, expected one of {', '.join(SPLIT_WORDS)}"
            raise Unusable("wrong_type", detail)
        return SPLIT_WORDS[word.lower()]


@config
class TableConfig(SourceConfig):
    """Files and folders whose format follows from their names, with the same columns.

    Attributes:
        path: a file, a folder of a saved data set, a glob, or a list of them; relative to the working directory.
        columns: columns that contain a text; each becomes a separate row.
        meta_columns: columns kept as JSON in `meta`.
        vector_column: a column that contains the vector of the text (`encoder.kind: precomputed`): a list of numbers;
            the vectors of a text file are in the .npy file of the same name.
    """

    kind: str = "table"
    path: str | tuple[str, ...]
    columns: tuple[str, ...] = ("text",)
    meta_columns: tuple[str, ...] = ()
    vector_column: str | None = None

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        for path in self.paths:
            yield from self._kind_of(path).rows(opening)

    def describe(self, opening: Opening) -> Any:
        return [self._kind_of(path).describe(opening) for path in self.paths]

    def _kind_of(self, path: str) -> Any:
        suffix = Path(path.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
        kind = "disk" if os.path.isdir(path) else _KINDS.get(suffix)
        if kind is None:
            expected = f"one of the suffixes {', '.join(_KINDS)}, or the folder of a saved data set"
            self.file(path).refuse(expected, f"the suffix '{suffix}'")
        keys: dict[str, Any] = {"name": self.label, "path": path}
        if kind == "text":
            keys["vectors"] = "beside" if self.has_vectors else None
        else:
            keys |= {name: getattr(self, name) for name in ("columns", "meta_columns", "vector_column")}
        if suffix == ".tsv":
            keys["delimiter"] = "\t"
        return SOURCES.load(kind)(**keys)


@config
class HubConfig(ColumnsConfig):
    """A data set on the hub.

    Attributes:
        dataset: its name.
        subset: its configuration (`name=` of `load_dataset`).
        revision: commit or tag.
        streaming: read while downloading; false downloads into the Hugging Face cache first.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split).
    """

    kind: str = "hub"
    dataset: Annotated[str, bounded(min_length=1)]
    subset: str | None = None
    revision: str | None = None
    streaming: bool = True
    splits: Annotated[Splits, bounded(min_length=1)]

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        import datasets

        for name, split in held_out_first(self.splits):
            number, place = 0, f"{self.dataset}[{name}]"
            try:
                loaded = datasets.load_dataset(
                    self.dataset, self.subset, split=name, revision=self.revision, streaming=self.streaming
                )
                for number, fields in enumerate(loaded, start=1):
                    yield from self.rows_of(fields, file=place, line=number, split=split)
            except Exception as error:  # the hub, the network, the file format and the library raise many types
                raise SourceError(
                    f"source '{self.label}': {place} could not be read after {number} rows ({reason_of(error)}). "
                    "Offline: save it on another machine with Dataset.save_to_disk, copy the folder here and use kind "
                    "'disk'. An interrupted run continues where it stopped."
                ) from error

    def describe(self, opening: Opening) -> Any:
        return {"dataset": self.dataset, "revision": self.revision}


def held_out_first(splits: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return (name in the source, split of its rows) in the order in which they are read; None is the hash split.

    A text that occurs in two splits stays in the one read first, so that it is removed from the training split and not
    from the test split.
    """
    order = ("test", "validation", "hash", "train")
    named = sorted(splits.items(), key=lambda item: order.index(item[1]))
    return [(name, None if split == "hash" else split) for name, split in named]


def _cell(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        there = list(fields)[:12]
        hint, found = nearest(name, there), ", ".join(there)[:100] or "nothing"
        raise Unusable("missing_column", f"no column '{name}'.{hint} Found {found}.")
    found = fields[name]
    if isinstance(found, Unusable):
        raise Unusable(found.reason, f"column '{name}' contains {found.detail}", found.content)
    return found


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = _cell(fields, name)
    if not isinstance(value, str):
        raise Unusable("wrong_type", f"column '{name}' contains {type(value).__name__}, expected text", value)
    return value
