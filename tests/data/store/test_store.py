"""Stores: what is written is read, however it is cut; damage is refused; a killed writer leaves no wrong store."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kills import kills

from mm_ldlm.core import FingerprintError, StoreError, UnsafePathError
from mm_ldlm.data.store import Manifest, Shard, ShardStore, manifest, shards, write_shard, write_store
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(),
           pa.float64()]  # fmt: skip
SCHEMA = pa.schema([("id", pa.string()), ("v", pa.list_(pa.float32(), 2)), ("ids", pa.list_(pa.int32()))])
Made = tuple[pa.Schema, dict[str, list[Any]]]


def rows(count: int) -> dict[str, list[Any]]:
    return {
        "id": [f"é{row}" for row in range(count)],
        "v": [[row, -row] for row in range(count)],
        "ids": [[row] * (row % 3) for row in range(count)],
    }


def build(path: Path, count: int = 9, **options: Any) -> ShardStore:
    keys: dict[str, Any] = {"shard_rows": 4, "fingerprints": {"maker": "one"}, "meta": {"dim": 2}, **options}
    write_store(path, [rows(count)], kind="toy", schema=SCHEMA, **keys)
    return ShardStore.open(path, "toy")


def read(store: ShardStore) -> list[Any]:
    """Every row by every reader, after comparing them."""
    matrix, (flat, offsets) = store.fixed("v").take(slice(None)), store.lists("ids").take(slice(None))
    found = store.table(slice(None)).to_pylist()
    assert [row["v"] for row in found] == np.add(matrix, 0, out=matrix).tolist()  # a copy, which may be changed
    assert [row["ids"] for row in found] == [part.tolist() for part in np.split(flat, offsets[1:-1])][: len(found)]
    assert [row["id"] for row in found] == store.gather("id", slice(None)).to_pylist()
    assert found == store.window(0, len(store)).to_pylist()
    assert found == [row for table in store.iter_tables() for row in table.to_pylist()]
    return found


@st.composite
def tables(draw: st.DrawFn) -> Made:
    """A schema of columns of every kind, and rows of it."""
    count, schema, columns = draw(st.integers(0, 12)), {}, {}
    for number in range(draw(st.integers(1, 4))):
        kind: Any = draw(st.sampled_from([pa.string(), *NUMBERS]))
        cell = st.none() | st.text(max_size=5) if kind == pa.string() else st.integers(0, 100)
        if kind != pa.string() and (shape := draw(st.sampled_from(["one", "list", "fixed"]))) != "one":
            size = draw(st.integers(1, 4)) if shape == "fixed" else None
            kind = pa.list_(kind, size) if size else pa.list_(kind)
            cell = st.lists(cell, min_size=size or 0, max_size=size or 5)
        schema[f"c{number}"], columns[f"c{number}"] = kind, draw(st.lists(cell, min_size=count, max_size=count))
    return pa.schema(list(schema.items())), columns


def column_of(store: ShardStore, name: str) -> tuple[Callable[[Any], Any], bool]:
    kind = store.schema.field(name).type
    is_list = pa.types.is_list(kind)
    if kind.num_fields:
        return (store.lists if is_list else store.fixed)(name).take, is_list
    return lambda rows: store.gather(name, rows).to_pylist(), is_list


@settings(REUSED, max_examples=30)
@given(st.data(), tables())
def test_rows_are_read_as_written_in_any_order(tmp_path: Path, data: st.DataObject, made: Made) -> None:
    schema, columns = made
    count, size = len(next(iter(columns.values()))), data.draw(st.integers(1, 6), "rows of a shard")
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3), "pieces"))

    def pieces() -> Iterator[Any]:
        for start, stop in zip([0, *cuts], [*cuts, count], strict=True):
            yield {name: values[start:stop] for name, values in columns.items()}
            assert len(list(tmp_path.glob("part-*.arrow"))) >= stop // size, "a full shard is written at once"

    write_store(tmp_path, pieces(), kind="toy", schema=schema, shard_rows=size)
    store = ShardStore.open(tmp_path)
    assert [shard.rows for shard in store.manifest.shards] == [size] * (count // size) + [count % size] * bool(
        count % size or not count
    )
    assert store.schema == schema
    chosen = data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=8 if count else 0), "rows")
    start, stop = sorted((data.draw(st.integers(0, 13)), data.draw(st.integers(0, 13))))
    for wanted in (chosen, np.array(chosen, np.int64), slice(start, stop), slice(None, None, -2)):
        places = range(count)[wanted] if isinstance(wanted, slice) else chosen
        expected = {name: [values[place] for place in places] for name, values in columns.items()}
        assert store.table(wanted).to_pydict() == expected
        for name, values in expected.items():
            take, is_list = column_of(store, name)
            if is_list:
                flat, offsets = take(wanted)
                assert [flat[i:j].tolist() for i, j in itertools.pairwise(offsets)] == values
                longest = max(map(len, values), default=0)
                padded = store.lists(name).padded(wanted, pad=-1, length=longest + 1)
                assert padded.tolist() == [value + [-1] * (longest + 1 - len(value)) for value in values]
            else:
                assert np.asarray(take(wanted), object).tolist() == values
    assert store.window(start, stop, columns=[schema.names[-1]]).to_pydict() == {
        schema.names[-1]: columns[schema.names[-1]][start:stop]
    }
    whole = write_store(tmp_path / "whole", [columns], kind="toy", schema=schema, shard_rows=size)
    assert whole == store.manifest, "the bytes depend on the rows alone"


def test_columns_of_another_type_and_rows_that_are_none_are_refused(tmp_path: Path, refuses: Any) -> None:
    store = build(tmp_path)
    for reader, name in ((store.fixed, "ids"), (store.lists, "v")):
        with refuses(StoreError, name):
            reader(name)
    with refuses(StoreError, "nothing", "id, v, ids"):
        store.gather("nothing", [0])
    for wanted in ([9], [-1], [[1]]):
        with refuses(StoreError):
            store.fixed("v").take(wanted)


# -- damage ------------------------------------------------------------------------------------------------------------


@st.composite
def damages(draw: st.DrawFn, size: int) -> Callable[[bytes], bytes]:
    place, byte = draw(st.integers(0, size - 1)), draw(st.integers(0, 255))
    cut = draw(st.booleans())
    return lambda raw: raw[:place] if cut else raw[:place] + bytes([byte]) + raw[place + 1 :]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    build(tmp_path / "whole")
    return tmp_path / "whole"


def copied(whole: Path) -> Path:
    shutil.rmtree(whole.parent / "broken", ignore_errors=True)
    return Path(shutil.copytree(whole, whole.parent / "broken"))


@REUSED
@given(st.data())
def test_damage_at_any_byte_is_refused_or_harmless(whole: Path, data: st.DataObject) -> None:
    broken = copied(whole)
    manifest._verified.clear()  # another process
    file = broken / data.draw(st.sampled_from(["part-000000.arrow", "part-000001.arrow", "manifest.json"]))
    before = file.read_bytes()
    after = data.draw(damages(len(before)))(before)
    file.write_bytes(after)
    try:
        found = read(ShardStore.open(broken))
    except StoreError:
        pass
    else:
        assert file.name == "manifest.json" or after == before
        assert found == read(ShardStore.open(whole))


@REUSED
@given(st.data())
def test_damage_with_a_right_checksum_never_ends_the_process(whole: Path, data: st.DataObject) -> None:
    """A store may come from another person: nothing in a shard is trusted, whatever its manifest says."""
    broken = copied(whole)
    file = broken / "part-000000.arrow"
    raw = file.read_bytes()
    file.write_bytes(data.draw(damages(len(raw)))(raw))
    own = Manifest.read(broken)
    first = dataclasses.replace(own.shards[0], bytes=file.stat().st_size, sha256=file_sha256(file))
    dataclasses.replace(own, shards=(first, *own.shards[1:])).write(broken)
    try:
        store = ShardStore.open(broken)
        assert len(store.table(slice(None))) == len(store.fixed("v").take(slice(None))) == len(store)
        store.lists("ids").take(slice(None))
        store.gather("id", slice(None)).to_pylist()
    except StoreError:
        pass


def _replaced(kind: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.rename(path.parent.parent / "moved")
        if kind == "link":
            path.symlink_to("../moved")
        if kind == "folder":
            path.mkdir()
        if kind == "pipe":
            os.mkfifo(path)

    return change


@pytest.mark.parametrize("kind", ["gone", "link", "folder", "pipe"])
def test_a_shard_is_a_file_of_its_folder(kind: str, whole: Path, refuses: Any) -> None:
    _replaced(kind)(whole / "part-000001.arrow")
    with refuses(UnsafePathError if kind == "link" else StoreError, "part-000001.arrow"):
        ShardStore.open(whole)


CHANGES: dict[str, Any] = {
    "another version": {"format_version": 2}, "another number of rows": {"rows": 8}, "no shards": {"shards": []},
    "another key": {"more": 1}, "texts as numbers": {"rows": "9"}, "a truth value": {"rows": True},
    "a shard elsewhere": {"name": "../part-000000.arrow"}, "a shard twice": {"name": "part-000001.arrow"},
    "no name": {"name": ""}, "negative": {"rows": -1, "bytes": -1},
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_manifest_is_refused(change: str, whole: Path, refuses: Any) -> None:
    about = json.loads((whole / manifest.NAME).read_text())
    keys = CHANGES[change]
    about["shards"][0] |= {key: value for key, value in keys.items() if key in ("name", "bytes")}
    about |= {key: value for key, value in keys.items() if key not in ("name", "bytes")}
    (whole / manifest.NAME).write_text(json.dumps(about))
    with refuses(StoreError, manifest.NAME):
        ShardStore.open(whole)


@pytest.mark.parametrize("wrong", ["another column", "another type", "no batch", "two batches", "nulls", "twice"])
def test_a_shard_of_other_columns_is_refused(wrong: str, tmp_path: Path, refuses: Any) -> None:
    whole = pa.table({"fine": [1], "a": pa.array([1], pa.int32())})
    tables = {
        "another column": whole.rename_columns(["fine", "b"]),
        "another type": whole.set_column(1, "a", pa.array([1], pa.int64())),
        "nulls": whole.set_column(1, "a", pa.array([None], pa.int32())),
        "twice": whole.append_column("a", whole["a"]),
    }
    own = [write_shard(tmp_path, "part-000000.arrow", whole)]
    if wrong in tables:
        own.append(write_shard(tmp_path, "part-000001.arrow", tables[wrong]))
    else:
        path = tmp_path / "part-000001.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, whole.schema) as writer:
            for _ in range(2 * (wrong == "two batches")):
                writer.write_table(whole)
        own.append(Shard(name=path.name, rows=1, bytes=path.stat().st_size, sha256=file_sha256(path)))
    Manifest(kind="toy", rows=2, shards=tuple(own)).write(tmp_path)
    with refuses(StoreError, "part-000001.arrow"):
        ShardStore.open(tmp_path).table(slice(None))


# -- checksums ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are hashed."""
    found: list[str] = []

    def digest(path: Path) -> str:
        found.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr(manifest, "file_sha256", digest)
    return found


