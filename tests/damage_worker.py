"""Damages files and reads them, case by case: `python tests/damage_worker.py FIRST LAST FOLDER`.

It runs in a process of its own, because a damaged Arrow file may end the process by a signal. One line per case is
printed before and one after reading it, so that the test that started it knows which case was fatal.
"""

from __future__ import annotations

import io
import json
import random
import resource
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.data.corpus.sources import SOURCES, Opening, Row
from mm_ldlm.data.store import ShardStore, StoreWriter

MEMORY_BYTES = 6 * 2**30
ROWS = 60


def rich_table() -> pa.Table:
    """Return a table with a column of each kind of layout: offsets, fixed sizes, bits, indices, nested values."""
    numbers = list(range(ROWS))
    return pa.table(
        {
            "text": [f"text number {n} é" for n in numbers],
            "more": pa.array([None if n % 7 == 0 else f"more {n}" for n in numbers], pa.large_string()),
            "lists": pa.array([[f"w{i}" for i in range(n % 4)] for n in numbers], pa.list_(pa.string())),
            "struct": pa.array([{"a": n, "b": f"b{n}"} for n in numbers]),
            "date": pa.array(numbers, pa.date32()),
            "time": pa.array(numbers, pa.timestamp("us")),
            "word": pa.array([f"k{n % 3}" for n in numbers]).dictionary_encode(),
            "flag": pa.array([n % 3 == 0 for n in numbers]),
            "vector": pa.array([[n, n + 1.0] for n in numbers], pa.list_(pa.float32(), 2)),
        }
    )


def arrow_file(new: Callable[..., pa.RecordBatchFileWriter], compression: str | None = None) -> bytes:
    sink, table = io.BytesIO(), rich_table()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=ROWS // 3)
    return sink.getvalue()


def parquet_file(compression: str = "none") -> bytes:
    sink = io.BytesIO()
    pq.write_table(rich_table(), sink, row_group_size=ROWS // 3, compression=compression)
    return sink.getvalue()


ORIGINALS: dict[str, Callable[[], bytes]] = {
    "file": lambda: arrow_file(pa.ipc.new_file),
    "stream": lambda: arrow_file(pa.ipc.new_stream),
    "compressed": lambda: arrow_file(pa.ipc.new_file, "zstd"),
    "parquet": parquet_file,
    "snappy": lambda: parquet_file("snappy"),
}
KINDS = (*ORIGINALS, "store")


def damaged(original: bytes, case: int) -> bytes:
    """Return the bytes with one of several kinds of damage."""
    draw, data = random.Random(case), bytearray(original)
    place = draw.randrange(len(data))
    kind = draw.randrange(6)
    if kind == 0:
        for _ in range(draw.choice((1, 1, 4, 32))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:  # numbers that are likely to be offsets, lengths and counts
        place = place // 4 * 4
        number = draw.choice((0, 1, -1, 2**31 - 1, -(2**31), draw.randrange(2**31), len(data), 10**6))
        data[place : place + 4] = struct.pack("<i", number)
    elif kind == 3:
        place = place // 8 * 8
        number = draw.choice((-1, 2**63 - 1, -(2**63), 2**40, draw.randrange(2**62), len(data) + 8))
        data[place : place + 8] = struct.pack("<q", number)
    elif kind == 4:
        data[place : place + draw.randrange(1, 200)] = bytes(draw.randrange(1, 200))
    else:
        other = draw.randrange(len(data))
        data[place : place + 64] = data[other : other + 64]
    return bytes(data)


def read_source(path: Path, kind: str) -> int:
    """Read every column as text, as metadata and as a label; return the number of rows."""
    columns = [name for name in rich_table().schema.names if name not in ("text", "more")]
    keys = {"kind": kind, "path": str(path), "columns": ["text", "more"], "meta_columns": columns}
    found = 0
    for extra in ({}, {"label_column": "word", "columns": ["text"]}, {"columns": ["missing"]}):
        config = parse_kind(SOURCES, {**keys, **extra}, at="source")
        rows = list(config.rows(Opening(0, 10_000)))
        json.dumps([list(row) for row in rows])
        found = len(rows) if extra.get("columns") == ["text"] else found
        assert all(isinstance(row.text, str) for row in rows if isinstance(row, Row))
    return found


def write_store(folder: Path) -> None:
    """Write a store with a column for each reader, in two shards."""
    numbers = list(range(ROWS))
    schema = pa.schema([
        ("id", pa.string()), ("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("v", pa.list_(pa.float32(), 3))
    ])  # fmt: skip
    writer = StoreWriter(folder, kind="toy", schema=schema, shard_rows=ROWS // 2)
    ids = [[n] * (n % 5) for n in numbers]
    writer.append({"id": [f"r{n}" for n in numbers], "row": numbers, "ids": ids, "v": [[n, 1.0, 2.0] for n in numbers]})
    writer.finish()


def read_store(folder: Path) -> None:
    found = ShardStore.open(folder, "toy")
    rows = [0, ROWS - 1, ROWS // 2, 5, *range(ROWS)]
    found.strings("id").take(rows)
    found.ints("row").take(rows)
    found.lists("ids").take(rows)
    found.lists("ids").lengths(rows)
    found.lists("ids").padded(rows, pad=0)
    found.fixed("v").take(rows)
    for shard in range(2):
        found.fixed("v").shard(shard)
    found.take(rows).to_pydict()
    found.window(10, 50).to_pydict()
    for table in found.iter_tables(7):
        table.to_pylist()


def read_damaged_store(folder: Path, case: int) -> str:
    """Damage one shard without a change of its size, which opening a store would find; read it and restore it."""
    path = folder / f"part-00000{case // len(KINDS) % 2}.arrow"
    original = path.read_bytes()
    path.write_bytes(damaged(original, case)[: len(original)].ljust(len(original), b"\0"))
    try:
        read_store(folder)
        return "ok"
    finally:
        path.write_bytes(original)


def attempt(case: int, folder: Path) -> str:
    """Return the outcome of one case: ok, refused, or unexpected with the exception."""
    kind = KINDS[case % len(KINDS)]
    try:
        if kind == "store":
            return read_damaged_store(folder / "store", case)
        path = folder / "data"
        path.write_bytes(damaged(ORIGINALS[kind](), case))
        found = read_source(path, "parquet" if kind in ("parquet", "snappy") else "arrow")
        return "ok" if found == ROWS else f"unexpected: {found} of {ROWS} rows and no error"
    except MMLDLMError as error:
        lines = str(error).count("\n") + 1
        return "refused" if lines <= 3 else f"unexpected: a message of {lines} lines: {error!r:.300}"
    except BaseException:
        return "unexpected: " + " | ".join(traceback.format_exc().strip().splitlines()[-7:])


def main() -> None:
    first, last, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    write_store(folder / "store")
    for case in range(first, last):
        print("begin", case, flush=True)
        print("end", case, attempt(case, folder), flush=True)


if __name__ == "__main__":
    main()
