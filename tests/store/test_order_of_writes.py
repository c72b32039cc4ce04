"""What a reader finds after a crash, behind a link or in a part of a store: the order of writes, and second cases."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.store.npy import map_npy, read_npy
from mm_ldlm.data.store.paths import refuse_no_file

from mm_ldlm.core.errors import StoreError, TruncatedShardError
from mm_ldlm.data.store import ShardStore, StoreWriter, atomic, lock, verified
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

SCHEMA = pa.schema([("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("name", pa.string())])


class Own(ShardStore):
    """A reader of a kind of its own."""


def build(path: Path, rows: int = 9) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=4)
    ids = [[row] * (row % 3) for row in range(rows)]
    writer.append({"row": list(range(rows)), "ids": ids, "name": [f"n{row}" for row in range(rows)]})
    writer.finish()
    return ShardStore.open(path, "toy")


# -- writes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Flushes and renames in their order: of a file its bytes, of a folder its name."""
    found: list[tuple[str, Any]] = []
    real_replace, real_fsync = os.replace, os.fsync

    def replace(source: Any, target: Any) -> None:
        found.append(("rename", Path(target).name.split("-")[-1] if "old" not in str(target) else "old"))
        real_replace(source, target)

    def fsync(descriptor: int) -> None:
        about = os.fstat(descriptor)
        found.append(("folder", None) if stat.S_ISDIR(about.st_mode) else ("file", about.st_size))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, events: list[tuple[str, Any]]
) -> None:
    """A power failure leaves the old file or the whole new one."""
    for _ in range(2):
        atomic.write_bytes(tmp_path / "x", b"12345")
        assert events == [("file", 5), ("rename", "x"), ("folder", None)]
        events.clear()
    with atomic.new_directory(tmp_path / "d") as new:
        (new / "deep").mkdir()
        (new / "deep" / "a").write_bytes(b"123")
        (new / "b").write_bytes(b"1234567")
    assert (sorted(events[:2]), events[2:]) == ([("file", 3), ("file", 7)], [("rename", "d"), ("folder", None)])
    events.clear()
    with atomic.new_directory(tmp_path / "d") as new:
        (new / "c").write_bytes(b"1")
        assert not events
    assert events == [("file", 1), ("rename", "old"), ("rename", "d"), ("folder", None)]
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
def test_a_folder_that_is_written_again_in_vain_stays_as_it_was(error: Any, tmp_path: Path) -> None:
    with atomic.new_directory(tmp_path / "d") as new:
        (new / "a").write_text("old")

    def fail() -> None:
        with atomic.new_directory(tmp_path / "d") as new:
            (new / "a").write_text("new")
            raise error

    with pytest.raises(error):
        fail()
    assert (tmp_path / "d" / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_write_that_is_interrupted_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    atomic.write_text(tmp_path / "x", "old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_text(tmp_path / "x", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "old")]


def test_a_table_of_other_columns_is_stored_in_the_columns_of_the_store(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32()))])
    writer = StoreWriter(tmp_path, kind="toy", schema=schema, shard_rows=2)
    for start in (0, 3):
        rows = range(start, start + 3)
        writer.append(pa.table({
            "b": pa.array([[row + 0.5] for row in rows], pa.list_(pa.float64())), "more": ["x"] * 3,
            "a": pa.array(rows, pa.int16()),
        }))  # fmt: skip
    manifest = writer.finish()
    store = ShardStore.open(tmp_path)
    assert store.schema == schema
    assert store.table(slice(None)).to_pylist() == [{"a": row, "b": [row + 0.5]} for row in range(6)]
    assert (manifest.meta["columns"], [shard.rows for shard in manifest.shards]) == (["a", "b"], [2, 2, 2])
    assert [shard.bytes for shard in manifest.shards] == [path.stat().st_size for path in sorted(tmp_path.glob("p*"))]


