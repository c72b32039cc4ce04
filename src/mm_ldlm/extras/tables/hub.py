"""Data sets of the hub, or local copies of them."""

import dataclasses
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from mm_ldlm.core import SourceError, bounded, config, reason_of, setting
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.sources.base import SPLIT_WORDS, ColumnsConfig, Opening, Row, SourceConfig
from mm_ldlm.data.corpus.sources.lines import TextConfig
from mm_ldlm.data.corpus.sources.table import KINDS, TableConfig, is_saved, suffix_of
from mm_ldlm.extras.tables.files import DiskConfig, Splits, held_out_first

_TABLES = tuple(suffix for suffix in KINDS if suffix != ".txt")
_TEXTS = (".txt", ".raw", ".tokens")


@config
class HubConfig(ColumnsConfig):
    """A data set on the hub.

    Attributes:
        dataset: its name.
        path: read instead of the hub: a folder that `Dataset.save_to_disk` wrote, which has the splits, or files, or
            a folder of files, at any depth: tables with the columns, or one text per line. The name of a file
            (`valid.txt`, `test/1.parquet`) chooses its split; other files are divided by the hash split.
        subset: its configuration (`name=` of `load_dataset`).
        revision: commit or tag.
        streaming: read while downloading; false downloads into the Hugging Face cache first.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split).
    """

    kind: str = "hub"
    dataset: Annotated[str, bounded(min_length=1)]
    path: str | None = None
    subset: str | None = None
    revision: str | None = None
    streaming: bool = True
    splits: Annotated[Splits, bounded(min_length=1)]

    def _copies(self) -> list[SourceConfig]:
        """Return the sources of the local copy, with held-out rows first."""
        path = str(self.path)
        if is_saved(path):
            return [self.as_kind(DiskConfig)]
        folder = os.path.isdir(path)
        found = dataclasses.replace(self, path=f"{glob.escape(path)}/**" if folder else path).find()
        splits = {}
        for file in found:
            if not folder or suffix_of(file) in _TABLES + _TEXTS:
                words = re.findall("[a-z]+", str(file.relative_to(path) if folder else file.name).lower())
                split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "hash")
                splits[str(file)] = self.splits.get(split, split)
        if not splits:
            self.file(path).refuse(
                f"a data set saved by Dataset.save_to_disk, or files {', '.join(_TABLES)} (with the column "
                f"{' and '.join(self.columns)}) or {', '.join(_TEXTS)} (one text per line), also .gz or .zst",
                f"{len(found)} other files",
            )
        return [
            self.as_kind(TableConfig if suffix_of(Path(name)) in _TABLES else TextConfig, path=name, split=split)
            for name, split in held_out_first(splits)
        ]

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        if self.path is not None:
            for copy in self._copies():
                yield from copy.rows(opening)
            return
        import datasets

        for name, split in held_out_first(self.splits):
            number, place = 0, f"{self.dataset}[{name}]"
            try:
                loaded = datasets.load_dataset(
                    self.dataset, self.subset, split=name, revision=self.revision, streaming=self.streaming
                )
                for number, fields in enumerate(loaded, start=1):
                    yield from self.rows_of(fields, file=place, line=number, split=split)
            except Exception as error:  # the hub, the network, the file format and the library raise many types
                raise SourceError(
                    f"source '{self.label}': {place} could not be read after {number} rows ({reason_of(error)}). "
                    "Offline: save it on another machine with Dataset.save_to_disk, copy the folder here, and name it "
                    f"by {setting('ingestion.path', 'FOLDER')}. An interrupted run continues where it stopped."
                ) from error

    def describe(self, opening: Opening) -> Any:
        if self.path is not None:
            return [copy.describe(opening) for copy in self._copies()]
        return {"dataset": self.dataset, "revision": self.revision}
