"""Damaged stores: every wrong manifest and every changed byte ends in a StoreError, wherever the store is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from damage import damaged
from mm_ldlm.core.errors import MissingShardError, StoreError, TruncatedShardError
from mm_ldlm.data.store import ShardStore, StoreWriter, shard_file, verified
from mm_ldlm.data.store.manifest import NAME

SCHEMA = pa.schema([("row", pa.int64()), ("ids", pa.list_(pa.int32()))])


def build(path: Path, rows: int = 9) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=4)
    if rows:
        writer.append({"row": list(range(rows)), "ids": [[row] * (row % 3) for row in range(rows)]})
    writer.finish(fingerprints={"maker": "one"}, meta={"dim": 3})
    return ShardStore.open(path, "toy")


def flip(file: Path, place: int) -> None:
    with open(file, "r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte[0] ^ 0x40]))


def forget() -> None:
    """Forget what this process has verified, as another process would not know it."""
    verified._known.clear()


def test_every_damaged_manifest_is_refused_or_reads_the_same_rows(tmp_path: Path) -> None:
    build(tmp_path)
    document = json.loads((tmp_path / NAME).read_text())
    refused = 0
    for change, other in damaged(document):
        (tmp_path / NAME).write_text(json.dumps(other))
        try:
            store = ShardStore.open(tmp_path, "toy")
            assert store.ints("row").take(slice(None)).tolist() == list(range(9)), change
            assert store.manifest.fingerprint, change
        except StoreError as error:
            refused += str(tmp_path) in str(error)
    assert refused > 150


READS: dict[str, Callable[[ShardStore], Any]] = {
    "fixed rows": lambda store: store.ints("row").take([5]),
    "lists": lambda store: store.lists("ids").take([5]),
    "table": lambda store: store.table([5]),
    "window": lambda store: store.window(3, 6),
    "batches": lambda store: list(store.iter_tables()),
}


@pytest.mark.parametrize("read", READS)
def test_a_changed_byte_is_found_at_the_first_read_of_its_shard(read: str, tmp_path: Path) -> None:
    build(tmp_path)
    size = (tmp_path / "part-000001.arrow").stat().st_size
    places = np.linspace(0, size - 1, 12).astype(int).tolist()
    for place in places:
        flip(tmp_path / "part-000001.arrow", place)
        for _ in range(2):  # an error is not recorded as a success
            store = ShardStore.open(tmp_path)
            assert store.ints("row").take([0, 8]).tolist() == [0, 8], "the other shards can still be read"
            with pytest.raises(StoreError, match=r"part-000001\.arrow: checksum differs"):
                READS[read](store)
        flip(tmp_path / "part-000001.arrow", place)
        assert ShardStore.open(tmp_path).ints("row").take([5]).tolist() == [5]


def test_the_first_shard_is_verified_before_its_columns_are_read(tmp_path: Path) -> None:
    build(tmp_path)
    flip(tmp_path / "part-000000.arrow", 40)
    with pytest.raises(StoreError, match=r"part-000000\.arrow: checksum differs"):
        _ = ShardStore.open(tmp_path).schema


@pytest.mark.parametrize("batches", [0, 2])
def test_a_shard_of_several_batches_is_refused_because_only_the_first_would_be_read(
    batches: int, tmp_path: Path
) -> None:
    path = tmp_path / "part-000000.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch({"row": [1], "ids": [[2]]}, schema=SCHEMA))
    with pytest.raises(StoreError, match=f"expected one record batch, found {batches}"):
        shard_file.read(path)


def test_a_file_is_hashed_once_and_again_after_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    promised = {shard.name: shard.sha256 for shard in build(tmp_path).manifest.shards}

    def digest(path: Path) -> str:
        hashed.append(path.name)
        return promised[path.name]

    monkeypatch.setattr(verified, "file_sha256", digest)
    for _ in range(3):
        forget()  # three processes
        ShardStore.open(tmp_path).ints("row").take([0, 5, 8])
    assert sorted(hashed) == ["part-000000.arrow", "part-000001.arrow", "part-000002.arrow"]
    hashed.clear()
    file = tmp_path / "part-000001.arrow"
    before = file.stat()
    flip(file, 100)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # the time of change still differs
    ShardStore.open(tmp_path).ints("row").take([0, 5, 8])
    assert hashed == ["part-000001.arrow"]


@pytest.mark.parametrize("other", range(5))
def test_the_record_tells_files_apart_by_name_size_and_both_times(
    other: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the five differs alone; on a real file system the time of change differs with any of the others."""
    numbers = [7, 1_000, 2_000]

    def line(name: str, sha256: str) -> str:
        size, modified, changed = numbers
        found = SimpleNamespace(st_size=size, st_mtime_ns=modified, st_ctime_ns=changed)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", lambda self: found)
            return verified._line(tmp_path, name, sha256, "")

    before = line("a", "x")
    assert before == line("a", "x")
    if other < len(numbers):
        numbers[other] += 1
    assert before != line("b" if other == 3 else "a", "y" if other == 4 else "x")


