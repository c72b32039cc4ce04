"""Reading: random batches of tokens and latents against one small file a row, and a store of ten million rows.

The peers are the older folder layout: `.npz` for tokens, `.npy` for latents, opened per sample as a plain data set
does. All files are in the page cache before either side is measured; what is compared is the reading, not the disk.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DIM = 384
ROWS = 20_000
BATCH = 256
BATCHES = 40
LARGE_ROWS = 10_000_000
LARGE_SHARD = 65_536
READS = 1_000_000
MARKED = 100
"""Rows of the large store at multiples of this number contain their row number; all others contain zeros."""


def run() -> list[dict[str, Any]]:
    """Return the rows: batches against files; opening, memory and random reads of ten million rows."""
    with tempfile.TemporaryDirectory() as temporary:
        return [_batches(Path(temporary)), *_large(Path(temporary))]


# -- against one file a row
# ---------------------------------------------------------------------------------------------


def _batches(folder: Path) -> dict[str, Any]:
    from mm_ldlm.data.latents.store import LatentStore
    from mm_ldlm.data.store import ShardStore

    random = np.random.default_rng(0)
    vectors = random.standard_normal((ROWS, DIM)).astype(np.float32)
    lengths = random.integers(4, 32, ROWS)
    ids = [random.integers(0, 30_000, length).astype(np.int32) for length in lengths]
    _write_stores(folder, vectors, ids)
    _write_files(folder, vectors, ids)
    chosen = [random.integers(0, ROWS, BATCH) for _ in range(BATCHES)]
    tokens = ShardStore.open(folder / "tokens").lists("input_ids")
    latents = LatentStore.open(folder / "latents")

    def ours(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return tokens.padded(rows, pad=0, length=32), latents.take(rows)

    def theirs(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        padded = np.zeros((len(rows), 32), np.int64)
        stacked = np.empty((len(rows), DIM), np.float32)
        for place, row in enumerate(rows.tolist()):
            with np.load(folder / "npz" / f"{row:08d}.npz") as arrays:
                found = arrays["input_ids"]
            padded[place, : len(found)] = found
            stacked[place] = np.load(folder / "npy" / f"{row:08d}.npy")
        return padded, stacked

    for left, right in zip(ours(chosen[0]), theirs(chosen[0]), strict=True):
        np.testing.assert_array_equal(left, right)
    speed: dict[str, list[float]] = {"ours": [], "theirs": []}
    for rows in chosen:
        for name, read in (("theirs", theirs), ("ours", ours)):
            start = time.perf_counter()
            read(rows)
            speed[name].append(BATCH / (time.perf_counter() - start))
    value, peer = statistics.median(speed["ours"]), statistics.median(speed["theirs"])
    return {
        "name": "stores.random_batch_rows_per_second",
        "value": value,
        "unit": "rows/s",
        "peer": "np.load of one .npz and one .npy a row",
        "peer_value": peer,
        "ratio": value / peer,
        "note": (
            f"tokens (padded to 32) and latents (dimension {DIM}) of {BATCH} random rows of {ROWS} in 10 shards "
            f"each; median of {BATCHES} alternating batches, with a warm page cache"
        ),
    }


def _write_stores(folder: Path, vectors: npt.NDArray[np.float32], ids: list[npt.NDArray[np.int32]]) -> None:
    from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA
    from mm_ldlm.data.latents import store as latent_store
    from mm_ldlm.data.store import write_store

    names = [f"{row:032x}" for row in range(ROWS)]
    schema, size = latent_store.schema(DIM, "float32"), ROWS // 10
    tables = [latent_store.table(names, vectors)]
    write_store(folder / "latents", tables, kind="latents", schema=schema, shard_rows=size, meta={"dim": DIM})
    columns = {"id": names, "input_ids": ids, "length": [len(row) for row in ids]}
    write_store(folder / "tokens", [columns], kind="tokens", schema=TOKEN_SCHEMA, shard_rows=size)


def _write_files(folder: Path, vectors: npt.NDArray[np.float32], ids: list[npt.NDArray[np.int32]]) -> None:
    for name in ("npz", "npy"):
        (folder / name).mkdir()
    for row in range(ROWS):
        np.savez(folder / "npz" / f"{row:08d}.npz", input_ids=ids[row])
        np.save(folder / "npy" / f"{row:08d}.npy", vectors[row])


# -- ten million rows
# -----------------------------------------------------------------------------------------------------

_READER = """
import json, resource, sys, time
import numpy as np
import pyarrow
from mm_ldlm.data.latents.store import LatentStore

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

