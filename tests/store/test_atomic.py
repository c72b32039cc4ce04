"""Atomic writes by rename."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.store import atomic
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint
from mm_ldlm.data.store.paths import is_taken


def test_a_failed_write_leaves_the_old_file_and_no_temporaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    atomic.write_json(path, {"a": 1})

    def broken(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        atomic.write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [1.0, float("-inf")]}])
def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "a.json", value)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the open files of a process are listed on Linux only")
def test_no_write_leaves_a_file_open(tmp_path: Path) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    for number in range(5):
        atomic.write_json(tmp_path / "a.json", {"a": number})
        with atomic.new_directory(tmp_path / "d") as new:
            (new / "file").write_text("x")
    assert opened() == before


def thing(kind: str, path: Path) -> Path:
    """Put something that is no folder at `path`: renaming would replace even a device."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("x")
    else:
        path.symlink_to("nothing" if kind == "link to nothing" else path.name)
    return path


KINDS = ("pipe", "file", "link to nothing", "link to itself")


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_folder_is_replaced_by_a_folder(kind: str, tmp_path: Path) -> None:
    before = os.lstat(thing(kind, tmp_path / "d"))
    with (
        pytest.raises(StoreError, match=r"d: expected a folder, found that it is .+\. Choose another place"),
        atomic.new_directory(tmp_path / "d") as new,
    ):
        (new / "file").write_text("x")
    assert os.lstat(tmp_path / "d") == before
    assert [each.name for each in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_place_is_nothing_or_an_empty_folder(kind: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert [is_taken(tmp_path / name) for name in ("nothing", "empty")] == [False, False]
    assert is_taken(thing(kind, tmp_path / "empty" / "x"))
    assert is_taken(tmp_path / "empty")


def test_a_link_to_a_folder_stays_and_its_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk" / "old").mkdir(parents=True)
    (tmp_path / "d").symlink_to("disk/old")
    with atomic.new_directory(tmp_path / "d") as new:
        (new / "file").write_text("x")
    assert (tmp_path / "d").is_symlink()
    assert sorted(each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*")) == [
        "d", "disk", "disk/old", "disk/old/file"
    ]  # fmt: skip


def test_a_directory_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "d"

    def fail() -> None:
        with atomic.new_directory(target) as new:
            (new / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    for text in ("one", "two"):
        with atomic.new_directory(target) as new:
            (new / "file").write_text(text)
    assert (target / "file").read_text() == "two"
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_removes_what_killed_writers_left_of_it_and_nothing_else(tmp_path: Path) -> None:
    for name in (".tmp-1a-d", ".tmp-2b-old-d", ".tmp-3c-other", ".tmp-4d-d-2"):
        (tmp_path / name).mkdir()
    with atomic.new_directory(tmp_path / "d") as new:
        (new / "file").write_text("one")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-3c-other", ".tmp-4d-d-2", "d"]


def test_temporaries_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-x").write_text("")
    (tmp_path / ".tmp-2-d").mkdir()
    (tmp_path / "kept").write_text("")
    atomic.remove_temporaries(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((each, "the disk is full at /x .*Free some space") for each in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
        *((each, "permission to read and write at /x") for each in (errno.EACCES, errno.EPERM, errno.EROFS)),
        (errno.EIO, None), (errno.ENOENT, None),
    ],
)  # fmt: skip
def test_every_failure_to_write_that_the_user_can_remove_is_explained(number: int, words: str | None) -> None:
    found = atomic.write_failure(OSError(number, "reason", "/x"))
    assert (found is None) if words is None else re.search(rf"{words}", found or "")
    if words is not None:
        assert " at " not in str(atomic.write_failure(OSError(number, "reason"))).partition("(")[0]


def test_fingerprints_ignore_order_and_container_type() -> None:
    assert fingerprint({"b": 1, "a": (1, 2)}) == fingerprint({"a": [1, 2], "b": np.int64(1)})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert len(fingerprint("x")) == 32
    assert len({fingerprint(name) for name in ("?", "\ud800", "\udfff", "é", "\u00e9 ")}) == 5
    assert fingerprint(Path("a/b")) == fingerprint("a/b")
    with pytest.raises(ValueError):
        fingerprint(float("nan"))


def test_file_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert file_sha256(tmp_path / "x").startswith("ba7816bf")


def test_folders_that_are_missing_are_created(tmp_path: Path) -> None:
    for _ in range(2):
        atomic.write_bytes(tmp_path / "a" / "b" / "c", b"x")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"x"
