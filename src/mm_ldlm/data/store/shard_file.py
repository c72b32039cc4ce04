"""One shard as a file: mapped into memory, with checks that keep damaged bytes from ending the process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from mm_ldlm.core.errors import MissingShardError, StoreError

REMEDY = "Run the pipeline that writes this store again; the embedding pipeline then writes only what is missing."


def read(path: str | Path) -> pa.RecordBatch:
    """Memory-map the one record batch of a shard; StoreError when the file is missing or damaged."""
    return map_file(path)[0]


def map_file(path: str | Path) -> tuple[pa.RecordBatch, pa.Buffer]:
    """Return the batch and the mapped bytes that contain it."""
    try:
        with pa.memory_map(str(path)) as file:
            mapped = file.read_buffer()
        reader = pa.ipc.open_file(pa.BufferReader(mapped))
        if reader.num_record_batches != 1:
            raise StoreError(f"{path}: expected one record batch, found {reader.num_record_batches}. {REMEDY}")
        batch = reader.get_batch(0)
        batch.validate()
        if len(set(batch.schema.names)) != len(batch.schema.names):
            raise StoreError(f"{path}: two columns have one name ({describe(batch.schema)}). Remove it. {REMEDY}")
        return batch, mapped
    except FileNotFoundError:
        raise MissingShardError(f"{path}: this shard is missing. {REMEDY}") from None
    except (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeError) as error:
        raise StoreError(f"{path}: not a readable shard ({error}). Remove it. {REMEDY}") from None


def validate(array: pa.Array, *, path: Path, column: str) -> None:
    """Check that the offsets of a column stay inside its buffers; reading a damaged one could end the process.

    Only texts may be null. Numbers and vectors are not read here: `ShardStore.verify` compares their checksums.

    Raises:
        StoreError: The column is damaged.
    """
    try:
        array.validate(full=True)
        parts = [array]
        while parts[-1].type.num_fields == 1:
            parts.append(parts[-1].values)
        nulls = sum(part.null_count for part in parts if not pa.types.is_string(part.type))
    except (pa.ArrowException, UnicodeError, AttributeError) as error:
        raise StoreError(f"{path}: column {column!r} is damaged ({error}). Remove this shard. {REMEDY}") from None
    if nulls:
        raise StoreError(f"{path}: expected no nulls in column {column!r}, found {nulls}. Remove this shard. {REMEDY}")


def describe(schema: pa.Schema) -> str:
    """Return the columns and their types in words."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