before = resident()
start = time.perf_counter()
store = LatentStore.open(sys.argv[1])
opened = time.perf_counter() - start
rows = np.random.default_rng(0).integers(0, len(store), int(sys.argv[2]))
top, wrong = 0, 0
start = time.perf_counter()
for first in range(0, len(rows), 256):
    batch = rows[first : first + 256]
    wrong += int((store.take(batch)[:, 0] != np.where(batch % int(sys.argv[3]), 0, batch)).sum())
    top = max(top, resident())
seconds = time.perf_counter() - start
print(json.dumps({"rows": len(store), "open": opened, "read": seconds, "resident": top, "before": before, "wrong":
wrong}))
"""


def _large(folder: Path) -> list[dict[str, Any]]:
    import json

    large = folder / "large"
    write_sparse_store(large, rows=LARGE_ROWS, shard_rows=LARGE_SHARD)
    source = str(Path(__file__).resolve().parents[1] / "src")
    done = subprocess.run(
        [sys.executable, "-c", _READER, str(large), str(READS), str(MARKED)],
        env={**os.environ, "PYTHONPATH": source},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if found["wrong"] or found["rows"] != LARGE_ROWS:
        raise AssertionError(f"wrong rows: {found}")
    note = f"{LARGE_ROWS:,} rows of dimension {DIM} (sparse shards of {LARGE_SHARD:,})"
    return [
        {
            "name": "stores.open_ten_million_rows",
            "value": found["open"],
            "unit": "s",
            "note": f"{note}; target below 1",
        },
        {
            "name": "stores.resident_while_reading",
            "value": found["resident"] / 2**20,
            "unit": "MiB",
            "note": (
                f"{note}; maximum while {READS:,} random rows were read in batches of {BATCH}, "
                f"{found['before'] / 2**20:.0f} "
                "MiB of it Python and its libraries before opening; target below 300"
            ),
        },
        {
            "name": "stores.random_rows_per_second_of_ten_million",
            "value": READS / found["read"],
            "unit": "rows/s",
            "note": f"{note}; in batches of {BATCH}",
        },
    ]


def write_sparse_store(folder: Path, *, rows: int, shard_rows: int) -> None:
    """Write 15 GB of latents that need little disk space, because zeros are holes in the files.

    They are recorded as verified: 15 GB are hashed once in the life of a store, and not whenever it is opened.
    """
    from mm_ldlm.data.latents import store as latent_store
    from mm_ldlm.data.store import Manifest, Shard
    from mm_ldlm.data.store.manifest import remember
    from mm_ldlm.data.store.writer import shard_name

    folder.mkdir(parents=True)
    shards = []
    for number in range(-(-rows // shard_rows)):
        count = min(shard_rows, rows - number * shard_rows)
        path = folder / shard_name(number)
        _sparse_shard(path, number, count, latent_store.schema(DIM, "float32"))
        shards.append(Shard(name=path.name, rows=count, bytes=path.stat().st_size, sha256="not computed"))
        remember(folder, shards[-1].line(folder))
    Manifest(kind="latents", rows=rows, shards=tuple(shards), meta={"dim": DIM}).write(folder)


_TEMPLATES: dict[int, tuple[bytes, int, bytes]] = {}


def _sparse_shard(path: Path, number: int, count: int, schema: pa.Schema) -> None:
    """Write one real shard of zeros to get the bytes before and after the numbers; a hole lies between them."""
    size = count * DIM * 4
    if count not in _TEMPLATES:
        flat = pa.array(np.zeros(count * DIM, np.float32))
        ids = pa.array([""] * count, pa.string())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([ids, pa.FixedSizeListArray.from_arrays(flat, DIM)], schema=schema))
        data = sink.getvalue()
        values = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0).column("latent").values.buffers()[1]
        offset = values.address - data.address
        _TEMPLATES[count] = (data[:offset].to_pybytes(), offset, data[offset + size :].to_pybytes())
    head, offset, tail = _TEMPLATES[count]
    first = number * LARGE_SHARD
    with open(path, "wb") as file:
        file.write(head)
        for row in range(-first % MARKED, count, MARKED):
            file.seek(offset + row * DIM * 4)
            file.write(np.float32(first + row).tobytes())
        file.seek(offset + size)
        file.write(tail)
