"""JSONL and CSV files, plain or compressed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.json_text import parse_json
from mm_ldlm.data.corpus.sources.base import BadRow, Row, excerpt
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.csv_records import CsvRecords
from mm_ldlm.data.corpus.sources.fields import refuse_duplicates, rows_of
from mm_ldlm.data.corpus.sources.files import describe_files, find_files, read_lines


@dataclasses.dataclass(frozen=True)
class JsonlSource:
    """JSONL files, one JSON object per line."""

    config: SourceConfig
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            file = str(path)
            for line in read_lines(path, encoding=self.config.encoding, max_bytes=self.max_row_bytes):
                if isinstance(line, BadRow):
                    yield line
                    continue
                try:
                    value = parse_json(line.text)
                except ValueError as error:
                    yield BadRow(file, line.number, "broken_json", str(error), excerpt(line.text))
                    continue
                if not isinstance(value, dict):
                    detail = f"a JSON {type(value).__name__}, expected an object"
                    yield BadRow(file, line.number, "wrong_type", detail, excerpt(line.text))
                    continue
                yield from rows_of(value, config=self.config, file=file, line=line.number)

    def describe(self) -> Any:
        return describe_files(find_files(self.config))


@dataclasses.dataclass(frozen=True)
class CsvSource:
    """CSV files with any delimiter, with or without a header; quoted fields may contain line breaks."""

    config: SourceConfig
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            yield from self._read(path)

    def _read(self, path: Path) -> Iterator[Row | BadRow]:
        file, header = str(path), None
        lines = read_lines(path, encoding=self.config.encoding, max_bytes=self.max_row_bytes)
        for record in CsvRecords(lines, delimiter=self.config.delimiter, file=file, max_bytes=self.max_row_bytes):
            if isinstance(record, BadRow):
                if self.config.header and header is None:
                    raise SourceError(
                        f"{file}: line {record.line}: expected the header, found a line that cannot be read "
                        f"({record.detail}). Correct the line, or set the source's 'header' to false."
                    )
                yield record
                continue
            number, values = record
            if not values:
                yield Row("", file, number)
            elif self.config.header and header is None:
                header = values
                refuse_duplicates(header, self.config, file)
            else:
                names = header or [str(i) for i in range(len(values))]
                if len(values) != len(names):
                    detail = f"{len(values)} fields, the header has {len(names)}"
                    yield BadRow(file, number, "broken_csv", detail, excerpt(self.config.delimiter.join(values)))
                else:
                    fields = dict(zip(names, values, strict=True))
                    yield from rows_of(fields, config=self.config, file=file, line=number)

    def describe(self) -> Any:
        return describe_files(find_files(self.config))
