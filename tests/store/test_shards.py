"""Shard stores: reads equal writes, in any order and from any process, and damage is named."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.data.store import Manifest, Shard, ShardStore, StoreWriter, shards, write_shard
from mm_ldlm.data.store.fingerprint import file_sha256

SCHEMA = pa.schema(
    [("id", pa.string()), ("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("v", pa.list_(pa.float32(), 3))]
)


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = np.arange(start, start + rows)
    return pa.table(
        {
            "id": [f"r{n}" for n in numbers],
            "row": numbers,
            "ids": [list(range(n, n + n % 5)) for n in numbers.tolist()],
            "v": [[n, n + 0.25, -n] for n in numbers.tolist()],
        },
        schema=SCHEMA,
    )


def build(path: Path, rows: int = 23, shard_rows: int = 7, piece: int = 5) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=shard_rows)
    for start in range(0, rows, piece):
        writer.append(table(min(piece, rows - start), start))
    writer.finish(fingerprints={"maker": "one"}, meta={"dim": 3})
    return ShardStore.open(path, "toy")


READERS = {"strings": "id", "ints": "row", "lists": "ids", "fixed": "v"}


@pytest.mark.parametrize(("reader", "own"), READERS.items())
def test_a_column_of_another_type_is_refused_when_it_is_opened(tmp_path: Path, reader: str, own: str) -> None:
    """A list in place of a text would give a traceback where two texts are compared."""
    store = build(tmp_path / "store")
    for right, name in READERS.items():
        getattr(store, right)(name)
    for name in {*SCHEMA.names} - {own}:
        with pytest.raises(StoreError, match=f"expected .* in column '{name}', found"):
            getattr(store, reader)(name)


@pytest.mark.parametrize(
    "name", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "float16", "float32", "float64"]
)
def test_numbers_of_every_type_come_back_in_it(name: str, tmp_path: Path) -> None:
    kind = pa.from_numpy_dtype(np.dtype(name))
    schema = pa.schema([("n", kind), ("l", pa.list_(kind)), ("f", pa.list_(kind, 2))])
    numbers = np.arange(5).astype(name)
    flat = pa.array(np.arange(10).astype(name))
    columns = [
        pa.array(numbers), pa.ListArray.from_arrays(pa.array([0, 1, 1, 4, 6, 10], pa.int32()), flat),
        pa.FixedSizeListArray.from_arrays(flat, 2),
    ]  # fmt: skip
    writer = StoreWriter(tmp_path, kind="toy", schema=schema, shard_rows=2)
    writer.append(pa.Table.from_arrays(columns, schema=schema))
    writer.finish()
    store = ShardStore.open(tmp_path)
    values, offsets = store.lists("l").take([2, 0])
    found = (store.ints("n").take([4, 1]), store.ints("n")[[4, 1]], values, store.fixed("f").take([3, 0]))
    assert [each.tolist() for each in found] == [[4, 1], [4, 1], [1, 2, 3, 0], [[6, 7], [0, 1]]]
    assert {each.dtype.name for each in found} == {name}
    assert offsets.tolist() == [0, 3, 4]
    assert (store.fixed("f").dim, store.fixed("f").dtype.name) == (2, name)
    assert store.fixed("f").shard(1).tolist() == [[4, 5], [6, 7]]


def test_shards_are_cut_by_rows_whatever_pieces_arrive(tmp_path: Path) -> None:
    store = build(tmp_path / "a")
    assert [s.rows for s in store.manifest.shards] == [7, 7, 7, 2]
    other = build(tmp_path / "b", piece=11)
    assert store.manifest == other.manifest


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.integers(0, 22), max_size=40), shard_rows=st.sampled_from([1, 4, 7, 100]))
def test_any_gather_equals_the_plain_one(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], shard_rows: int
) -> None:
    store = build(tmp_path_factory.mktemp("s") / "x", shard_rows=shard_rows)
    np.testing.assert_array_equal(
        store.fixed("v").take(rows), np.array([[n, n + 0.25, -n] for n in rows], np.float32).reshape(-1, 3)
    )
    values, offsets = store.lists("ids").take(rows)
    expected = [list(range(n, n + n % 5)) for n in rows]
    assert [values[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected
    padded = store.lists("ids").padded(rows, pad=-1, length=6)
    assert padded.shape == (len(rows), 6)
    assert [[int(v) for v in row if v != -1] for row in padded] == expected
    assert store.lists("ids").lengths(rows).tolist() == [len(e) for e in expected]
    assert store.strings("id").take(rows) == [f"r{n}" for n in rows]
    assert store.ints("row").take(rows).tolist() == rows
    plain = pa.concat_tables([SCHEMA.empty_table(), *(table(1, n) for n in rows)])
    assert store.take(rows).equals(plain.combine_chunks())


def test_slices_and_single_rows(tmp_path: Path) -> None:
    column = build(tmp_path / "x").fixed("v")
    assert len(column) == 23
    assert column[5:9].shape == (4, 3)
    np.testing.assert_array_equal(column[-1], column.take([22])[0])
    with pytest.raises(StoreError, match="found row 23"):
        column.take([3, 23])


def test_a_row_longer_than_the_given_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"at most 3 items.*found 4"):
        build(tmp_path / "x").lists("ids").padded([4], pad=0, length=3)


def test_iterating_gives_every_row_once(tmp_path: Path) -> None:
    store = build(tmp_path / "x")
    found = pa.concat_tables(store.iter_tables(4, columns=["row"]))
    assert found["row"].to_pylist() == list(range(23))


@pytest.mark.parametrize(("start", "stop"), [(0, 23), (3, 5), (5, 16), (20, 90), (7, 7)])
def test_a_window_has_the_rows_and_the_columns_that_are_named(start: int, stop: int, tmp_path: Path) -> None:
    store = build(tmp_path / "x")
    rows = min(stop, 23) - start
    assert store.window(start, stop).combine_chunks().equals(table(rows, start).combine_chunks())
    expected = table(rows, start).select(["row", "id"]).combine_chunks()
    assert store.window(start, stop, columns=["row", "id"]).combine_chunks().equals(expected)


def test_an_empty_store_has_a_schema(tmp_path: Path) -> None:
    StoreWriter(tmp_path, kind="toy", schema=SCHEMA).finish()
    store = ShardStore.open(tmp_path)
    assert len(store) == 0
    assert store.schema == SCHEMA
    assert store.fixed("v").take([]).shape == (0, 3)


def test_pickles_carry_the_path_only_and_forks_read(tmp_path: Path) -> None:
    store = build(tmp_path / "x")
    store.fixed("v").take([0, 10])
    assert len(pickle.dumps(store)) < 3000
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.fixed("v").take([20]), store.fixed("v").take([20]))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(store.fixed("v").take([0, 22]).tolist()))
    process.start()
    process.join()
    assert queue.get() == store.fixed("v").take([0, 22]).tolist()


def test_released_pages_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "RESIDENT_BYTES", 1000)
    store = build(tmp_path / "x")
    column = store.fixed("v")
    held = column.shard(0)
    for row in range(23):
        assert column.take([row])[0, 0] == row
    store.release()
    assert held[:, 0].tolist() == list(range(7))


@pytest.mark.parametrize("limit", [0, 3000, 10**9])
def test_the_count_of_mapped_bytes_is_never_above_the_files_and_bounded(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "RESIDENT_BYTES", limit)
    monkeypatch.setattr(shards, "_FAULT_BYTES", 500)
    dropped: list[int] = []
    real = shards._drop_pages
    monkeypatch.setattr(shards, "_drop_pages", lambda *span: dropped.append(span[1]) or real(*span))
    store = build(tmp_path / "x")
    sizes = [shard.bytes for shard in store.manifest.shards]
    largest = 0
    for row in np.random.default_rng(0).integers(0, 23, 60).tolist():
        store.fixed("v").take([row])
        assert store._resident == sum(store._touched.values())
        assert all(count <= sizes[shard] for shard, count in store._touched.items())
        assert store._resident <= limit or len(store._touched) == 1, "only the shard that is read exceeds the limit"
        largest = max(largest, store._resident)
    assert bool(dropped) == (limit < sum(sizes))
    assert largest == sum(sizes) or limit < sum(sizes)
    store.release(keep=0)
    assert set(store._touched) <= {0}
    assert store._resident == sum(store._touched.values())
    store.release()
    assert (store._touched, store._resident) == ({}, 0)


def test_limits_of_memory_are_bytes() -> None:
    assert (shards.RESIDENT_BYTES, shards._FAULT_BYTES) == (64 * 2**20, 64 * 2**10)


def test_every_field_of_a_manifest_is_in_its_fingerprint() -> None:
    shard = Shard(name="part-000000.arrow", rows=3, bytes=9, sha256="a")
    plain = Manifest(kind="toy", rows=3, shards=(shard,), fingerprints={"maker": "one"}, meta={"dim": 3})
    others: dict[str, Any] = {
        "kind": "other", "rows": 4, "shards": (shard, shard), "fingerprints": {"maker": "two"}, "meta": {"dim": 4},
        "format_version": 2,
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(Manifest)} == set(others)
    parts: dict[str, Any] = {"name": "part-000001.arrow", "rows": 4, "bytes": 8, "sha256": "b"}
    assert {field.name for field in dataclasses.fields(Shard)} == set(parts)
    changed = [dataclasses.replace(plain, **{name: value}) for name, value in others.items()]
    changed += [dataclasses.replace(plain, shards=(dataclasses.replace(shard, **{k: v}),)) for k, v in parts.items()]
    assert len({plain.fingerprint, *(each.fingerprint for each in changed)}) == 1 + len(changed)


@pytest.mark.parametrize("version", [0, 2, -1, 1.5, "1", None])
def test_a_store_of_another_version_is_refused(version: Any, tmp_path: Path) -> None:
    build(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": version}))
    with pytest.raises(StoreError, match=r"expected format version 1, found .*Write the store again"):
        ShardStore.open(tmp_path)


def test_only_file_pages_are_ever_dropped(tmp_path: Path) -> None:
    """A compressed shard is decompressed into anonymous memory; dropping that would turn it into zeros."""
    path = tmp_path / "part-000000.arrow"
    big = table(50_000)
    with pa.ipc.new_file(str(path), SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(big.combine_chunks().to_batches()[0])
    shard = Shard(name=path.name, rows=50_000, bytes=path.stat().st_size, sha256=file_sha256(path))
    Manifest(kind="toy", rows=50_000, shards=(shard,)).write(tmp_path)
    store = ShardStore.open(tmp_path)
    held = store.fixed("v").shard(0)
    assert store._spans[0] == (0, 0)
    store.release()
    assert held[:, 0].tolist() == list(range(50_000))


def test_damage_is_named(tmp_path: Path) -> None:
    store = build(tmp_path / "flip")
    path = store.directory / "part-000001.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"checksum differs in part-000001\.arrow"):
        ShardStore.open(store.directory).verify()

    store = build(tmp_path / "cut")
    path = store.directory / "part-000002.arrow"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match="truncated shard"):
        ShardStore.open(store.directory)

    store = build(tmp_path / "gone")
    (store.directory / "part-000000.arrow").unlink()
    with pytest.raises(StoreError, match=r"part-000000\.arrow: this shard is missing"):
        ShardStore.open(store.directory)

    with pytest.raises(StoreError, match="expected a store of kind 'latents', found 'toy'"):
        ShardStore.open(build(tmp_path / "kind").directory, "latents")
    with pytest.raises(StoreError, match="the store is not finished"):
        ShardStore.open(tmp_path / "nowhere")


def test_a_path_that_is_no_folder_of_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "file", tmp_path / "loop", tmp_path / ("long" * 200)):
        with pytest.raises(StoreError, match=r"manifest\.json: cannot be read"):
            Manifest.read(path)


def test_a_shard_of_another_dimension_is_named(tmp_path: Path) -> None:
    schema3 = pa.schema([("v", pa.list_(pa.float32(), 3))])
    schema4 = pa.schema([("v", pa.list_(pa.float32(), 4))])
    first = write_shard(tmp_path, "part-000000.arrow", pa.table({"v": [[1, 2, 3.0]]}, schema=schema3))
    second = write_shard(tmp_path, "part-000001.arrow", pa.table({"v": [[1, 2, 3.0, 4]]}, schema=schema4))
    Manifest(kind="toy", rows=2, shards=(first, second)).write(tmp_path)
    with pytest.raises(StoreError, match=r"part-000001\.arrow: expected the columns .*\[3\], found .*\[4\]"):
        ShardStore.open(tmp_path).fixed("v").take([1])


def test_pitfall_25_another_fingerprint_is_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path).manifest
    manifest.require(directory=tmp_path, maker="one")
    with pytest.raises(FingerprintError, match="made with maker two, found maker one"):
        manifest.require(directory=tmp_path, maker="two")


def test_an_unfinished_rewrite_is_not_the_old_store(tmp_path: Path) -> None:
    build(tmp_path)
    StoreWriter(tmp_path, kind="toy", schema=SCHEMA).append(table(1))
    assert not Manifest.exists(tmp_path)


def test_a_shorter_rewrite_leaves_no_old_shards(tmp_path: Path) -> None:
    build(tmp_path, rows=23)
    build(tmp_path, rows=9)
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "part-000000.arrow", "part-000001.arrow"]


def test_a_manifest_that_names_a_shard_twice_is_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path).manifest
    first, second, *rest = manifest.shards
    dataclasses.replace(manifest, shards=(first, first, *rest), rows=23).write(tmp_path)
    with pytest.raises(StoreError, match="expected 4 shards, found 3: some are named twice"):
        ShardStore.open(tmp_path)
    assert (first.rows, second.rows) == (7, 7), "the number of rows alone would fit"


@pytest.mark.parametrize("name", ["../other/part-000000.arrow", "/etc/hostname", "a/b.arrow"])
def test_a_shard_outside_the_store_is_refused(tmp_path: Path, name: str) -> None:
    build(tmp_path)
    file = tmp_path / "manifest.json"
    plain = json.loads(file.read_text())
    plain["shards"][0]["name"] = name
    file.write_text(json.dumps(plain))
    with pytest.raises(StoreError, match="is not a file of this folder"):
        ShardStore.open(tmp_path)
