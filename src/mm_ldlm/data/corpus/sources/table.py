"""Read files whose names determine their format."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core import SourceError, config
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.sources.base import AUTO, SOURCES, Delimiter, Header, Opening, Row, TableFilesConfig
from mm_ldlm.data.corpus.sources.lines import BESIDE

KINDS = {
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".txt": "csv",
}  # fmt: skip
"""Suffix → kind of the source, which may not be registered. Exceptions: text files with vectors, and folders that
`Dataset.save_to_disk` wrote."""


def is_saved(path: str) -> bool:
    """Return whether a path is a folder that `Dataset.save_to_disk` wrote."""
    return any(map(os.path.exists, (f"{path}/dataset_dict.json", f"{path}/state.json")))


def suffix_of(path: str | Path) -> str:
    """Return the suffix of a file in lower case, ignoring a suffix for compression."""
    return Path(str(path).removesuffix(".gz").removesuffix(".zst")).suffix.lower()


@config
class TableConfig(TableFilesConfig):
    """Files and folders with the same columns whose names determine their format.

    The vectors of a text file are in the .npy file of the same name.

    Attributes:
        path: a file, a folder of a saved data set, a glob, or a list of them; relative to the working directory.
        header, delimiter: keys for CSV files, as in the kind `csv`.
    """

    kind: str = "table"
    header: Header = True
    delimiter: Delimiter = AUTO

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        for path in self.paths:
            yield from self._kind_of(path).rows(opening)

    def describe(self, opening: Opening) -> Any:
        return [self._kind_of(path).describe(opening) for path in self.paths]

    def _kind_of(self, path: str) -> Any:
        suffix = suffix_of(path)
        lines = suffix == ".txt" and self.has_vectors
        kind = "disk" if is_saved(path) else "text" if lines else KINDS.get(suffix)
        if kind is None or kind not in SOURCES:
            known = ", ".join(key for key, name in KINDS.items() if name in SOURCES)
            self.file(path).refuse(
                f"a file with one of the suffixes {known}, or the folder of a saved data set (folders of texts: "
                "`--env=own_text`)",
                "a folder" if os.path.isdir(path) else f"the suffix '{suffix}'" if suffix else "a name without suffix",
            )
        cls = SOURCES.load(kind)
        changed = {each.name for each in dataclasses.fields(self) if getattr(self, each.name) != each.default}
        if ignored := changed - {each.name for each in dataclasses.fields(cls)} - {"vector_column"}:
            raise SourceError(
                f"source '{self.label}': {path} is read as {kind}, which does not read {', '.join(sorted(ignored))}. "
                "Remove these keys, or choose a file of another format."
            )
        own: dict[str, Any] = {"vectors": BESIDE} if lines else {}
        if suffix == ".tsv" and self.delimiter == AUTO:
            own["delimiter"] = "\t"
        return self.as_kind(cls, name=self.label, path=path, **own)
