"""Rows of text from rows of named fields, shared by all tabular sources: columns, split, label, pair and meta."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.messages import nearest, shorten
from mm_ldlm.data.corpus.record import LABEL, is_storable, label_text, meta_text
from mm_ldlm.data.corpus.sources.base import BadRow, Row, excerpt
from mm_ldlm.data.corpus.sources.config import SPLIT_WORDS, SourceConfig
from mm_ldlm.extras.own_vectors.source import vector_of


class Undecodable:
    """A cell of type text whose bytes are not valid UTF-8."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class Unreadable:
    """A cell whose value Python cannot represent, such as a date after the year 9999, and the reason."""

    def __init__(self, detail: str) -> None:
        self.detail = detail


def refuse_duplicates(names: Sequence[str], config: SourceConfig, file: str) -> None:
    """Refuse a table in which a column that is read occurs twice.

    Raises:
        SourceError: which column.
    """
    for name in config.read_columns:
        if (count := list(names).count(name)) > 1:
            raise SourceError(
                f"{file}: expected one column '{name}', found {count}. Rename or remove the others, because the source "
                "would have to choose one of them."
            )


def rows_of(
    fields: Mapping[str, Any], *, config: SourceConfig, file: str, line: int, split: str | None = None
) -> Iterator[Row | BadRow]:
    """Yield a row for each text column, or a `BadRow` where a column is missing or does not contain text."""
    split = config.split or split
    if config.split_column is not None:
        word = fields.get(config.split_column)
        split = SPLIT_WORDS.get(word.lower()) if isinstance(word, str) else None
        if split is None:
            detail = f"column '{config.split_column}' contains {word!r}, expected one of {', '.join(SPLIT_WORDS)}"
            reason = "wrong_type" if config.split_column in fields else "missing_column"
            for _ in config.columns:
                yield BadRow(file, line, reason, detail, excerpt(dict(fields)))
            return
    kept = {name: fields[name] for name in config.meta_columns if name in fields}
    for name, value in kept.items():
        if isinstance(value, (Unreadable, Undecodable)):
            why = value.detail if isinstance(value, Unreadable) else "its bytes are not valid UTF-8"
            for _ in config.columns:
                yield BadRow(file, line, "wrong_type", f"column '{name}' contains a value that cannot be read: {why}")
            return
    if config.label_column is not None:
        label, fault = label_of(fields, config)
        if fault is not None:
            for _ in config.columns:
                yield BadRow(file, line, *fault, excerpt(dict(fields)))
            return
        kept[LABEL] = label
    pair = fields.get(config.pair_column) if config.pair_column is not None else None
    if config.pair_column is not None and not isinstance(pair, str):
        reason = "wrong_type" if config.pair_column in fields else "missing_column"
        detail = f"column '{config.pair_column}' contains no second text"
        yield BadRow(file, line, reason, detail, excerpt(dict(fields)))
        return
    try:
        meta = meta_text(kept) if config.meta_columns or LABEL in kept else None
    except ValueError as error:
        for _ in config.columns:
            yield BadRow(file, line, "wrong_type", f"the columns of 'meta': {error}", excerpt(kept))
        return
    for column in config.columns:
        value = fields.get(column)
        if isinstance(value, str):
            row = Row(value, file, line, split, meta, pair)
            yield row if config.vector_column is None else _with_vector(row, fields, config.vector_column)
        elif isinstance(value, Undecodable):
            detail = f"column '{column}' has the type text, but its bytes are not valid UTF-8"
            yield BadRow(file, line, "encoding", detail, excerpt(value.raw))
        elif isinstance(value, Unreadable):
            yield BadRow(file, line, "wrong_type", f"column '{column}' cannot be read: {value.detail}")
        elif column not in fields:
            there = list(fields)[:12]
            hint, found = nearest(column, there), shorten(", ".join(there), 100) or "nothing"
            detail = f"no column '{column}'{f'.{hint} Found' if hint else '; found'} {found}."
            yield BadRow(file, line, "missing_column", detail, excerpt(dict(fields)))
        else:
            kind = type(value).__name__ if value is not None else "null"
            yield BadRow(file, line, "wrong_type", f"column '{column}' contains {kind}, expected text", excerpt(value))


def _with_vector(row: Row, fields: Mapping[str, Any], name: str) -> Row | BadRow:
    """Return the row with the vector of column `name`, or a `BadRow` if the column contains none."""
    value = fields.get(name)
    if name not in fields:
        found = ", ".join(list(fields)[:12])
        return BadRow(row.file, row.line, "missing_column", f"no column '{name}'; found {found}", excerpt(row.text))
    if value is None:
        return BadRow(row.file, row.line, "no_vector", f"column '{name}' is empty", excerpt(row.text))
    if isinstance(value, (Unreadable, Undecodable)):
        why = value.detail if isinstance(value, Unreadable) else "its bytes are not valid UTF-8"
        return BadRow(row.file, row.line, "wrong_type", f"column '{name}' cannot be read: {why}", excerpt(row.text))
    try:
        return row._replace(vector=vector_of(value))
    except ValueError as error:
        return BadRow(row.file, row.line, "wrong_type", f"column '{name}' contains {error}", excerpt(row.text))


def label_of(fields: Mapping[str, Any], config: SourceConfig) -> tuple[str | None, tuple[str, str] | None]:
    """Return the label of a row as text, or the reason and the detail if the row has no valid one."""
    name = config.label_column or ""
    value = fields.get(name)
    if name not in fields:
        return None, ("missing_column", f"no column '{name}', which should contain the label")
    if value is None or (isinstance(value, str) and not value.strip()):
        return None, ("no_label", f"column '{name}' is empty")
    label = label_text(value)
    if label is None or not is_storable(label):
        detail = f"column '{name}' contains {type(value).__name__}, expected a label: text or a whole number"
        return None, ("wrong_type", detail)
    if config.labels is not None and label not in config.labels:
        return None, ("unknown_label", f"label '{label}', expected one of {', '.join(config.labels)}")
    return label, None