def test_a_torn_or_damaged_record_only_costs_time(tmp_path: Path) -> None:
    build(tmp_path).ints("row").take(slice(None))
    record = tmp_path / verified.RECORD
    for text in (record.read_bytes()[:-7], b"\xff\xfe", b"", b"part-000001.arrow 1 2 3 4\n" * 3):
        record.write_bytes(text)
        forget()
        flip(tmp_path / "part-000001.arrow", 100)
        with pytest.raises(StoreError, match="checksum differs"):
            ShardStore.open(tmp_path).ints("row").take([5])
        flip(tmp_path / "part-000001.arrow", 100)


def test_a_folder_that_cannot_be_written_to_is_verified_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)

    def refused(*arguments: object) -> int:
        raise PermissionError

    monkeypatch.setattr(verified.os, "open", refused)
    ShardStore.open(tmp_path).ints("row").take([5])
    assert not (tmp_path / verified.RECORD).exists()


def test_a_manifest_of_no_shards_beside_shards_is_refused(tmp_path: Path) -> None:
    build(tmp_path)
    document = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**document, "rows": 0, "shards": []}))
    with pytest.raises(StoreError, match=r"found a manifest of no shards and 3 shards"):
        ShardStore.open(tmp_path)
    empty = build(tmp_path / "empty", rows=0)
    assert empty.schema == SCHEMA
    (tmp_path / "empty" / "schema.arrow").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"schema\.arrow: not a readable schema"):
        _ = ShardStore.open(tmp_path / "empty").schema


def test_a_shard_that_is_deleted_while_the_store_is_open_is_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    (tmp_path / "part-000002.arrow").unlink()
    with pytest.raises(MissingShardError, match=r"part-000002\.arrow: this shard is missing"):
        store.ints("row").take([8])


def test_a_shard_of_another_size_is_refused_when_the_store_is_opened(tmp_path: Path) -> None:
    build(tmp_path)
    shards = [tmp_path / f"part-{number:06d}.arrow" for number in range(3)]
    whole = shards[1].read_bytes()
    for raw, kind, message in (
        (whole + b"\0", StoreError, f"expected {len(whole)} bytes, found {len(whole) + 1}. Run"),
        (whole[:-1], TruncatedShardError, f"truncated shard, expected {len(whole)} bytes, found {len(whole) - 1}. Run"),
    ):
        shards[1].write_bytes(raw)
        with pytest.raises(StoreError) as error:
            ShardStore.open(tmp_path)
        assert (type(error.value), str(error.value).startswith(f"{shards[1]}: {message}")) == (kind, True)
    shards[2].write_bytes(b"")
    shards[0].unlink()
    with pytest.raises(
        MissingShardError, match=r"part-000000\.arrow: this shard is missing .* \(2 more shards are wrong"
    ):
        ShardStore.open(tmp_path)