def test_a_fingerprint_is_that_of_sorted_compact_json() -> None:
    """Stores and checkpoints of earlier versions have such fingerprints."""
    plain = '{"a":"é/x","b":[1,2.5,null,true],"c":{"d":"e"}}'
    value = {"c": {"d": Path("e")}, "b": (np.int64(1), 2.5, None, True), "a": "é/x"}
    assert fingerprint(value) == hashlib.sha256(plain.encode()).hexdigest()[:32]


# -- reads -------------------------------------------------------------------------------------------------------------


def test_tables_have_at_most_the_rows_that_are_asked_for_and_the_named_columns(tmp_path: Path) -> None:
    store = build(tmp_path)
    for most, sizes in ((1, [1] * 9), (3, [3, 1, 3, 1, 1]), (4, [4, 4, 1]), (100, [4, 4, 1])):
        tables = list(store.iter_tables(most, columns=["name", "row"]))
        assert [table.num_rows for table in tables] == sizes
        assert all(table.column_names == ["name", "row"] for table in tables)
        rows = [row for table in tables for row in table.to_pylist()]
        assert rows == [{"name": f"n{row}", "row": row} for row in range(9)]
    assert next(store.iter_tables()).column_names == SCHEMA.names
    assert [store.bounds(number) for number in range(3)] == [(0, 4), (4, 8), (8, 9)]


@pytest.mark.parametrize(
    "rows", [slice(None, None, -2), slice(7, 1, -3), slice(1, 100, 4), slice(-3, None), slice(5, 5)]
)
def test_a_slice_has_the_rows_of_a_list(rows: slice, tmp_path: Path) -> None:
    store, expected = build(tmp_path), list(range(9))[rows]
    assert store.ints("row").take(rows).tolist() == expected
    assert store.table(rows)["row"].to_pylist() == expected
    assert store.strings("name")[rows] == [f"n{row}" for row in expected]
    padded = store.lists("ids").padded(rows, pad=-1)
    width = max((row % 3 for row in expected), default=0)
    assert padded.tolist() == [[row] * (row % 3) + [-1] * (width - row % 3) for row in expected]
    assert padded.shape == (len(expected), width)
    assert padded.dtype == np.int64


def test_a_reader_of_a_kind_of_its_own_stays_one_in_another_process(tmp_path: Path) -> None:
    build(tmp_path)
    found = Own.open(tmp_path)
    found.ints("row").take([8])
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), again.directory, again.manifest) == (Own, tmp_path, found.manifest)
    assert again.ints("row").take([8, 0]).tolist() == [8, 0]


def test_a_shard_may_be_a_link_inside_its_folder_and_is_measured_by_its_target(tmp_path: Path) -> None:
    build(tmp_path / "s")
    shard = tmp_path / "s" / "part-000001.arrow"
    shard.rename(tmp_path / "s" / "elsewhere")
    shard.symlink_to("elsewhere")
    assert ShardStore.open(tmp_path / "s").ints("row").take([5]).tolist() == [5]
    content = (tmp_path / "s" / "elsewhere").read_bytes()
    (tmp_path / "s" / "elsewhere").write_bytes(content[:-1])
    with pytest.raises(TruncatedShardError, match=rf"expected {len(content)} bytes, found {len(content) - 1}"):
        ShardStore.open(tmp_path / "s")
    (tmp_path / "outside").write_bytes(content)
    shard.unlink()
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match=r"part-000001\.arrow: this shard cannot be read .*leads out of the folder"):
        ShardStore.open(tmp_path / "s")
    shard.unlink()
    shard.mkdir()
    with pytest.raises(StoreError, match=r"expected a shard, but it is a folder"):
        ShardStore.open(tmp_path / "s")


def test_every_shard_with_another_checksum_is_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    for number in (0, 2):
        path = tmp_path / f"part-{number:06d}.arrow"
        content = path.read_bytes()
        path.write_bytes(content[:80] + bytes([content[80] ^ 1]) + content[81:])
    with pytest.raises(StoreError, match=r"part-000000\.arrow, part-000002\.arrow \(2 of 3 shards\)"):
        store.verify()
    assert store.damaged_shards() == ["part-000000.arrow", "part-000002.arrow"]


