"""Parquet files, Arrow files and streams, and data sets on disk with known rows, damaged or with odd columns."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .damage import damage_bytes, damage_file, damage_json, files_below, write_json
from .line_sources import Made
from .oracle import Written
from .texts import stored, texts

COLUMN_DAMAGE = (
    "none", "bytes", "bytes", "truncate", "types", "duplicate_column", "nulls", "no_rows", "no_columns", "meta",
    "meta", "wrong_kind",
    "missing_column",
)  # fmt: skip
ARROW_DAMAGE = (*COLUMN_DAMAGE, "cut_at_batch", "cut_at_batch", "buffers", "buffers", "dictionary")
DISK_DAMAGE = ("none", "file", "file", "json", "json", "cut_at_batch", "splits", "splits", "duplicate_column")
TEXT_TYPES = (
    "large_string",
    "string_view",
    "binary",
    "dictionary",
    "int64",
    "list",
    "struct",
    "float64",
    "null",
    "bool",
)


def table_of(rows: list[str], damage: str, draw: random.Random) -> tuple[pa.Table, Written]:
    """A table with the texts, and with the odd types or columns of the damage."""
    good = {stored(row) for row in rows}
    written = Written(len(rows), len(rows), whole=good, required=set(good))
    column: pa.Array = pa.array(rows, pa.string())
    fields: list[tuple[str, pa.Array]] = [("n", pa.array(range(len(rows))))]
    if damage == "types":
        kind = draw.choice(TEXT_TYPES)
        column = {
            "large_string": lambda: pa.array(rows, pa.large_string()),
            "string_view": lambda: pa.array(rows, pa.string_view()),
            "binary": lambda: pa.array([row.encode() for row in rows], pa.binary()),
            "dictionary": lambda: pa.array(rows).dictionary_encode(),
            "int64": lambda: pa.array(range(len(rows))),
            "list": lambda: pa.array([[row] for row in rows]),
            "struct": lambda: pa.array([{"text": row} for row in rows]),
            "float64": lambda: pa.array([np.nan] * len(rows)),
            "null": lambda: pa.nulls(len(rows)),
            "bool": lambda: pa.array([True] * len(rows)),
        }[kind]()
        written.required = set()
    elif damage == "nulls":
        values: list[str | None] = [row if draw.random() < 0.5 else None for row in rows]
        column = pa.array(values, pa.string())
        written.required = {stored(value) for value in values if value is not None}
    elif damage == "meta":
        fields.append(("odd", _odd(draw, len(rows))))
    elif damage == "no_rows":
        column, fields, written = column[:0], [("n", pa.array([], pa.int64()))], Written(0, 0)
    fields.insert(draw.randrange(len(fields) + 1), ("text", column))
    if damage == "duplicate_column":
        fields.append(("text", pa.array([f"other {i}" for i in range(len(rows))])))
    if damage == "no_columns":
        return pa.table({}), Written(0, 0)
    if damage == "missing_column":
        fields = [item for item in fields if item[0] != "text"]
        written.whole, written.required = set(), set()
    return pa.Table.from_arrays([item for _, item in fields], names=[name for name, _ in fields]), written


def make_parquet(damage: str, draw: random.Random, folder: Path) -> Made:
    table, written = table_of(texts(draw.randint(1, 40), draw), damage, draw)
    path = folder / "source.parquet"
    pq.write_table(
        table, path, row_group_size=draw.choice((1, 7, 100)), compression=draw.choice(("none", "snappy", "zstd"))
    )
    return _damaged(path, damage, draw, written, {"kind": "parquet"})


def make_arrow(damage: str, draw: random.Random, folder: Path) -> Made:
    table, written = table_of(texts(draw.randint(2, 40), draw), damage, draw)
    path = folder / "source.arrow"
    stream = damage == "cut_at_batch" or draw.random() < 0.5
    batches = table.to_batches(max_chunksize=draw.choice((1, 5, 100)))
    if damage == "buffers":
        count = _write_bad_offsets(path, draw, stream=stream)
        return {"kind": "arrow", "path": str(path)}, Written(count, count)
    if damage == "dictionary":
        indices = pa.array([draw.choice((0, 1, 7, 2**20, -1)) for _ in range(table.num_rows)], pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, pa.array(["one word", "two words"]), safe=False)
        batches = [pa.RecordBatch.from_arrays([column], names=["text"])]
        written = Written(table.num_rows, table.num_rows)
    ends: list[int] = []
    schema = batches[0].schema if batches else table.schema
    with open(path, "wb") as file, (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            file.flush()
            ends.append(file.tell())
    if damage == "cut_at_batch" and ends:
        path.write_bytes(path.read_bytes()[: draw.choice(ends)])
    return _damaged(path, damage, draw, written, {"kind": "arrow"})


def make_disk(damage: str, draw: random.Random, folder: Path) -> Made:
    import datasets

    rows = texts(draw.randint(2, 20), draw)
    table, written = table_of(rows, "none", draw)
    split = len(rows) // 2
    whole = {"train": datasets.Dataset(table.slice(0, split)), "test": datasets.Dataset(table.slice(split))}
    keys: dict[str, Any] = {"kind": "disk", "path": str(folder / "set")}
    if draw.random() < 0.3 and damage != "splits":
        datasets.Dataset(table).save_to_disk(str(folder / "set"))
    else:
        datasets.DatasetDict(whole).save_to_disk(str(folder / "set"))
    files = files_below(folder / "set")
    shards = [path for path in files if path.suffix == ".arrow"]
    if damage == "file":
        damage_file(draw.choice(files), draw)
        written.whole, written.required = None, set()
        written.low = min(written.low, 0)  # a damaged list of files may leave out a whole split
    elif damage == "json":
        path = draw.choice([path for path in files if path.suffix == ".json"])
        import json

        write_json(path, damage_json(json.loads(path.read_text()), draw), draw)
        written.low, written.whole, written.required = 0, None, set()
    elif damage == "cut_at_batch":
        path = draw.choice(shards)
        raw = path.read_bytes()
        path.write_bytes(raw[:-8])  # without the marker of the end
    elif damage == "splits":
        keys["splits"] = draw.choice(
            ({"train": "train", "test": "test"}, {"train": "hash"}, {"dev": "train"}, {"": "test"}, {})
        )
        written.low = 0
        written.required = set()
    elif damage == "duplicate_column":
        keys["columns"] = ["text", "text"]
        written.low, written.high = len(rows), 2 * len(rows)
    return keys, written


def _damaged(path: Path, damage: str, draw: random.Random, written: Written, keys: dict[str, Any]) -> Made:
    if damage == "bytes":
        path.write_bytes(
            damage_bytes(path.read_bytes(), draw, draw.choice(("flip", "flips", "zeros", "insert", "append", "random")))
        )
        written.whole, written.required = None, set()
    elif damage == "truncate":
        raw = path.read_bytes()
        path.write_bytes(raw[: draw.randrange(len(raw))])
    elif damage == "wrong_kind":
        keys["kind"] = draw.choice(("parquet", "arrow", "jsonl", "csv", "text"))
        written.whole, written.required, written.low, written.high = None, set(), 0, 10**6
    elif damage == "meta":
        keys[draw.choice(("meta_columns", "meta_columns", "label_column", "split_column", "pair_column"))] = "odd"
        keys = {name: [value] if name == "meta_columns" else value for name, value in keys.items()}
        written.required = set()
    return {"path": str(path), **keys}, written


def _odd(draw: random.Random, count: int) -> pa.Array:
    """A column whose values have no plain counterpart in Python or JSON."""
    far = draw.choice((2**62, -(2**62), 10**17))
    options: list[pa.Array] = [
        pa.array([far] * count, pa.int64()).cast(pa.timestamp("ms"), safe=False),
        pa.array([far] * count, pa.int64()).cast(pa.timestamp("ns", "UTC"), safe=False),
        pa.array([2**31 - 1] * count, pa.int32()).cast(pa.date32()),
        pa.array([far] * count, pa.int64()).cast(pa.date64(), safe=False),
        pa.array([far] * count, pa.int64()).cast(pa.duration("s")),
        pa.array([np.inf] * count),
        pa.array([2**64 - 1] * count, pa.uint64()),
        pa.array([b"\xff\x00"] * count),
        pa.array([[1, None]] * count),
        pa.array([{"a": {"b": np.nan}}] * count),
        pa.array([datetime.timedelta(days=1)] * count),
        pa.array(["\x00"] * count),
        pa.array([None] * count, pa.map_(pa.string(), pa.int64())),
        pa.array([0] * count, pa.int64()).cast(pa.timestamp("s", "No/Such_Zone")),
    ]
    return draw.choice(options)


def _write_bad_offsets(path: Path, draw: random.Random, *, stream: bool) -> int:
    """Write an array of strings or lists, then move its offsets outside the data, which pyarrow itself refuses."""
    lengths = [3 + i for i in range(draw.randint(3, 12))]
    rows = ["a" * length for length in lengths]
    kind = draw.choice((pa.string(), pa.binary(), pa.large_string(), pa.list_(pa.string())))
    values = (
        [list(row) for row in rows]
        if pa.types.is_list(kind)
        else [row.encode() for row in rows]
        if kind == pa.binary()
        else rows
    )
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["text"])
    with open(path, "wb") as file, (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, batch.schema) as writer:
        writer.write_batch(batch)
    width = np.int64 if kind == pa.large_string() else np.int32
    good = np.cumsum([0, *lengths]).astype(width)
    bad = good.copy()
    far = draw.choice((2**20, 2**30, 2**31 - 1))
    how = draw.choice(("all", "last", "middle", "negative", "falling"))
    if how == "falling":
        bad = bad[::-1]
    else:
        where = {"all": slice(1, None), "last": -1, "middle": len(bad) // 2, "negative": draw.randrange(len(bad))}[how]
        bad[where] = -far if how == "negative" else far
    raw = path.read_bytes()
    if good.tobytes() not in raw:
        raise AssertionError("the offsets are not in the file")
    path.write_bytes(raw.replace(good.tobytes(), bad.tobytes(), 1))
    return len(rows)
