"""The messages of arrays, paths, locks and files, word for word, and names that lead elsewhere."""

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

from mm_ldlm.core.errors import MissingShardError, StoreError, UnsafePathError
from mm_ldlm.data.store import Manifest, ShardStore, atomic, columns, lock, paths, shard_file, verified, write_shard
from mm_ldlm.data.store.npy import map_npy, read_npy
from stand_ins import refused

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
            assert refused(ValueError, lambda read=read: read(path)) == (
                f"its header states an array of shape (3,), type int16 and 6 bytes, found {found} bytes"
            )
    for array in (np.array([None]), np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")])):
        np.save(path, array, allow_pickle=True)
        for read in (read_npy, map_npy):
            assert refused(ValueError, lambda read=read: read(path)) == (
                "it contains pickled objects, which are never loaded"
            )
    path.write_bytes(b"x" * 50)
    message = refused(ValueError, lambda: read_npy(path))
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
        assert refused(StoreError, lambda name=name: paths.refuse_no_file(name)) == (
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


def test_a_folder_replaces_nothing_but_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone").symlink_to("nowhere")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name, reason in (("file", "is a file"), ("pipe", "is a named pipe (FIFO)"),
                         ("gone", "is a symbolic link to a file that does not exist")):  # fmt: skip
        make = lambda name=name: atomic.new_directory(tmp_path / name).__enter__()  # noqa: E731
        assert refused(StoreError, make) == (
            f"{tmp_path / name}: expected a folder, found that it {reason}. Choose another place."
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_a_file_of_json_is_never_deeper_than_its_readers_can_follow(tmp_path: Path) -> None:
    value: Any = 1
    for depth in range(1, atomic.DEEPEST + 2):
        value = {"a": value} if depth % 2 else [0, value]
        (tmp_path / "a.json").write_text(json.dumps(value))
        if depth < atomic.DEEPEST:
            assert atomic.read_json(tmp_path / "a.json") == value
    assert refused(ValueError, lambda: atomic.read_json(tmp_path / "a.json")) == "it is nested too deeply"


def test_types_of_numbers_have_their_names_in_numpy() -> None:
    for kind, name in ((pa.float16(), "float16"), (pa.float32(), "float32"), (pa.float64(), "float64"),
                       (pa.int8(), "int8"), (pa.uint64(), "uint64")):  # fmt: skip
        assert columns._dtype(kind) == np.dtype(name)


# -- shards and their record -------------------------------------------------------------------------------------------


def test_a_file_that_is_recorded_is_taken_for_verified_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    monkeypatch.setattr(verified, "file_sha256", lambda path: pytest.fail("it is not read"))
    verified.record(tmp_path, "a", sha256="of the benchmark")
    verified.verify_file(tmp_path, "a", sha256="of the benchmark", remedy="")
    about = (tmp_path / "a").stat()
    line = f"a {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} of the benchmark\n"
    assert (tmp_path / verified.RECORD).read_text() == line
    assert stat.S_IMODE((tmp_path / verified.RECORD).stat().st_mode) & ~0o644 == 0


def test_files_that_cannot_be_verified_are_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a").write_bytes(b"abc")
    for name, words in (("none", "this shard is missing. Do this."),
                        ("loop", "cannot be read (Too many levels of symbolic links). Do this."),
                        ("a", "checksum differs: the bytes on disk changed after they were written. Remove this file. "
                         "Do this.")):  # fmt: skip
        kind = MissingShardError if name == "none" else StoreError
        make = lambda name=name: verified.verify_file(tmp_path, name, sha256="x", remedy="Do this.")  # noqa: E731
        assert refused(kind, make) == f"{tmp_path / name}: {words}"
    assert not (tmp_path / verified.RECORD).exists(), "only what was compared is recorded"


def test_shards_that_are_none_are_told_whole(tmp_path: Path) -> None:
    path, remedy = tmp_path / "part-000000.arrow", shard_file.REMEDY
    assert refused(MissingShardError, lambda: shard_file.read(path)) == f"{path}: this shard is missing. {remedy}"
    twice = pa.table([[1], ["x"]], schema=pa.schema([("a", pa.int64()), ("a", pa.string())]))
    write_shard(tmp_path, path.name, twice)
    assert refused(StoreError, lambda: shard_file.read(path)) == (
        f"{path}: two columns have one name (a: int64, a: string). Remove it. {remedy}"
    )
    column = pa.array([[1, None], None, [None]])
    assert refused(StoreError, lambda: shard_file.validate(column, path=path, column="c")) == (
        f"{path}: expected no nulls in column 'c', found 3. Remove this shard. {remedy}"
    )
    offsets = pa.py_buffer(np.array([0, 99, 1], np.int32))
    damaged = pa.ListArray.from_buffers(pa.list_(pa.int32()), 2, [None, offsets], children=[pa.array([1], pa.int32())])
    message = refused(StoreError, lambda: shard_file.validate(damaged, path=path, column="c"))
    assert message.startswith(f"{path}: column 'c' is damaged (")
    assert message.endswith(f"). Remove this shard. {remedy}")
    assert refused(StoreError, lambda: write_shard(tmp_path, "x", twice.slice(0, 0))) == (
        "expected at least one row for a shard, found none. An empty store has no shards."
    )
    assert not (tmp_path / "x").exists()


def test_a_schema_that_is_none_is_named_with_its_file(tmp_path: Path) -> None:
    Manifest(kind="toy", rows=0).write(tmp_path)
    path = tmp_path / "schema.arrow"
    path.write_bytes(b"none")
    message = refused(StoreError, lambda: ShardStore.open(tmp_path).schema)
    assert message.startswith(f"{path}: not a readable schema (")
    assert message.endswith(f"). {shard_file.REMEDY}")
