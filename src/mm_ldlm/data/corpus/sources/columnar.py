"""Parquet and Arrow files, read batch by batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_ldlm.data.corpus.sources.arrow_files import FAULTS, arrow_batches, parquet_batches
from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.fields import Undecodable, Unreadable, refuse_duplicates, rows_of
from mm_ldlm.data.corpus.sources.files import damaged, describe_files, find_files
from mm_ldlm.extras.own_vectors.source import column_vectors

BATCH_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class ColumnarSource:
    """Parquet files, Arrow files and Arrow streams, read batch by batch."""

    config: SourceConfig

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            number = 0
            batches = _parquet(path, self.config) if self.config.kind == "parquet" else _arrow(path, self.config)
            while True:
                try:
                    batch = next(batches, None)
                except FAULTS as error:
                    raise damaged(path, number, error) from None
                if batch is None:
                    break
                yield from batch_rows(batch, config=self.config, file=str(path), start=number)
                number += batch.num_rows

    def describe(self) -> Any:
        return describe_files(find_files(self.config))


def batch_rows(
    batch: pa.RecordBatch | pa.Table, *, config: SourceConfig, file: str, start: int, split: str | None = None
) -> Iterator[Row | BadRow]:
    """Yield the rows of a batch; its first row has number `start + 1` in the file."""
    there = set(batch.schema.names)
    columns = {
        name: (column_vectors(batch.column(name)) if name == config.vector_column else None)
        or _values(batch.column(name))
        for name in config.read_columns if name in there
    }  # fmt: skip
    if any(column not in there for column in config.columns):  # the message lists all columns that there are
        columns = {name: columns.get(name, [None] * batch.num_rows) for name in batch.schema.names}
    names = list(columns)
    for number in range(batch.num_rows):
        fields = {name: columns[name][number] for name in names}
        yield from rows_of(fields, config=config, file=file, line=start + number + 1, split=split)


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except Exception:  # text that is not UTF-8, dates that Python cannot represent, structs with two equal names, ...
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type):
            return Undecodable(scalar.as_buffer().to_pybytes())
        return Unreadable(f"a {scalar.type} with bytes that are not valid UTF-8")
    except Exception as error:
        return Unreadable(f"{type(error).__name__}: {error}")


def _parquet(path: Path, config: SourceConfig) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        names = _present(file.schema_arrow.names, config, path)
    yield from parquet_batches(path, rows=BATCH_ROWS, columns=names or None)


def _arrow(path: Path, config: SourceConfig) -> Iterator[pa.RecordBatch]:
    schema, batches = arrow_batches(path)
    names = _present(schema.names, config, path)
    for batch in batches:
        batch = batch.select(names) if names else batch
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _present(names: list[str], config: SourceConfig, path: Path) -> list[str]:
    refuse_duplicates(names, config, str(path))
    if any(column not in names for column in config.columns):
        return []  # a column is missing: read all, so that the message can list the others
    return [name for name in config.read_columns if name in names]