def test_a_file_is_hashed_once_by_all_processes_and_again_after_it_changed(whole: Path, hashed: list[str]) -> None:
    for _ in range(3):
        manifest._verified.clear()
        read(ShardStore.open(whole))
        read(ShardStore.open(whole / ".." / "whole"))
    assert sorted(hashed) == [f"part-00000{number}.arrow" for number in range(3)]
    path = whole / "part-000001.arrow"
    path.write_bytes(path.read_bytes())
    with os.scandir(whole):
        os.utime(path, ns=(0, 0))
    read(ShardStore.open(whole))
    assert hashed[3:] == ["part-000001.arrow"]
    right = (whole / manifest.VERIFIED).read_bytes()
    for record in (right, b"\xff\xfe", b"", right[:-9], b"part-000001.arrow 1 2 3 4\n"):
        (whole / manifest.VERIFIED).write_bytes(record)
        manifest._verified.clear()
        time.sleep(0.02)  # until the clock of the file system moves
        path.write_bytes(b"x" * path.stat().st_size)
        os.utime(path, ns=(0, 0))
        with pytest.raises(StoreError, match="expected the sha256"):
            read(ShardStore.open(whole))


@pytest.mark.parametrize("place", ["folder", "pipe"])
def test_where_nothing_can_be_recorded_a_process_hashes_a_file_once(place: str, whole: Path, hashed: list[str]) -> None:
    (whole / manifest.VERIFIED).mkdir() if place == "folder" else os.mkfifo(whole / manifest.VERIFIED)
    for _ in range(2):
        read(ShardStore.open(whole))
    assert len(hashed) == 3


