"""Tables whose format follows from their names: Parquet, Arrow, JSONL and CSV files, saved data sets, text files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources.base import BadRow, Row, Source
from mm_ldlm.data.corpus.sources.columnar import ColumnarSource
from mm_ldlm.data.corpus.sources.config import Kind, SourceConfig
from mm_ldlm.data.corpus.sources.delimited import CsvSource, JsonlSource
from mm_ldlm.data.corpus.sources.hugging_face import DatasetSource
from mm_ldlm.data.corpus.sources.text import TextSource
from mm_ldlm.extras.own_vectors.source import BESIDE

_KINDS: dict[str, Kind] = {
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".txt": "text",
}  # fmt: skip
"""Kind of the source for a suffix; a folder is one that `Dataset.save_to_disk` wrote."""


@dataclasses.dataclass(frozen=True)
class TableSource:
    """Files and folders of one or several of these formats, with the same columns."""

    config: SourceConfig
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        for source in self._sources():
            yield from source.rows()

    def describe(self) -> Any:
        return [source.describe() for source in self._sources()]

    def _sources(self) -> list[Source]:
        return [self._source(path) for path in self.config.paths]

    def _source(self, path: str) -> Source:
        """Return the reader of one path.

        Raises:
            SourceError: its name tells no format.
        """
        name = Path(path.removesuffix(".gz").removesuffix(".zst"))
        kind: Kind | None = "disk" if os.path.isdir(path) else _KINDS.get(name.suffix.lower())
        if kind is None:
            raise SourceError(
                f"source '{self.config.label}': expected a file with one of the suffixes {', '.join(_KINDS)} or the "
                f"folder of a saved data set, found {path}. Rename it, or choose the source's 'kind'."
            )
        label = self.config.label
        if kind == "text":
            vectors = None if self.config.vector_column is None else BESIDE
            return TextSource(SourceConfig(kind="text", name=label, path=path, vectors=vectors), self.max_row_bytes)
        config = dataclasses.replace(self.config, kind=kind, path=path, name=label)
        match kind:
            case "parquet" | "arrow":
                return ColumnarSource(config)
            case "disk":
                return DatasetSource(config)
            case "jsonl":
                return JsonlSource(config, self.max_row_bytes)
        delimiter = "\t" if name.suffix.lower() == ".tsv" else config.delimiter
        return CsvSource(dataclasses.replace(config, delimiter=delimiter), self.max_row_bytes)
