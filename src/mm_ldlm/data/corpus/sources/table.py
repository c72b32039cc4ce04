"""Tables whose format follows from their names: Parquet, Arrow, JSONL and CSV files, saved data sets, text files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core.config import config
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources.base import SOURCES, BadRow, Opening, Row, Source, SourceConfig
from mm_ldlm.data.corpus.sources.text import BESIDE

_KINDS = {
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".txt": "text",
}  # fmt: skip
"""Kind of the source for a suffix; a folder is one that `Dataset.save_to_disk` wrote"""


@config
class TableConfig(SourceConfig):
    """Files and folders of one or several formats, with the same columns.

    Attributes:
        path: a file, a folder, a glob, or a list of them; relative to the working directory.
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

    @property
    def has_vectors(self) -> bool:
        return self.vector_column is not None

    def open(self, opening: Opening) -> Source:
        return TableSource(self, opening)


@dataclasses.dataclass(frozen=True)
class TableSource:
    """The rows of all paths, one after another, each read by its kind."""

    config: TableConfig
    opening: Opening

    def rows(self) -> Iterator[Row | BadRow]:
        for source in self._sources():
            yield from source.rows()

    def describe(self) -> Any:
        return [source.describe() for source in self._sources()]

    def _sources(self) -> Iterator[Source]:
        config = self.config
        for path in config.paths:
            suffix = Path(path.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
            kind = "disk" if os.path.isdir(path) else _KINDS.get(suffix)
            if kind is None:
                raise SourceError(
                    f"source '{config.label}': expected a file with one of the suffixes {', '.join(_KINDS)} or the "
                    f"folder of a saved data set, found {path}. Rename it, or choose the source's 'kind'."
                )
            keys: dict[str, Any] = {"kind": kind, "name": config.label, "path": path}
            if kind == "text":
                keys["vectors"] = BESIDE if config.has_vectors else None
            else:
                keys |= {name: getattr(config, name) for name in ("columns", "meta_columns", "vector_column")}
            if suffix == ".tsv":
                keys["delimiter"] = "\t"
            yield SOURCES.load(kind)(**keys).open(self.opening)