# -- memory and processes ------------------------------------------------------------------------------------------------


def test_mapped_pages_are_released_and_descriptors_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = build(tmp_path, 60, shard_rows=2)
    before, expected = len(os.listdir("/proc/self/fd")), read(store)
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(shards, "RESIDENT_BYTES", 3000)
    size = store.manifest.shards[0].bytes
    for row in np.random.default_rng(0).integers(0, 60, 100).tolist():
        assert store.fixed("v").take([row]).tolist() == [expected[row]["v"]]
        assert sum(store._touched.values()) <= 3000 + size
        assert row // 2 in store._touched, "the shard that is read keeps its pages"
    store.release()
    assert not store._touched
    assert read(store) == expected


def test_threads_read_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "RESIDENT_BYTES", 3000)
    store, each = build(tmp_path, 400, shard_rows=2), 150
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            drawn = np.random.default_rng(0).integers(0, 400, (2 * each, 30))
            found = [*pool.map(lambda rows: store.fixed("v").take(rows)[:, 0], drawn)]
    finally:
        sys.setswitchinterval(before)
    assert np.array_equal(found, drawn)


def test_processes_read_the_same_rows_and_pickles_have_none(tmp_path: Path) -> None:
    store = build(tmp_path)
    expected, raw = read(store), pickle.dumps(store)
    assert len(raw) < 2000
    assert read(pickle.loads(raw)) == expected
    pipe, other = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: other.send(read(store)))
    process.start()
    assert pipe.recv() == expected
    process.join()


