"""Arrow files, Parquet files and saved data sets: valid batches, a count of what the file contains, and their rows.

A damaged offset makes Arrow read outside its buffers, which ends the process, so every column is validated before a
value is read. A file may also end early between two batches, which readers do not notice; the number of batches is
therefore counted from the messages of the file, and a stream must end with its end marker.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from mm_ldlm.core import SourceError, config, reason_of
from mm_ldlm.core.files import inside
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable
from mm_ldlm.data.corpus.sources.base import (
    SPLIT_WORDS,
    ColumnsConfig,
    Opening,
    Row,
    TableFilesConfig,
    damaged,
    describe_files,
)

Splits = dict[str, Literal["train", "validation", "test", "hash"]]
BATCH_ROWS = 1024
_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_OLD_END = b"\x00\x00\x00\x00"
"""End marker of streams before Arrow 0.15, which have no continuation bytes"""
_FAULTS = (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeError, ValueError)
"""What pyarrow raises for a file that is damaged or of another type"""


@config
class ParquetConfig(TableFilesConfig):
    """Parquet files."""

    kind: str = "parquet"

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        yield from _rows_of(_parquet(path, self), self, opening, path=path)


@config
class ArrowConfig(TableFilesConfig):
    """Arrow files, Arrow streams and Feather files."""

    kind: str = "arrow"

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        yield from _rows_of(_arrow(path, self), self, opening, path=path)


@config
class DiskConfig(ColumnsConfig):
    """A data set that `Dataset.save_to_disk` wrote; its Arrow streams are read as any other.

    Attributes:
        path: the folder.
        splits: the splits to read, each mapped to train, validation, test, or hash (the project's hash split); by
            default all, under their names, and splits of other names by hash.
    """

    kind: str = "disk"
    path: str
    splits: Splits | None = None

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        found = self._streams()
        words: dict[str, Any] = (
            SPLIT_WORDS if os.path.isfile(self._divided) else {}
        )  # the one split of others is called train
        named = self.splits or {name: words.get(name, "hash") for name in found}
        if missing := sorted({*named} - {*found}):
            raise SourceError(
                f"source '{self.label}': {self.path} has no split {', '.join(missing)}; it has {', '.join(found)}. "
                "Correct the source's 'splits', or read all that it has: "
                f"`--params 'ingestion.sources=[{{kind: disk, path: {self.path}}}]'`."
            )
        for name, split in held_out_first(named):
            number = 0
            for path in found[name]:
                for row in _rows_of(
                    _arrow(path, self), self, opening, path=path, file=f"{self.path}[{name}]", start=number, split=split
                ):
                    number = row.line
                    yield row

    def describe(self, opening: Opening) -> Any:
        return {name: describe_files(paths) for name, paths in self._streams().items()}

    @property
    def _divided(self) -> Path:
        """File that names the splits of a data set with several."""
        return Path(self.path) / "dataset_dict.json"

    def _streams(self) -> dict[str, list[Path]]:
        """List the files of each split, in order."""
        folder = Path(self.path)
        file, splits, found = self.file(self._divided), {"train": folder}, {}
        try:
            if os.path.isfile(self._divided):
                splits = {name: inside(folder, name) for name in file.json(dict)["splits"]}
            for name, place in splits.items():
                file = self.file(place / "state.json")
                found[name] = [
                    self.file(inside(place, each["filename"])).check() for each in file.json(dict)["_data_files"]
                ]
        except (TypeError, LookupError) as error:
            file.refuse("the names that Dataset.save_to_disk writes", f"others ({reason_of(error)})")
        return found


def held_out_first(splits: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return (name in the source, split of its rows) in the order in which they are read; None is the hash split.

    A text that occurs in two splits stays in the one read first, so that it is removed from the training split and not
    from the test split.
    """
    order = ("test", "validation", "hash", "train")
    named = sorted(splits.items(), key=lambda item: order.index(item[1]))
    return [(name, None if split == "hash" else split) for name, split in named]


def _rows_of(
    batches: Iterator[pa.RecordBatch],
    config: ColumnsConfig,
    opening: Opening,
    *,
    path: Path,
    file: str = "",
    start: int = 0,
    split: str | None = None,
) -> Iterator[Row | BadRow]:
    """Yield the rows of the batches of a file, called `file` in its rows; the first has number `start + 1`.

    Raises:
        SourceError: the file is damaged.
    """
    number = start
    try:
        for batch in batches:
            columns = {name: _valid(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            for first in range(0, batch.num_rows, BATCH_ROWS):
                cells = {
                    name: _cells(column.slice(first, BATCH_ROWS), opening.max_row_bytes, name == config.vector_column)
                    for name, column in columns.items()
                }
                for place in range(min(BATCH_ROWS, batch.num_rows - first)):
                    number += 1
                    fields = {name: values[place] for name, values in cells.items()}
                    yield from config.rows_of(fields, file=file or str(path), line=number, split=split)
    except _FAULTS as error:
        raise damaged(path, number, error) from None


def _arrow(path: Path, config: ColumnsConfig) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file, or of a stream as the `datasets` library writes it, with the columns read."""
    with pa.memory_map(str(path)) as source:
        mapped = source.read_buffer()
    if mapped.slice(0, len(_MAGIC)).to_pybytes() == _MAGIC:
        reader = pa.ipc.open_file(pa.BufferReader(mapped))
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(mapped.slice(8)))
        found = sum(message.type == "record batch" for message in messages)
        if found != reader.num_record_batches:
            raise pa.ArrowInvalid(f"the footer lists {reader.num_record_batches} batches, the file contains {found}")
        names = _columns(reader.schema, config, path)
        batches: Iterator[pa.RecordBatch] = map(reader.get_batch, range(found))
    else:
        names = _columns(pa.ipc.open_stream(pa.BufferReader(mapped)).schema, config, path)
        batches = _stream(mapped)
    for batch in batches:
        yield batch if names is None else batch.select(names)


def _stream(mapped: pa.Buffer) -> Iterator[pa.RecordBatch]:
    source = pa.BufferReader(mapped)
    batches = pa.ipc.open_stream(source)
    read = source.tell()
    for batch in batches:
        read = source.tell()
        yield batch
    # The bytes after the last message, and not the last bytes: the end of a batch may equal the marker.
    if mapped.slice(read).to_pybytes() not in (_END, _OLD_END):
        raise pa.ArrowInvalid(
            "an end marker and nothing else must follow the last batch, so the file may be incomplete"
        )


def _parquet(path: Path, config: ColumnsConfig) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        # The metadata of columns are not read here: damaged ones end the process instead of raising (pyarrow 25).
        groups = sum(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))
        names, found = _columns(file.schema_arrow, config, path), 0
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            found += batch.num_rows
            yield batch
        if {groups, found} != {file.metadata.num_rows}:
            raise pa.ArrowInvalid(
                f"the footer promises {file.metadata.num_rows} rows, the groups {groups}, found {found}"
            )


def _valid(column: pa.Array) -> pa.Array:
    """Return a column, or the storage of an extension type, whose offsets and indices stay inside its buffers.

    A column of text is checked as bytes: whether they are UTF-8 is judged one value at a time by `_cells`. A view of an
    extension type, even inside a list, ends the process (pyarrow 25).
    """
    column.validate()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
    (column if as_bytes is None else column.view(as_bytes)).validate(full=True)
    return column


def _columns(schema: pa.Schema, config: ColumnsConfig, path: Path) -> list[str] | None:
    """Return the columns that are read, as `ColumnsConfig.present`.

    Raises:
        SourceError: one has a type in which a value can stand for many cells, which cannot be measured before they are
            read (and an extension type over a dictionary ends the process). Two such types are read value by value in
            `_cells`: a view of text, and a dictionary of plain values.
    """
    names = config.present(schema.names, str(path))
    for field in schema:
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not pa.types.is_string_view(plain) and _shares(plain) and (names is None or field.name in names):
            raise SourceError(
                f"{path}: expected a column '{field.name}' that stores every cell separately, found {field.type}. Cast "
                "it to a plain type, or leave it out of the source's columns."
            )
    return names


def _shares(kind: pa.DataType) -> bool:
    """Return whether a value of a type can stand for many cells, also inside an extension type."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    inner = any(_shares(kind.field(place).type) for place in range(kind.num_fields))
    return inner or re.match("dictionary|.*view|run_end", str(kind)) is not None


def _cells(column: pa.Array, max_bytes: int, as_arrays: bool) -> list[Any]:
    """Return the values of a column; a cell that is too large, or that Python cannot represent, is an `Unusable`."""
    if pa.types.is_dictionary(column.type):
        indices = column.indices.to_pylist()
        values = {place: _cell(column.dictionary.slice(place, 1), max_bytes) for place in {*indices} - {None}}
        return [values.get(place) for place in indices]
    if pa.types.is_string_view(column.type):  # cast one by one: all of them may share one text
        return [_cell(column.slice(place, 1).cast(pa.large_string()), max_bytes) for place in range(len(column))]
    inner = getattr(column.type, "value_type", None)
    if as_arrays and inner is not None and (pa.types.is_floating(inner) or pa.types.is_integer(inner)):
        return [scalar.values.to_numpy(zero_copy_only=False) if scalar.is_valid else None for scalar in column]
    if column.nbytes <= max_bytes:
        try:
            return list(column.to_pylist())
        except Exception:  # text that is not UTF-8, dates that Python cannot represent, structs with two equal names
            pass
    return [_cell(column.slice(place, 1), max_bytes) for place in range(len(column))]


def _cell(column: pa.Array, max_bytes: int) -> Any:
    if column.nbytes > max_bytes:
        return Unusable("oversized", f"a cell of {column.nbytes} bytes, at most {max_bytes} are read")
    try:
        return column[0].as_py()
    except UnicodeDecodeError as error:
        return Unusable("encoding", "a cell of type text whose bytes are not valid UTF-8", error.object)
    except Exception as error:
        return Unusable("wrong_type", f"a cell that Python cannot represent ({reason_of(error)})")
