"""Parquet and Arrow files, read batch by batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_ldlm.corpus.sources.base import BadRow, Row
from mm_ldlm.corpus.sources.config import SourceConfig
from mm_ldlm.corpus.sources.fields import Undecodable, rows_of
from mm_ldlm.corpus.sources.files import damaged, describe_files, find_files

BATCH_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class ColumnarSource:
    """Parquet files, Arrow files and Arrow streams, read batch by batch."""

    config: SourceConfig

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            number = 0
            try:
                for batch in (
                    _parquet(path, self.config) if self.config.kind == "parquet" else _arrow(path, self.config)
                ):
                    yield from batch_rows(batch, config=self.config, file=str(path), start=number)
                    number += batch.num_rows
            except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
                raise damaged(path, number, error) from None

    def describe(self) -> Any:
        return describe_files(find_files(self.config))


def batch_rows(
    batch: pa.RecordBatch | pa.Table, *, config: SourceConfig, file: str, start: int, split: str | None = None
) -> Iterator[Row | BadRow]:
    """Yield the rows of a batch; its first row has number `start + 1` in the file."""
    there = set(batch.schema.names)
    columns = {name: _values(batch.column(name)) for name in config.read_columns if name in there}
    if not columns:  # no wanted column exists: the message lists those that do
        columns = {name: [None] * batch.num_rows for name in batch.schema.names}
    names = list(columns)
    for number in range(batch.num_rows):
        fields = {name: columns[name][number] for name in names}
        yield from rows_of(fields, config=config, file=file, line=start + number + 1, split=split)


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()).to_pylist()
        return [_text(value) for value in raw]


def _text(value: bytes | None) -> Any:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return Undecodable(value or b"")


def _parquet(path: Path, config: SourceConfig) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        names = _present(file.schema_arrow.names, config)
        yield from file.iter_batches(BATCH_ROWS, columns=names or None)


def _arrow(path: Path, config: SourceConfig) -> Iterator[pa.RecordBatch]:
    """Read the Arrow file format, or the stream format that the `datasets` library writes."""
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
            batches: Iterator[pa.RecordBatch] = (reader.get_batch(i) for i in range(reader.num_record_batches))
            schema = reader.schema
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            batches, schema = iter(stream), stream.schema
        names = _present(schema.names, config)
        for batch in batches:
            batch = batch.select(names) if names else batch
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _present(names: list[str], config: SourceConfig) -> list[str]:
    if any(column not in names for column in config.columns):
        return []  # a column is missing: read all, so that the message can list the others
    return [name for name in config.read_columns if name in names]
