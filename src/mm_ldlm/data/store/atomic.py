"""Atomic writes by rename: a reader sees the old file or the whole new file, never a part of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.store.paths import FOLDER, problem, refuse_no_file

_TEMPORARY = ".tmp-"
DEEPEST = 100
"""Mappings and lists that a value of a JSON file may be nested in"""


def write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """Write a temporary file beside `path`, flush it to disk and rename it. Missing parents are created."""
    path = Path(path)
    refuse_no_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}-{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a text atomically as UTF-8, with the newlines as given."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write a value atomically as indented JSON with keys in the given order; NaN is refused (JSON has none)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: the file is missing or cannot be read.
        StoreError: the path is that of a folder, a pipe or a device.
        ValueError: it is not UTF-8, not JSON, or nested more deeply than `DEEPEST`.
    """
    refuse_no_file(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _refuse_deep(found)
    return found


def _refuse_deep(value: Any) -> None:
    """Raise ValueError if mappings and lists are nested more deeply than the functions that copy them can follow."""
    level = [value]
    for _ in range(DEEPEST):
        level = [item for each in level if isinstance(each, (dict, list))
                 for item in (each.values() if isinstance(each, dict) else each)]  # fmt: skip
        if not level:
            return
    raise ValueError("it is nested too deeply")


@contextlib.contextmanager
def new_directory(path: str | Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `path` when the block succeeds and removed when it fails.

    An existing `path` is replaced; between the two renames it does not exist for a moment. A folder has one writer at a
    time, so temporary directories for this `path` are those of killed writers and are removed first. A link to a folder
    stays, and that folder is replaced.

    Raises:
        StoreError: `path` exists and is no folder. The two renames would replace even a device.
    """
    path = Path(path)
    if os.path.lexists(path) and (reason := problem(path)) != FOLDER:
        raise StoreError(f"{path}: expected a folder, found that it {reason or 'is a file'}. Choose another place.")
    if path.is_symlink():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{_TEMPORARY}*"):
        if left.name[len(_TEMPORARY) :].partition("-")[2].removeprefix("old-") == path.name:
            shutil.rmtree(left, ignore_errors=True)
    temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}-{path.name}")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
        if path.exists():
            old = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}-old-{path.name}")
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_directory(path.parent)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def write_failure(error: OSError) -> str | None:
    """Describe a failure to write that the user can remove: a full disk or a folder without permission.

    Returns:
        What failed and what to do, or None if the error has another cause.
    """
    place = f" at {error.filename}" if error.filename else ""
    if error.errno in _FULL:
        return (
            f"the disk is full{place} ({error.strerror}). Free some space, then run the same command again: what is "
            "finished is kept."
        )
    if error.errno in _FORBIDDEN:
        return (
            f"expected a file or folder with permission to read and write{place}, found one without "
            f"({error.strerror}). Correct its permissions, or choose another folder (`--params data=FOLDER`)."
        )
    return None


def remove_temporaries(directory: str | Path) -> None:
    """Remove temporary files that killed writers left in `directory`; no writer may be active there."""
    for entry in Path(directory).glob(f"{_TEMPORARY}*"):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
