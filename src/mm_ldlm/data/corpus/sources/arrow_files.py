"""Arrow and Parquet files from outside: batches whose buffers are valid, and a count of what the file contains.

A damaged offset makes Arrow read outside its buffers, which ends the process, so every batch is validated before a
value is read. A file may also end early between two batches, which readers do not notice; the number of batches is
therefore counted from the messages of the file, and a stream must end with its end marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_OLD_END = b"\x00\x00\x00\x00"
"""End marker of streams before Arrow 0.15, which have no continuation bytes."""

FAULTS = (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeError, ValueError)
"""What pyarrow raises for a file that is damaged or of another type."""


def arrow_batches(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open the Arrow file format, or the stream format that the `datasets` library writes.

    Raises:
        pa.ArrowInvalid, OSError, ...: one of `FAULTS`, also while the batches are read: the file is damaged, a stream
            has no end marker or bytes after it, or the footer of a file lists fewer batches than the file contains.
    """
    with pa.memory_map(str(path)) as source:
        mapped = source.read_buffer()
    if mapped.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
        return pa.ipc.open_stream(pa.BufferReader(mapped)).schema, _stream(mapped)
    reader = pa.ipc.open_file(pa.BufferReader(mapped))
    found = _num_batches(mapped)
    if found != reader.num_record_batches:
        raise pa.ArrowInvalid(f"the footer lists {reader.num_record_batches} record batches, the file contains {found}")
    return reader.schema, (valid(reader.get_batch(number)) for number in range(reader.num_record_batches))


def parquet_batches(path: Path, *, rows: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a Parquet file, and compare their rows with the footer.

    Raises:
        pa.ArrowInvalid, OSError, ...: one of `FAULTS`.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        # The metadata of columns are not read here: damaged ones end the process instead of raising (pyarrow 25).
        wanted = sum(file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups))
        found = 0
        if wanted != file.metadata.num_rows:
            raise pa.ArrowInvalid(f"the footer promises {file.metadata.num_rows} rows, the row groups have {wanted}")
        for batch in file.iter_batches(rows, columns=columns):
            found += batch.num_rows
            yield valid(batch)
        if found != wanted:
            raise pa.ArrowInvalid(f"the footer promises {wanted} rows, {found} were read")


def valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch after checking that every offset and index stays inside its buffers.

    Text is not checked for UTF-8: its bytes are judged one value at a time by the reader of the cells.

    Raises:
        pa.ArrowInvalid: An array is invalid.
    """
    batch.validate()
    for column in batch.columns:
        try:
            as_bytes = column.view(_bytes_instead_of_text(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            as_bytes = column  # types without a view, such as unions, must also have valid text
        as_bytes.validate(full=True)
    return batch


def _bytes_instead_of_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct(
            [kind.field(i).with_type(_bytes_instead_of_text(kind.field(i).type)) for i in range(len(kind))]
        )
    for is_kind, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_fixed_size_list, lambda field: pa.list_(field, kind.list_size)),
    ):
        if is_kind(kind):
            return make(kind.value_field.with_type(_bytes_instead_of_text(kind.value_type)))
    return kind


def _stream(mapped: pa.Buffer) -> Iterator[pa.RecordBatch]:
    source, rows = pa.BufferReader(mapped), 0
    batches = pa.ipc.open_stream(source)
    read = source.tell()
    for batch in batches:
        rows += batch.num_rows
        read = source.tell()
        yield valid(batch)
    end = source.tell()
    if end != mapped.size:
        raise pa.ArrowInvalid(f"{mapped.size - end} bytes follow the end of the stream, which has {rows} rows")
    # What follows the last message, and not the last bytes: those of a batch may equal the marker.
    expected = _END if mapped.slice(0, 4).to_pybytes() == _END[:4] else _OLD_END
    if mapped.slice(read).to_pybytes() != expected:
        raise pa.ArrowInvalid(
            f"the stream has no end marker after its {rows} rows, so the file may be incomplete; a writer adds the "
            "marker when it is closed"
        )


def _num_batches(mapped: pa.Buffer) -> int:
    """Count the record batches between the beginning of the file format and its footer, message by message."""
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(mapped.slice(8)))
    return sum(message.type == "record batch" for message in messages)
