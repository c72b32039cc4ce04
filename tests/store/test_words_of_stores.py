"""The messages of stores, word for word: the path, what was expected, what was found and what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_ldlm.errors import FingerprintError, ShardSchemaError, StoreError, UnsafePathError
from mm_ldlm.store import Manifest, ShardStore, StoreWriter, atomic, columns, lock, paths, shard_file, shards, write_shard
from mm_ldlm.store.npy import map_npy, read_npy
from mm_ldlm.store.shard_file import REMEDY

SCHEMA = pa.schema([("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("name", pa.string())])
AGAIN = "Write the store again."


def build(path: Path, rows: int = 9) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=4)
    ids = [[row] * (row % 3) for row in range(rows)]
    writer.append({"row": list(range(rows)), "ids": ids, "name": [f"n{row}" for row in range(rows)]})
    writer.finish()
    return ShardStore.open(path, "toy")


def refused(make: Any, kind: type[Exception] = StoreError) -> str:
    with pytest.raises(kind) as raised:
        make()
    assert type(raised.value) is kind
    return str(raised.value)


# -- manifests ---------------------------------------------------------------------------------------------------------


def test_a_manifest_that_is_wrong_is_told_by_its_first_wrong_field(tmp_path: Path) -> None:
    build(tmp_path)
    path = tmp_path / "manifest.json"
    whole = json.loads(path.read_text())

    def found(change: Any) -> str:
        plain = json.loads(json.dumps(whole))
        change(plain)
        path.write_text(json.dumps(plain))
        return refused(lambda: Manifest.read(tmp_path)).removeprefix(f"{path}: ")

    long = "x" * 99
    for change, words in (
        (lambda m: m.update(format_version=2), f"expected format version 1, found 2. {AGAIN}"),
        (lambda m: m.update(format_version=0), f"expected format version 1, found 0. {AGAIN}"),
        (lambda m: m.pop("format_version"), f"expected format version 1, found None. {AGAIN}"),
        (lambda m: m["shards"][1].update(rows=-7), f"expected a number of at least 0 as rows, found -7. {AGAIN}"),
        (lambda m: m["shards"][2].update(bytes=long),
         f"expected a number of at least 0 as bytes, found {repr(long)[:60]}. {AGAIN}"),
        (lambda m: m["shards"][2].update(sha256=5), f"expected a text as sha256, found 5. {AGAIN}"),
        (lambda m: m["shards"][0].update(name=None), f"expected a text as name, found None. {AGAIN}"),
        (lambda m: m.update(kind=[3]), f"expected a text as kind and a number as rows, found [3] and 9. {AGAIN}"),
        (lambda m: m.update(rows="9"), f"expected a text as kind and a number as rows, found 'toy' and '9'. {AGAIN}"),
        *((lambda m, name=name, value=value: m.update({name: value}),
           f"expected mappings under 'fingerprints' and 'meta'. {AGAIN}")
          for name in ("fingerprints", "meta") for value in (["x"], None, "x")),
        (lambda m: m.update(fingerprints={"a": "1", "b": 2, "c": 3}),
         f"expected texts under 'fingerprints', found 2. {AGAIN}"),
        (lambda m: m["shards"][1].update(name="a/b"), f"shard 'a/b' is not a file of this folder. {AGAIN}"),
        (lambda m: [shard.update(name="x") for shard in m["shards"]],
         "expected 3 shards, found 1: some are named twice."),
        (lambda m: m.update(rows=7), f"expected 7 rows, found 9 in the shards. {AGAIN}"),
    ):  # fmt: skip
        assert found(change) == words
    for change in (lambda m: m.pop("kind"), lambda m: m.pop("shards"), lambda m: m.update(more=1),
                   lambda m: m["shards"][0].update(more=1), lambda m: m["shards"][0].pop("rows")):  # fmt: skip
        assert re.fullmatch(rf"a field is missing or unknown \(.+\)\. {AGAIN}", found(change))


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refused(lambda: Manifest.read(tmp_path / "x")) == (
        f"{tmp_path / 'x'}: no manifest.json, so the store is not finished. Run the pipeline that writes it; existing "
        "shards are kept."
    )
    (tmp_path / "file").write_text("")
    assert refused(lambda: Manifest.read(tmp_path / "file")) == (
        f"{tmp_path / 'file'}/manifest.json: cannot be read (Not a directory). Correct the path of the store."
    )
    path = tmp_path / "manifest.json"
    for raw in (b"{", b"\xff", b"[" * 200 + b"]" * 200):
        path.write_bytes(raw)
        message = refused(lambda: Manifest.read(tmp_path))
        assert message.startswith(f"{path}: not readable as JSON (")
        assert message.endswith("). Remove it and run the pipeline again.")


def test_another_input_of_a_store_is_named_with_both_fingerprints() -> None:
    manifest = Manifest(kind="latents", rows=0, fingerprints={"encoder": "one", "records": "two"})
    manifest.require(directory="d", encoder="one", records="two")
    manifest.require(directory="d")
    assert refused(lambda: manifest.require(directory="d", records="two", encoder="three"), FingerprintError) == (
        "d: expected a latents store made with encoder three, found encoder one. Use the encoder that the store was made "
        "with, or remove the directory and run the pipeline again."
    )


# -- shards ------------------------------------------------------------------------------------------------------------


def test_shards_that_are_wrong_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    for number in (0, 2):
        path = tmp_path / f"part-{number:06d}.arrow"
        path.write_bytes(path.read_bytes()[:-1] + b"X")
    names = "part-000000.arrow, part-000002.arrow"
    assert store.damaged_shards() == names.split(", ")
    assert refused(store.verify) == (
        f"{tmp_path}: checksum differs in {names} (2 of 3 shards): the bytes on disk changed after they were written. "
        f"Remove these shards. {REMEDY}"
    )
    assert refused(lambda: ShardStore.open(tmp_path).ints("row")) == (
        f"{tmp_path / 'part-000000.arrow'}: checksum differs: the bytes on disk changed after they were written. Remove "
        f"this file. {REMEDY}"
    )
    for number in range(3):
        (tmp_path / f"part-{number:06d}.arrow").write_bytes(b"x" * 9_999)
    size = store.manifest.shards[0].bytes
    assert refused(store.check_files) == (
        f"{tmp_path / 'part-000000.arrow'}: expected {size} bytes, found 9999 (2 more shards are wrong). {REMEDY}"
    )
    (tmp_path / "part-000000.arrow").unlink()
    (tmp_path / "part-000000.arrow").mkdir()
    assert refused(store.check_files) == (
        f"{tmp_path / 'part-000000.arrow'}: expected a shard, but it is a folder. Remove it. {REMEDY}"
    )
    Manifest(kind="toy", rows=0).write(tmp_path)
    assert refused(lambda: ShardStore.open(tmp_path)) == (
        f"{tmp_path}: expected the shards of this folder in its manifest, found a manifest of no shards and 3 shards, "
        f"the first of them part-000000.arrow. {REMEDY}"
    )


def test_a_link_to_a_shard_stays_in_its_folder(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    path = tmp_path / "s/part-000001.arrow"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    message = refused(lambda: ShardStore.open(tmp_path / "s"))
    assert message.startswith(f"{path}: this shard cannot be read ({tmp_path / 's'}: expected the name of a file inside")
    assert message.endswith(f"). {REMEDY}")
    path.unlink()
    path.symlink_to(path.name)
    assert refused(store.check_files).startswith(f"{path}: this shard cannot be read (")


def test_shards_of_other_columns_or_rows_are_told_with_both(tmp_path: Path) -> None:
    one = write_shard(tmp_path, "a", pa.table({"a": [1, 2], "b": ["x", "y"]}))
    two = write_shard(tmp_path, "b", pa.table({"a": [1, 2], "b": [1.5, 2.5]}))
    Manifest(kind="toy", rows=4, shards=(one, two)).write(tmp_path)
    store = ShardStore.open(tmp_path)
    assert refused(lambda: store.table([3]), ShardSchemaError) == (
        f"{tmp_path / 'b'}: expected the columns of the first shard, a: int64, b: string, found a: int64, b: double. "
        f"Remove the wrong shard. {REMEDY}"
    )
    fewer = type(one)(name="a", rows=1, bytes=one.bytes, sha256=one.sha256)
    Manifest(kind="toy", rows=1, shards=(fewer,)).write(tmp_path)
    assert refused(lambda: ShardStore.open(tmp_path).table([0])) == f"{tmp_path / 'a'}: expected 1 rows, found 2. {REMEDY}"


def test_columns_of_another_type_and_rows_that_are_none_are_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    own = "Open the store as its own kind, or write it again."
    for reader, name, wanted in ((store.ints, "ids", "numbers"), (store.fixed, "ids", "a fixed-size list"),
                                 (store.lists, "row", "a list"), (store.strings, "row", "texts")):  # fmt: skip
        assert refused(lambda reader=reader, name=name: reader(name)) == (
            f"{tmp_path}: expected {wanted} in column '{name}', found {SCHEMA.field(name).type}. {own}"
        )
    assert refused(lambda: store.lists("ids").padded([0, 1, 2, 5], pad=0, length=1)) == (
        f"{tmp_path}: expected at most 1 items per row of 'ids', found 2. Give a larger length."
    )
    for rows, shape in ((5, "()"), ([[1, 2]], "(1, 2)")):
        assert refused(lambda rows=rows: store.rows(rows)) == (
            f"expected a list of row numbers, found an array of shape {shape}."
        )
    assert refused(lambda: store.ints("none")) == f"{tmp_path}: no column 'none'; the store has row, ids, name."


def test_one_column_may_be_read_in_the_form_of_each_type_that_fits(tmp_path: Path) -> None:
    """Readers are kept by their name and their form."""
    half, wide = pa.array([0.5, -2.0], pa.float16()), pa.array([[1], [2, 3]], pa.large_list(pa.int16()))
    text = pa.array(["a", "é"], pa.large_string())
    table = pa.table({"h": half, "w": wide, "t": text, "d": pa.array([0.1, 0.2], pa.float64())})
    shard = write_shard(tmp_path, "a", table)
    Manifest(kind="toy", rows=2, shards=(shard,)).write(tmp_path)
    store = ShardStore.open(tmp_path)
    assert (store.ints("h").take([1, 0]).tolist(), store.ints("h").take([0]).dtype) == ([-2.0, 0.5], np.float16)
    assert (store.ints("d").take([1]).tolist(), store.ints("d").take([1]).dtype) == ([0.2], np.float64)
    values, offsets = store.lists("w").take([1, 0])
    assert (values.tolist(), values.dtype, offsets.tolist()) == ([2, 3, 1], np.int16, [0, 2, 3])
    assert store.strings("t").take([1, 0]) == ["é", "a"]
    assert store.ints("h") is store.ints("h")
    for form in ("fixed", "strings", "lists"):
        with pytest.raises(StoreError, match="in column 'h', found halffloat"):
            getattr(store, form)("h")


def test_padding_and_lengths_of_rows(tmp_path: Path) -> None:
    lists = build(tmp_path).lists("ids")
    assert lists.padded([5, 0, 7], pad=-3).tolist() == [[5, 5], [-3, -3], [7, -3]]
    assert lists.padded([0, 3], pad=-3, length=2).tolist() == [[-3, -3], [-3, -3]]
    assert lists.padded([], pad=-3).shape == (0, 0)
    assert (lists.lengths([8, 1, 3]).tolist(), lists.lengths([8]).dtype) == ([2, 1, 0], np.int64)


def test_pages_are_released_beyond_the_limit_and_counted_for_the_shard_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "RESIDENT_BYTES", 1)
    store = build(tmp_path)
    sizes = [shard.bytes for shard in store.manifest.shards]
    store.array(0, "row", touched=None)
    assert (store._touched, store._resident) == ({0: sizes[0]}, sizes[0])
    store.array(1, "row", touched=None)
    assert (store._touched, store._resident) == ({1: sizes[1]}, sizes[1])
    store.array(1, "row", touched=10**9)
    assert (store._touched, store._resident) == ({1: sizes[1]}, sizes[1])


# -- damaged shards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [pa.ArrowInvalid, OSError, MemoryError, OverflowError, UnicodeError])
def test_whatever_a_damaged_shard_raises_names_it(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "part-000000.arrow"
    write_shard(tmp_path, path.name, pa.table({"a": [1]}))

    def damaged(_: Any) -> Any:
        raise error("why")

    monkeypatch.setattr(shard_file.pa.ipc, "open_file", damaged)
    assert refused(lambda: shard_file.read(path)) == f"{path}: not a readable shard (why). Remove it. {REMEDY}"


def test_a_batch_whose_columns_are_shorter_than_it_is_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part-000000.arrow"
    write_shard(tmp_path, path.name, pa.table({"a": [1]}))
    checked: list[str] = []

    def validate() -> None:
        checked.append("batch")
        raise pa.ArrowInvalid("short")

    batch = SimpleNamespace(validate=validate, schema=SCHEMA)
    reader = SimpleNamespace(num_record_batches=1, get_batch=lambda number: batch if number == 0 else None)
    monkeypatch.setattr(shard_file.pa.ipc, "open_file", lambda _: reader)
    assert refused(lambda: shard_file.read(path)) == f"{path}: not a readable shard (short). Remove it. {REMEDY}"
    assert checked == ["batch"]
    reader.num_record_batches = 4
    assert refused(lambda: shard_file.read(path)) == f"{path}: expected one record batch, found 4. {REMEDY}"


# -- arrays of numpy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_a_header_is_read(version: tuple[int, int], tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int16).reshape(3, 2)
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    for read in (map_npy, read_npy):
        found = read(tmp_path / "a.npy")
        assert (found.tolist(), found.dtype) == (array.tolist(), np.int16)


def test_arrays_that_are_none_are_told_by_their_header(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3, dtype=np.int16))
    whole = path.read_bytes()
    for cut, found in ((whole[:-1], 5), (whole + b"ab", 8), (whole[:128], 0)):
        path.write_bytes(cut)
        for read in (read_npy, map_npy):
            assert refused(lambda read=read: read(path), ValueError) == (
                f"its header states an array of shape (3,), type int16 and 6 bytes, found {found} bytes"
            )
    for array in (np.array([None]), np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")])):
        np.save(path, array, allow_pickle=True)
        for read in (read_npy, map_npy):
            assert refused(lambda read=read: read(path), ValueError) == (
                "it contains pickled objects, which are never loaded"
            )
    path.write_bytes(b"x" * 50)
    message = refused(lambda: read_npy(path), ValueError)
    assert message.startswith("its header cannot be read (the magic string is not correct; ")
    assert len(message) <= len("its header cannot be read ()") + 120


# -- paths -------------------------------------------------------------------------------------------------------------


def test_what_is_no_regular_file_is_told_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    found = {
        "pipe": "is a named pipe (FIFO)", "socket": "is a socket", "folder": "is a folder", "/dev/null": "is a device",
        "file": None, "link": None, "gone": "is a symbolic link to a file that does not exist",
        "none": "does not exist", "file/x": "does not exist: a part of its path is a file",
        "loop": "is a loop of symbolic links", "x" * 300: "has a name that is too long for the file system",
    }  # fmt: skip
    assert {name: paths.problem(name) for name in found} == found
    assert (paths.problem("a\0b") or "").startswith("is not a valid path (")
    for name, reason in found.items():
        if reason is None or name in ("none", "file/x", "x" * 300):
            paths.refuse_no_file(name)
            continue
        assert refused(lambda name=name: paths.refuse_no_file(name)) == (
            f"{name}: expected a file, found that it {reason}. Remove it, or put the file in its place."
        )
    for kind, words in ((stat.S_IFBLK, "is a device"), (stat.S_IFCHR, "is a device"), (0, "is not a regular file")):
        monkeypatch.setattr(paths.os, "stat", lambda _, kind=kind: SimpleNamespace(st_mode=kind))
        assert paths.problem("file") == words

    def forbidden(_: Any) -> Any:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(paths.os, "stat", forbidden)
    assert paths.problem("link") == "cannot be accessed (Permission denied)"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (5, "is of type int instead of text"), (None, "is of type NoneType instead of text"), ("", "is empty"),
        (".", "is empty"), ("/a", "leads out of the folder"), ("..", "leads out of the folder"),
        ("a/../b", "leads out of the folder"), ("a/..", "leads out of the folder"), ("a\0b", "contains NUL"),
        ("a\ud800", "contains a lone surrogate"),
    ],
)  # fmt: skip
def test_a_name_that_is_refused_is_told_with_its_fault(name: Any, fault: str, tmp_path: Path) -> None:
    for check in (paths.check_name, paths.inside):
        with pytest.raises(UnsafePathError) as raised:
            check(tmp_path, name)
        assert raised.value.detail == f"the name {name!a:.200} {fault}"


def test_a_link_on_the_way_is_followed_to_the_end_of_the_name(tmp_path: Path) -> None:
    """A link inside the folder may lead to one that leaves it."""
    (tmp_path / "root/a").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "root/b").symlink_to("a")
    (tmp_path / "root/a/c").symlink_to(tmp_path / "out")
    (tmp_path / "root/a/d").write_text("")
    fault = "is or passes a symbolic link that leads out of the folder"
    for name in ("b/c", "b/c/x", "a/c/x/y", "a/c"):
        with pytest.raises(UnsafePathError) as raised:
            paths.inside(tmp_path / "root", name)
        assert raised.value.detail == f"the name {name!r} {fault}"
    (tmp_path / "out/file").write_text("")
    with pytest.raises(UnsafePathError):
        paths.inside(tmp_path / "root", "b/c/file/x")
    for name in ("b/d", "b/none", "b", "b/d/x"):
        assert paths.inside(tmp_path / "root", name) == tmp_path / "root" / name


# -- locks and files ---------------------------------------------------------------------------------------------------


def test_the_last_living_holder_is_named_with_the_number_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_host", lambda: "here")
    monkeypatch.setattr(lock, "_runs", lambda pid: pid < 100)

    def holder(*records: tuple[int, str], torn: bytes = b"") -> str:
        lines = [json.dumps({"pid": pid, "host": host, "since": f"t{pid}", "command": f"c{pid}", "use": "read"})
                 for pid, host in records]  # fmt: skip
        (tmp_path / "lock").write_bytes("\n".join(lines).encode() + torn)
        return lock.holder(tmp_path / "lock")

    assert holder((1, "here"), (2, "here")) == "process 2 and 1 more, since t2: c2"
    assert holder((1, "here"), (2, "here"), (300, "here")) == "process 2 and 1 more, since t2: c2"
    assert holder((300, "here"), (1, "here"), (400, "here")) == "process 1, since t1: c1"
    assert holder((300, "here"), (400, "here")) == "process 400, since t400: c400"
    assert holder((1, "here"), (300, "there")) == "process 300 on there and 1 more, since t300: c300"
    assert holder((1, "here"), torn=b'\n\xff{"pid"') == "process 1, since t1: c1", "a torn line is no record"


def test_the_time_of_a_record_is_that_of_its_place_in_whole_seconds() -> None:
    found = lock._record("read")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", found["since"])


def test_failures_to_write_are_told_with_their_file_where_it_is_known() -> None:
    for number, text in ((errno.ENOSPC, "No space left"), (errno.EDQUOT, "Quota"), (errno.EFBIG, "File too large")):
        for name, place in (("f", " at f"), (None, "")):
            assert atomic.write_failure(OSError(number, text, name)) == (
                f"the disk is full{place} ({text}). Free some space, then run the same command again: what is finished "
                "is kept."
            )
    for number in (errno.EACCES, errno.EPERM, errno.EROFS):
        for name, place in (("f", " at f"), (None, "")):
            assert atomic.write_failure(OSError(number, "No", name)) == (
                f"expected a file or folder with permission to read and write{place}, found one without (No). Correct "
                "its permissions, or choose another folder (`--params data=FOLDER`)."
            )
    assert atomic.write_failure(OSError(errno.ENOENT, "No such file", "f")) is None


def test_what_another_folder_of_a_similar_name_left_stays(tmp_path: Path) -> None:
    left = [".tmp-1a-data", ".tmp-2b-my-d", ".tmp-3c-old-x-d", ".tmp-4d"]
    for name in (*left, ".tmp-5e-d", ".tmp-6f-old-d"):
        (tmp_path / name).mkdir()
    with atomic.new_directory(tmp_path / "d") as new:
        assert sorted(path.name for path in tmp_path.iterdir() if path != new) == left


def test_a_file_of_json_is_never_deeper_than_its_readers_can_follow(tmp_path: Path) -> None:
    value: Any = 1
    for depth in range(1, atomic.DEEPEST + 2):
        value = {"a": value} if depth % 2 else [0, value]
        (tmp_path / "a.json").write_text(json.dumps(value))
        if depth < atomic.DEEPEST:
            assert atomic.read_json(tmp_path / "a.json") == value
    assert refused(lambda: atomic.read_json(tmp_path / "a.json"), ValueError) == "it is nested too deeply"


def test_types_of_numbers_have_their_names_in_numpy() -> None:
    for kind, name in ((pa.float16(), "float16"), (pa.float32(), "float32"), (pa.float64(), "float64"),
                       (pa.int8(), "int8"), (pa.uint64(), "uint64")):  # fmt: skip
        assert columns._dtype(kind) == np.dtype(name)
