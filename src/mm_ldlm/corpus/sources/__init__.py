"""Sources of text, each an iterator of rows and bad rows. A new kind: its parameters in `config`, its reader here."""

from __future__ import annotations

from mm_ldlm.corpus.sources.base import Bad, Row, Source
from mm_ldlm.corpus.sources.config import SourceConfig

__all__ = ["Bad", "Row", "Source", "SourceConfig", "open_source"]


def open_source(config: SourceConfig, *, seed: int, max_row_bytes: int) -> Source:
    """The reader of a source; nothing is read yet."""
    match config.kind:
        case "text":
            from mm_ldlm.corpus.sources.text import TextSource

            return TextSource(config, max_row_bytes)
        case "starter":
            from mm_ldlm.corpus.sources.text import StarterSource

            return StarterSource(config, seed)
        case "jsonl":
            from mm_ldlm.corpus.sources.delimited import JsonlSource

            return JsonlSource(config, max_row_bytes)
        case "csv":
            from mm_ldlm.corpus.sources.delimited import CsvSource

            return CsvSource(config, max_row_bytes)
        case "parquet" | "arrow":
            from mm_ldlm.corpus.sources.columnar import ColumnarSource

            return ColumnarSource(config)
        case "hub" | "disk":
            from mm_ldlm.corpus.sources.columnar import DatasetSource

            return DatasetSource(config)
        case "layout":
            from mm_ldlm.corpus.layout import LayoutSource

            return LayoutSource(config)
