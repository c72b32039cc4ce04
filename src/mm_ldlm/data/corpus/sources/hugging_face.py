"""Data sets of the Hugging Face `datasets` library, on disk and on the hub."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import SourceError, UnsafePathError
from mm_ldlm.core.files import problem
from mm_ldlm.data.corpus.sources.arrow_files import FAULTS, arrow_batches
from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.columnar import BATCH_ROWS, batch_rows
from mm_ldlm.data.corpus.sources.config import BY_HASH, SPLIT_WORDS, SourceConfig
from mm_ldlm.data.corpus.sources.fields import refuse_duplicates, rows_of
from mm_ldlm.data.corpus.sources.files import damaged
from mm_ldlm.data.store.fingerprint import file_sha256

_HELD_OUT_FIRST = ("test", "validation", BY_HASH, "train")
"""Order in which splits are read. A text that occurs in two splits stays in the one read first, so that it is removed
from the training split and not from the test split."""


class _Single(dict[str, Any]):
    """A data set saved without splits: its one split is called train, which does not decide the split of its rows."""


@dataclasses.dataclass(frozen=True)
class DatasetSource:
    """A data set of the `datasets` library, saved by `save_to_disk` or named on the hub."""

    config: SourceConfig

    def rows(self) -> Iterator[Row | BadRow]:
        for name, goes_to in self._splits():
            split = None if goes_to == BY_HASH else goes_to
            place = f"{self.config.dataset or self.config.path}[{name}]"
            if self.config.kind == "disk":
                yield from self._disk_rows(name, split, place)
            else:
                yield from self._hub_rows(name, split, place)

    def describe(self) -> Any:
        if self.config.kind == "hub":
            return {"dataset": self.config.dataset, "revision": self.config.revision}
        folder = self._folder()
        files = sorted(path for path in folder.rglob("*") if path.suffix in (".arrow", ".json") and path.is_file())
        digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
        return {"files": digests}

    # -- which splits -------------------------------------------------------------------------------------------------

    def _splits(self) -> list[tuple[str, str]]:
        named: Mapping[str, str] | None = self.config.splits
        if self.config.kind == "disk":
            there = self._loaded()
            if named is None and isinstance(there, _Single):
                named = dict.fromkeys(there, BY_HASH)
            elif named is None:
                named = {name: SPLIT_WORDS.get(name, BY_HASH) for name in there}
            if missing := sorted(set(named) - set(there)):
                raise SourceError(
                    f"source '{self.config.label}': {self.config.path} has no split {missing}; it has {list(there)}. "
                    "Correct the source's 'splits'."
                )
        return sorted((named or {}).items(), key=lambda item: _HELD_OUT_FIRST.index(item[1]))

    # -- disk ---------------------------------------------------------------------------------------------------------

    def _folder(self) -> Path:
        folder = Path(self.config.paths[0])
        if not os.path.isdir(folder):
            raise SourceError(
                f"source '{self.config.label}': folder {folder} {problem(folder) or 'is a file'} (looked from "
                f"{Path.cwd()}). Expected a folder that Dataset.save_to_disk wrote."
            )
        return folder

    def _loaded(self) -> dict[str, Any]:
        import datasets

        folder = self._folder()
        try:
            found = datasets.load_from_disk(str(folder))
        except Exception as error:  # the library raises many types for damaged files
            raise SourceError(
                f"source '{self.config.label}': {folder} is not a data set written by save_to_disk, or is damaged "
                f"({error}). Correct the source's 'path' or save the data set again."
            ) from None
        return dict(found) if isinstance(found, datasets.DatasetDict) else _Single(train=found)

    def _disk_rows(self, name: str, split: str | None, place: str) -> Iterator[Row | BadRow]:
        number, data = 0, self._loaded()[name]
        self._check_files(data, place)
        refuse_duplicates(data.column_names, self.config, place)
        for table in data.with_format("arrow").iter(batch_size=BATCH_ROWS):
            yield from batch_rows(table, config=self.config, file=place, start=number, split=split)
            number += table.num_rows

    def _check_files(self, data: Any, place: str) -> None:
        """Check the files of a split: they are in the folder, valid, and end with their end marker.

        The library maps them without checks. It reads fewer rows from a file that ends early.
        """
        folder = Path(os.path.realpath(self._folder()))
        for about in data.cache_files:
            path = Path(os.path.realpath(about["filename"]))
            if not path.is_relative_to(folder):
                raise UnsafePathError(folder, about["filename"], f"of a file of {place} leads out of the folder")
            number = 0
            try:
                for batch in arrow_batches(path)[1]:
                    number += batch.num_rows
            except FAULTS as error:
                raise damaged(path, number, error) from None

    # -- hub ----------------------------------------------------------------------------------------------------------

    def _hub_rows(self, name: str, split: str | None, place: str) -> Iterator[Row | BadRow]:
        import datasets

        config, number = self.config, 0
        try:
            loaded = datasets.load_dataset(
                str(config.dataset), config.subset, split=name, revision=config.revision, streaming=config.streaming
            )
            for number, fields in enumerate(loaded, start=1):
                yield from rows_of(fields, config=config, file=place, line=number, split=split)
        except Exception as error:  # the hub, the network, the file format and the library raise many types
            reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise SourceError(
                f"source '{config.label}': data set '{config.dataset}'"
                f"{f' ({config.subset})' if config.subset else ''}, split '{name}' could not be read after {number} "
                f"rows ({type(error).__name__}: {reason}). Offline: save it on another machine with "
                "Dataset.save_to_disk, copy the folder here and use kind 'disk' with its 'path'. An interrupted run "
                "continues where it stopped."
            ) from error