# -- writers -----------------------------------------------------------------------------------------------------------


def test_a_killed_writer_leaves_the_old_store_or_the_new_one_or_none(tmp_path: Path) -> None:
    old, new = read(build(tmp_path / "old")), read(build(tmp_path / "new", 6, shard_rows=3))
    seen = set[str]()
    for _ in kills(lambda: build(tmp_path / "s", 6, shard_rows=3)):
        try:
            found = read(ShardStore.open(tmp_path / "s"))
            seen.add("old" if found == old else "new")
            assert found in (old, new)
        except StoreError:
            assert not Manifest.exists(tmp_path / "s"), "never a manifest of other shards"
            seen.add("none")
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        shutil.copytree(tmp_path / "old", tmp_path / "s")
    assert seen == {"old", "none", "new"}
    assert read(ShardStore.open(tmp_path / "s")) == new
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == sorted(
        [manifest.NAME, manifest.VERIFIED, "part-000000.arrow", "part-000001.arrow"]
    )


def test_pitfall_25_a_store_of_other_inputs_is_refused(whole: Path, refuses: Any) -> None:
    about = Manifest.read(whole)
    about.require(directory=whole, maker="one")
    for inputs in ({"maker": "two"}, {"maker": "one", "other": "x"}):
        with refuses(FingerprintError, *list(inputs)[-1:]):
            about.require(directory=whole, **inputs)
    assert Manifest.finished(whole, {"maker": "one"}) == about
    assert Manifest.finished(whole, {"maker": "two"}) is None
    (whole / "part-000001.arrow").unlink()
    assert Manifest.finished(whole, {"maker": "one"}) is None
    changes = [{"rows": 1}, {"kind": "x"}, {"meta": {"a": 1}}, {"shards": ()}, {"fingerprints": {}}]
    digests = {about.fingerprint, *(dataclasses.replace(about, **change).fingerprint for change in changes)}
    assert len(digests) == 6, "every part of a manifest is in its fingerprint"


@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=4))
def test_a_fingerprint_is_that_of_the_value_and_not_of_its_form(value: dict[str, Any]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(value.items())))
    assert fingerprint(value) != fingerprint({**value, "more": Path("a")})
    assert fingerprint([Path("a/b"), np.int64(3)]) == fingerprint(["a/b", 3])
    for wrong in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            fingerprint(wrong)
