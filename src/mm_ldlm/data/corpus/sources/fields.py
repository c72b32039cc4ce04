"""Named columns: the keys of sources that read them, and the rows that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mm_ldlm.core.config import InvalidValue, config
from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.messages import nearest
from mm_ldlm.data.corpus.record import LABEL, is_storable, label_text
from mm_ldlm.data.corpus.sources.base import (
    SPLIT_WORDS,
    BadRow,
    Opening,
    Row,
    Source,
    SourceConfig,
    Unusable,
    excerpt,
)
from mm_ldlm.data.corpus.sources.files import FileSource
from mm_ldlm.data.corpus.splits import Split


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

    columns: tuple[str, ...] = ("text",)
    meta_columns: tuple[str, ...] = ()
    label_column: str | None = None
    labels: tuple[str, ...] | None = None
    pair_column: str | None = None
    vector_column: str | None = None

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidValue("'columns' must name at least one column", "columns")
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
    def has_vectors(self) -> bool:
        return self.vector_column is not None

    @property
    def read_columns(self) -> list[str]:
        """All columns that are read, each once."""
        single = (self.split_column, self.label_column, self.pair_column, self.vector_column)
        return list(dict.fromkeys([*self.columns, *self.meta_columns, *(name for name in single if name)]))

    @property
    def split_column(self) -> str | None:
        """A column that contains the split; None for a source whose splits are named elsewhere."""
        return None

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
        if self.split_column is not None:
            word = _text(fields, self.split_column)
            if word.lower() not in SPLIT_WORDS:
                detail = f"column '{self.split_column}' contains {word!r:.80}, expected one of {', '.join(SPLIT_WORDS)}"
                raise Unusable("wrong_type", detail)
            row = row._replace(split=SPLIT_WORDS[word.lower()])
        if self.label_column is not None:
            meta[LABEL] = self._label(_cell(fields, self.label_column), self.label_column)
        if self.pair_column is not None:
            pair = _text(fields, self.pair_column)
        if self.vector_column is not None:
            vector = _cell(fields, self.vector_column)
        return row._replace(text=text, meta=meta, pair=pair, vector=vector)

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

    def open(self, opening: Opening) -> Source:
        return FileSource(self, opening)


def _cell(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        there = list(fields)[:12]
        hint, found = nearest(name, there), ", ".join(there)[:100] or "nothing"
        raise Unusable("missing_column", f"no column '{name}'.{hint} Found {found}.")
    if isinstance(fields[name], Unusable):
        raise fields[name]
    return fields[name]


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = _cell(fields, name)
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise Unusable("wrong_type", f"column '{name}' contains {kind}, expected text", value)
    return value
