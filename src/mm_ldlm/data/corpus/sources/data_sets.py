"""Data sets of the Hugging Face `datasets` library, on disk and on the hub."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from mm_ldlm.core.config import InvalidValue, config
from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import InputFile, inside
from mm_ldlm.core.messages import reason_of
from mm_ldlm.data.corpus.sources.base import SPLIT_WORDS, BadRow, Opening, Row, Source
from mm_ldlm.data.corpus.sources.columnar import arrow_batches, rows_of_batches
from mm_ldlm.data.corpus.sources.fields import ColumnsConfig
from mm_ldlm.data.store.fingerprint import file_sha256

Splits = dict[str, Literal["train", "validation", "test", "hash"]]
_HELD_OUT_FIRST = ("test", "validation", "hash", "train")
"""Order in which splits are read. A text that occurs in two splits stays in the one read first, so that it is removed
from the training split and not from the test split."""


_SPLITS = "dataset_dict.json"
"""File of a data set with several splits"""


@config
class DiskConfig(ColumnsConfig):
    """A data set that `save_to_disk` wrote.

    Attributes:
        path: the folder.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split); by
            default all, under their names, and those of other names by hash.
    """

    kind: str = "disk"
    path: str
    splits: Splits | None = None

    def open(self, opening: Opening) -> Source:
        return DiskSource(self, opening)


@dataclasses.dataclass(frozen=True)
class DiskSource:
    """The Arrow streams in the folder of a data set, read as any other."""

    config: DiskConfig
    opening: Opening

    def rows(self) -> Iterator[Row | BadRow]:
        found = self._files()
        words = SPLIT_WORDS if _is_divided(Path(self.config.path)) else {}  # the one split of others is called train
        named: Mapping[str, str] = self.config.splits or {name: words.get(name, "hash") for name in found}
        if missing := sorted({*named} - {*found}):
            raise SourceError(
                f"source '{self.config.label}': {self.config.path} has no split {', '.join(missing)}; it has "
                f"{', '.join(found)}. Correct the source's 'splits'."
            )
        for name in held_out_first(named):
            split, number = None if named[name] == "hash" else named[name], 0
            for path in found[name]:
                for row in rows_of_batches(
                    arrow_batches(path, self.config), path, self.config, file=f"{self.config.path}[{name}]",
                    opening=self.opening, start=number, split=split,
                ):  # fmt: skip
                    number = row.line
                    yield row

    def describe(self) -> Any:
        folder = Path(self.config.path)
        return {
            path.relative_to(folder).as_posix(): file_sha256(path) for paths in self._files().values() for path in paths
        }

    def _files(self) -> dict[str, list[Path]]:
        """List the files of each split, in order.

        Raises:
            SourceError: the folder is not a data set.
        """
        folder = Path(self.config.path)
        splits = {"train": folder}
        if _is_divided(folder):
            file = self._json(folder / _SPLITS)
            names = file.json(dict).get("splits")
            if not isinstance(names, list):
                file.refuse("the names of the splits under 'splits'", "none")
            splits = {name: inside(folder, name) for name in names}
        found = {}
        for name, place in splits.items():
            state = self._json(place / "state.json")
            try:
                found[name] = [inside(place, each["filename"]) for each in state.json(dict)["_data_files"]]
            except (TypeError, LookupError):
                state.refuse("the names of files under '_data_files'", "none")
        return found

    def _json(self, path: Path) -> InputFile:
        remedy = (
            f"Correct the 'path' of source '{self.config.label}', a folder that Dataset.save_to_disk wrote, or save "
            f"the data set again (looked from {Path.cwd()})."
        )
        return InputFile(path, remedy=remedy, error=SourceError)


def _is_divided(folder: Path) -> bool:
    return os.path.isfile(folder / _SPLITS)


@config
class HubConfig(ColumnsConfig):
    """A data set on the hub.

    Attributes:
        dataset: its name.
        subset: its configuration (`name=` of `load_dataset`).
        revision: commit or tag.
        streaming: read while downloading; false downloads into the Hugging Face cache first.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split).
    """

    kind: str = "hub"
    dataset: str
    subset: str | None = None
    revision: str | None = None
    streaming: bool = True
    splits: Splits

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset or not self.splits:
            raise InvalidValue("expected a name and splits (for example {train: hash})", "dataset", "splits")

    @property
    def place(self) -> str:
        return self.dataset

    def open(self, opening: Opening) -> Source:
        return HubSource(self)


@dataclasses.dataclass(frozen=True)
class HubSource:
    """The rows that `load_dataset` yields."""

    config: HubConfig

    def rows(self) -> Iterator[Row | BadRow]:
        import datasets

        config = self.config
        for name in held_out_first(config.splits):
            split, number = None if config.splits[name] == "hash" else config.splits[name], 0
            try:
                loaded = datasets.load_dataset(
                    config.dataset, config.subset, split=name, revision=config.revision, streaming=config.streaming
                )
                for number, fields in enumerate(loaded, start=1):
                    yield from config.rows_of(fields, file=f"{config.dataset}[{name}]", line=number, split=split)
            except Exception as error:  # the hub, the network, the file format and the library raise many types
                raise SourceError(
                    f"source '{config.label}': the split '{name}' of '{config.dataset}' could not be read after "
                    f"{number} rows ({reason_of(error)}). Offline: save it on another machine with "
                    "Dataset.save_to_disk, copy the folder here and use kind 'disk'. An interrupted run continues "
                    "where it stopped."
                ) from error

    def describe(self) -> Any:
        return {"dataset": self.config.dataset, "revision": self.config.revision}


def held_out_first(splits: Mapping[str, str]) -> list[str]:
    """Return the names of splits in the order in which they are read."""
    return sorted(splits, key=lambda name: _HELD_OUT_FIRST.index(splits[name]))
