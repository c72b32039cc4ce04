"""Parquet and Arrow files, Hugging Face data sets on disk and on the hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_ldlm.corpus.sources.base import Bad, Row
from mm_ldlm.corpus.sources.config import BY_HASH, SPLIT_WORDS, SourceConfig
from mm_ldlm.corpus.sources.fields import Undecodable, rows_of
from mm_ldlm.corpus.sources.files import damaged, describe_files, find_files
from mm_ldlm.errors import SourceError
from mm_ldlm.store.fingerprint import file_sha256

BATCH_ROWS = 1024
_HELD_OUT_FIRST = ("test", "validation", BY_HASH, "train")
"""A text that stands in two splits stays in the one that is read first: it leaves the training text,
not the test set.
"""


@dataclasses.dataclass(frozen=True)
class ColumnarSource:
    """Parquet files, Arrow files and Arrow streams, read batch by batch."""

    config: SourceConfig

    def rows(self) -> Iterator[Row | Bad]:
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


class _Single(dict[str, Any]):
    """A data set saved without splits: one, called train, which says nothing about where its rows belong."""


@dataclasses.dataclass(frozen=True)
class DatasetSource:
    """A data set of the `datasets` library: saved by `save_to_disk`, or by name on the hub."""

    config: SourceConfig

    def rows(self) -> Iterator[Row | Bad]:
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
        if not folder.is_dir():
            raise SourceError(
                f"source '{self.config.label}': folder {folder} does not exist (looked from {Path.cwd()}). "
                "It is what Dataset.save_to_disk wrote."
            )
        return folder

    def _loaded(self) -> dict[str, Any]:
        import datasets

        folder = self._folder()
        try:
            found = datasets.load_from_disk(str(folder))
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise SourceError(
                f"source '{self.config.label}': {folder} is no data set of save_to_disk, or is damaged ({error})."
            ) from None
        return dict(found) if isinstance(found, datasets.DatasetDict) else _Single(train=found)

    def _disk_rows(self, name: str, split: str | None, place: str) -> Iterator[Row | Bad]:
        number = 0
        for table in self._loaded()[name].with_format("arrow").iter(batch_size=BATCH_ROWS):
            yield from batch_rows(table, config=self.config, file=place, start=number, split=split)
            number += table.num_rows

    # -- hub ----------------------------------------------------------------------------------------------------------

    def _hub_rows(self, name: str, split: str | None, place: str) -> Iterator[Row | Bad]:
        import datasets

        config, number = self.config, 0
        try:
            loaded = datasets.load_dataset(
                str(config.dataset), config.subset, split=name, revision=config.revision, streaming=config.streaming
            )
            for number, fields in enumerate(loaded, start=1):
                yield from rows_of(fields, config=config, file=place, line=number, split=split)
        except GeneratorExit:
            raise
        except (
            Exception
        ) as error:  # the hub, the network, the file format and the library each have errors of their own
            reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise SourceError(
                f"source '{config.label}': data set '{config.dataset}'"
                f"{f' ({config.subset})' if config.subset else ''}, split '{name}' could not be read after {number} "
                f"rows ({type(error).__name__}: {reason}). Offline: save it elsewhere with Dataset.save_to_disk, "
                f"copy the folder here and use kind 'disk' with its 'path'. An interrupted run goes on where it "
                f"stopped."
            ) from error


def batch_rows(
    batch: pa.RecordBatch | pa.Table, *, config: SourceConfig, file: str, start: int, split: str | None = None
) -> Iterator[Row | Bad]:
    """Rows of a batch whose first row is number `start + 1` of its file."""
    there = set(batch.schema.names)
    wanted = dict.fromkeys(
        [*config.columns, *config.meta_columns, *([config.split_column] if config.split_column else [])]
    )
    columns = {name: _values(batch.column(name)) for name in wanted if name in there}
    if not columns:  # none is there: say what is
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
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = _present(file.schema_arrow.names, config)
        yield from file.iter_batches(BATCH_ROWS, columns=names or None)


def _arrow(path: Path, config: SourceConfig) -> Iterator[pa.RecordBatch]:
    """The file format, or the stream format that the `datasets` library writes."""
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
    wanted = [*config.columns, *config.meta_columns, *([config.split_column] if config.split_column else [])]
    if any(column not in names for column in config.columns):
        return []  # something is missing: read all, so that the message can say what there is
    return [name for name in dict.fromkeys(wanted) if name in names]
