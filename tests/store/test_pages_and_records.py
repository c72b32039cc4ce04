"""Pages that are dropped and counted, records of locks and checksums, and columns that are nested or cut."""

from __future__ import annotations

import gc
import json
import mmap
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.store.paths import inside, problem

from mm_ldlm.core.errors import MissingShardError, StoreError, TruncatedShardError, UnsafePathError
from mm_ldlm.data.store import Manifest, Shard, ShardStore, StoreWriter, atomic, lock, shard_file, shards, verified
from mm_ldlm.data.store.columns import _matrix
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

PAGE = mmap.PAGESIZE
SCHEMA = pa.schema(
    [("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("name", pa.string()), ("v", pa.list_(pa.float32(), 2))]
)


def build(path: Path, rows: int = 9) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=4)
    numbers = range(rows)
    writer.append({"row": list(numbers), "ids": [[row] * (row % 3) for row in numbers],
                   "name": [f"n{row}" for row in numbers], "v": [[row, -row] for row in numbers]})  # fmt: skip
    writer.finish()
    return ShardStore.open(path, "toy")


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "length", "dropped"),
    [
        (10 * PAGE, 2 * PAGE, (10 * PAGE, 2 * PAGE)), (10 * PAGE + 1, 3 * PAGE, (11 * PAGE, 2 * PAGE)),
        (10 * PAGE - 1, 3 * PAGE, (10 * PAGE, 2 * PAGE)), (10 * PAGE, 2 * PAGE + 7, (10 * PAGE, 2 * PAGE)),
        (10 * PAGE + 1, 2 * PAGE - 1, (11 * PAGE, PAGE)), (10 * PAGE + 1, PAGE, None), (10 * PAGE, PAGE - 1, None),
        (10 * PAGE, 1, None),
    ],
)  # fmt: skip
def test_only_whole_pages_of_a_span_are_dropped(
    address: int, length: int, dropped: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages at its ends may contain other memory."""
    found: list[tuple[int, int, int]] = []
    libc = SimpleNamespace(madvise=lambda *given: found.append(tuple(each.value for each in given)))
    monkeypatch.setattr(shards, "_libc", libc)
    assert shards._drop_pages(address, length)
    assert found == ([] if dropped is None else [(*dropped, mmap.MADV_DONTNEED)])


def test_pages_that_cannot_be_dropped_are_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_libc", SimpleNamespace(madvise=lambda *_: pytest.fail("nothing is mapped")))
    assert not shards._drop_pages(0, 0)
    monkeypatch.setattr(shards, "_libc", None)
    assert not shards._drop_pages(10 * PAGE, 2 * PAGE)


def test_where_pages_cannot_be_dropped_the_mapping_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_drop_pages", lambda *_: False)
    store = build(tmp_path)
    assert store.ints("row").take(slice(None)).tolist() == list(range(9))
    store.release(keep=1)
    assert (set(store._batches), set(store._opened), set(store._touched)) == ({1}, {1}, {1})
    store.release()
    assert (store._batches, store._opened, store._touched, store._resident) == ({}, {}, {}, 0)
    assert store.ints("row").take(slice(None)).tolist() == list(range(9)), "it is mapped again"


@pytest.mark.parametrize("column", ["row", "ids", "name", "v"])
def test_the_rows_that_are_read_are_counted(column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_FAULT_BYTES", 10)
    store = build(tmp_path)
    reader = {"row": store.ints, "ids": store.lists, "name": store.strings, "v": store.fixed}[column](column)
    reader.take([0, 3, 3, 8])
    assert (store._touched, store._resident) == ({0: 30, 2: 10}, 40)
    if column == "ids":
        reader.lengths([1, 5])
        assert store._touched == {0: 40, 1: 10, 2: 10}
    store.window(4, 5, columns=["row"])
    assert store._touched[1] == store.manifest.shards[1].bytes, "a window maps whole columns"


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 3), (3, 4), (2, 2)])
def test_a_part_of_a_matrix_has_its_own_rows(start: int, stop: int) -> None:
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    array = pa.FixedSizeListArray.from_arrays(pa.array(whole.ravel()), 3)
    np.testing.assert_array_equal(_matrix(array.slice(start, stop - start), 3), whole[start:stop])


@pytest.mark.parametrize(
    ("column", "nulls"),
    [
        (pa.array([[[1], [None, None]], [[2]]]), 2), (pa.array([[[1], None], [[2]]]), 1), (pa.array([None, [[1]]]), 1),
        (pa.array([[["a", None]]]), 0), (pa.array([[[1.0]]]), 0),
    ],
)  # fmt: skip
def test_nulls_are_counted_at_every_level_but_in_texts(column: pa.Array, nulls: int, tmp_path: Path) -> None:
    if not nulls:
        shard_file.validate(column, path=tmp_path / "p", column="c")
        return
    with pytest.raises(StoreError, match=rf"p: expected no nulls in column 'c', found {nulls}\. Remove this shard"):
        shard_file.validate(column, path=tmp_path / "p", column="c")


def test_what_a_store_is_given_about_itself_is_kept_beside_its_columns(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, kind="toy", schema=pa.schema([("a", pa.int64())]))
    writer.append({"a": [1]})
    manifest = writer.finish(fingerprints={"maker": "one"}, meta={"dim": 3})
    assert (manifest.meta, manifest.fingerprints) == ({"columns": ["a"], "dim": 3}, {"maker": "one"})
    assert (manifest.kind, manifest.rows, manifest.shards[0].name) == ("toy", 1, "part-000000.arrow")
    assert manifest.shards[0].sha256 == file_sha256(tmp_path / "part-000000.arrow")


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writable", [True, False])
def test_a_file_is_hashed_once_in_a_process_also_where_nothing_can_be_recorded(
    writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(verified, "file_sha256", lambda path: hashed.append(path) or file_sha256(path))
    if not writable:
        (tmp_path / verified.RECORD).mkdir()
    (tmp_path / "a").write_bytes(b"abc")
    for _ in range(3):
        verified.verify_file(tmp_path, "a", sha256=file_sha256(tmp_path / "a"), remedy="")
    assert hashed == [tmp_path / "a"]
    about = (tmp_path / "a").stat()
    line = f"a {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {file_sha256(tmp_path / 'a')}"
    if writable:
        assert (tmp_path / verified.RECORD).read_text() == f"{line}\n"


def test_the_record_of_a_folder_is_that_of_its_place_and_not_of_its_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        verified.remember(Path(), f"line of {name}")
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path / name)
        assert verified._lines(Path()) == verified._lines(tmp_path / name) == {f"line of {name}"}


def test_a_lock_holds_where_its_record_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(use: str) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lock, "_record", full)
    for use in ("write", "read"):
        held = lock.take(tmp_path / use, use)  # type: ignore[arg-type]
        assert held is not None
        assert lock.take(tmp_path / use, "write") is None
        held.release()
        assert lock.take(tmp_path / use, "write") is not None


def test_a_number_that_no_process_has_is_that_of_none(tmp_path: Path) -> None:
    mine = lock._record("read")
    (tmp_path / "lock").write_text(f"{json.dumps(mine)}\n{json.dumps({**mine, 'pid': 10**30})}\n")
    assert lock.holder(tmp_path / "lock").startswith(f"process {os.getpid()}, since")
    assert [lock._runs(pid) for pid in (10**30, os.getpid())] == [False, True]


def test_a_lock_knows_its_path_and_use_and_is_released_once(tmp_path: Path) -> None:
    held = lock.take(tmp_path / "deep/er/lock", "read")
    assert held is not None
    assert (held.path, held.use) == (tmp_path / "deep/er/lock", "read")
    for _ in range(2):
        held.release()
        assert held.share(), "nobody is excluded"
    writer = lock.take(held.path, "write")
    assert writer is not None
    writer.release()
    assert (writer.share(), writer.use) == (True, "write")


# -- files -------------------------------------------------------------------------------------------------------------


def test_whatever_a_killed_writer_left_of_a_folder_is_removed(tmp_path: Path) -> None:
    for name in (".tmp-1a-d", ".tmp-2b-old-d", ".tmp-3c-e"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep/file").write_text("half")
    with atomic.new_directory(tmp_path / "d") as new:
        assert [path.name for path in tmp_path.iterdir() if path != new] == [".tmp-3c-e"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-3c-e", "d"]
    atomic.remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("text", ["a\nb\r\nc", "é\u2028", ""])
def test_a_text_is_stored_as_it_is(text: str, tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a", text)
    assert (tmp_path / "a").read_bytes() == text.encode("utf-8")


def test_a_path_below_a_file_is_missing_and_one_behind_a_loop_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    assert inside(tmp_path, "file/below") == tmp_path / "file/below"
    assert problem(tmp_path / "file/below") == "does not exist: a part of its path is a file"
    for name, words in (("loop/x", "loop"), ("x" * 300, "too long")):
        with pytest.raises(UnsafePathError, match=words):
            inside(tmp_path, name)


def test_a_manifest_is_stored_with_every_field_in_its_order(tmp_path: Path) -> None:
    shard = Shard(name="part-000000.arrow", rows=3, bytes=5, sha256="ab")
    manifest = Manifest(kind="toy", rows=3, shards=(shard,), fingerprints={"z": "1", "a": "2"}, meta={"é": [1]})
    manifest.write(tmp_path)
    document = {
        "kind": "toy", "rows": 3,
        "shards": [{"name": "part-000000.arrow", "rows": 3, "bytes": 5, "sha256": "ab"}],
        "fingerprints": {"z": "1", "a": "2"}, "meta": {"é": [1]}, "format_version": 1,
    }  # fmt: skip
    raw = (tmp_path / "manifest.json").read_text(encoding="utf-8")
    assert raw == json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    assert Manifest.read(tmp_path) == manifest
    assert manifest.fingerprint == fingerprint(document)


def test_the_first_wrong_shard_is_named_with_its_rows(tmp_path: Path) -> None:
    store = build(tmp_path)
    for number in (1, 2):
        (tmp_path / f"part-{number:06d}.arrow").unlink()
    with pytest.raises(MissingShardError) as caught:
        store.check_files()
    path = tmp_path / "part-000001.arrow"
    assert str(caught.value) == f"{path}: this shard is missing (4 rows) (1 more shards are wrong). {shard_file.REMEDY}"
    (tmp_path / "part-000002.arrow").write_bytes(b"")
    (tmp_path / "part-000001.arrow").write_bytes(b"")
    sizes = [shard.bytes for shard in store.manifest.shards]
    with pytest.raises(TruncatedShardError) as cut:
        store.check_files()
    assert str(cut.value) == (
        f"{path}: truncated shard, expected {sizes[1]} bytes, found 0 (1 more shards are wrong). {shard_file.REMEDY}"
    )


@pytest.mark.parametrize("kind", [None, "toy", "other"])
def test_a_store_is_opened_by_its_kind_or_by_any(kind: str | None, tmp_path: Path) -> None:
    build(tmp_path)
    if kind == "other":
        with pytest.raises(StoreError) as caught:
            ShardStore.open(tmp_path, kind)
        assert str(caught.value) == (f"{tmp_path}: expected a store of kind 'other', found 'toy'. Correct the path.")
        return
    found = ShardStore.open(str(tmp_path), kind)
    assert (found.directory, found.manifest.kind, len(found)) == (tmp_path, "toy", 9)


def test_a_lock_that_is_refused_leaves_no_file_open(tmp_path: Path) -> None:
    """An open file that is forgotten is reported as a warning when it is collected."""
    held = lock.take(tmp_path / "lock", "write")
    assert held is not None
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert lock.take(tmp_path / "lock", "read") is None
        gc.collect()
    assert [str(each.message) for each in reported if str(tmp_path) in str(each.message)] == []
