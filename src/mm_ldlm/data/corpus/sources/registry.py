"""The reader of each kind of source."""

from __future__ import annotations

from mm_ldlm.data.corpus.sources.base import Source
from mm_ldlm.data.corpus.sources.columnar import ColumnarSource
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.delimited import CsvSource, JsonlSource
from mm_ldlm.data.corpus.sources.hugging_face import DatasetSource
from mm_ldlm.data.corpus.sources.table import TableSource
from mm_ldlm.data.corpus.sources.text import TextSource
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.extras.layout.source import LayoutSource
from mm_ldlm.extras.starter.pairs import StarterPairsSource
from mm_ldlm.extras.starter.source import StarterSource
from mm_ldlm.families.images.decoding import ImageLimits
from mm_ldlm.families.images.digits import DigitsSource
from mm_ldlm.families.images.image_folder import ImageFolderSource
from mm_ldlm.families.images.webdataset import WebDatasetSource


def open_source(
    config: SourceConfig,
    *,
    seed: int,
    max_row_bytes: int,
    images: ImageLimits | None = None,
    tokenizer: TextTokenizer | None = None,
) -> Source:
    """Return the reader of a source, without reading anything yet; `images` None: the default limits.

    `tokenizer` is that of the records, for sources that contain tokens.
    """
    limits = images or ImageLimits()
    match config.kind:
        case "text":
            return TextSource(config, max_row_bytes)
        case "starter":
            return StarterSource(config, seed)
        case "starter_pairs":
            return StarterPairsSource(config, seed)
        case "jsonl":
            return JsonlSource(config, max_row_bytes)
        case "csv":
            return CsvSource(config, max_row_bytes)
        case "parquet" | "arrow":
            return ColumnarSource(config)
        case "hub" | "disk":
            return DatasetSource(config)
        case "layout":
            return LayoutSource(config, max_row_bytes, tokenizer)
        case "digits":
            return DigitsSource(config, seed)
        case "image_folder":
            return ImageFolderSource(config, limits, max_row_bytes)
        case "webdataset":
            return WebDatasetSource(config, limits, max_row_bytes)
        case "table":
            return TableSource(config, max_row_bytes)