def test_a_file_that_was_recorded_is_not_hashed_and_no_other_is_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(verified, "file_sha256", lambda path: hashed.append(path) or file_sha256(path))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_bytes(b"abc")
    (tmp_path / "one" / "b").write_bytes(b"abc")
    sha256 = file_sha256(tmp_path / "one" / "a")
    verified.verify_file(tmp_path / "one", "a", sha256=sha256, remedy="")
    assert hashed == [tmp_path / "one" / "a"]
    hashed.clear()
    for _ in range(2):
        verified.verify_file(tmp_path / "one", "a", sha256=sha256, remedy="")
        verified._known.clear()  # another process
    assert hashed == []
    for folder, name in (("one", "b"), ("two", "a")):
        verified.verify_file(tmp_path / folder, name, sha256=sha256, remedy="")
    assert hashed == [tmp_path / "one" / "b", tmp_path / "two" / "a"]
    with pytest.raises(StoreError, match=r"a: checksum differs.* Remove this file\. Do this\."):
        verified.verify_file(tmp_path / "one", "a", sha256="0" * 64, remedy="Do this.")


def test_mapped_arrays_are_those_that_numpy_saved_and_cannot_be_changed(tmp_path: Path) -> None:
    for array in (np.arange(6.0).reshape(2, 3), np.arange(4, dtype=np.int16), np.array(2.5), np.ones((2, 1, 3), "f2")):
        np.save(tmp_path / "x.npy", array)
        found = map_npy(tmp_path / "x.npy")
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, False)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(5.0), version=(2, 0))
    for read in (map_npy, read_npy):
        assert read(tmp_path / "x.npy").tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"40 bytes, found 39 bytes"):
        map_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("kind", ["file", "missing", "link", "folder", "pipe", "nothing"])
def test_only_a_regular_file_or_none_is_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("old")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "missing":
        (tmp_path / "target").write_text("old")
        path.symlink_to(tmp_path / ("target" if kind == "link" else "none"))
    words = {"folder": "is a folder", "pipe": "named pipe", "nothing": "symbolic link to a file that does not exist"}
    if kind in words:
        for refuse in (refuse_no_file, lambda place: atomic.write_text(place, "new"), atomic.read_json):
            with pytest.raises(StoreError, match=f"expected a file, found that it .*{words[kind]}"):
                refuse(path)
        return
    refuse_no_file(path)
    atomic.write_text(path, "new")
    assert path.read_text() == "new"


# -- locks -------------------------------------------------------------------------------------------------------------


def test_a_holder_on_another_host_is_named_with_its_host_whatever_runs_here(tmp_path: Path) -> None:
    """The number of a process of another host says nothing about the processes of this one."""
    mine = lock._record("read")
    far = {**mine, "host": "far", "pid": 2**22 - 3, "since": "then", "command": "kedro run"}
    ended = {**far, "host": mine["host"]}

    def holder(*records: dict[str, Any]) -> str:
        (tmp_path / "lock").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        return lock.holder(tmp_path / "lock")

    assert holder(far) == f"process {far['pid']} on far, since then: kedro run"
    assert holder(far, ended) == f"process {far['pid']} on far, since then: kedro run"
    assert holder(mine, far).startswith(f"process {far['pid']} on far and 1 more, since then")
    assert holder(far, mine, ended).startswith(f"process {mine['pid']} and 1 more, since {mine['since']}: ")
    assert holder(ended).startswith(f"process {ended['pid']}, since then")


def test_a_writer_replaces_the_records_of_earlier_holders_and_a_reader_adds_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    uses = []
    for use in ("read", "write", "read", "read"):
        held = lock.take(path, use)  # type: ignore[arg-type]
        assert held is not None
        held.release()
        uses.append([json.loads(line)["use"] for line in path.read_text().splitlines()])
    assert uses == [["read"], ["write"], ["write", "read"], ["write", "read", "read"]]
    kept = path.read_text()
    held = lock.take(path, "read")
    assert held is not None
    assert lock.take(path, "write") is None
    assert path.read_text().startswith(kept), "a writer that is refused changes nothing"
