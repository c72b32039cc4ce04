"""Checksums on first use: each file of a store is hashed once, and a small record in its folder lists them.

The record has one line for each file: its name, size, times of modification and change, and checksum. A file that was
written, replaced or renamed since then has other numbers and is hashed again. The record is a cache that nothing else
reads: it may be removed, and a folder that cannot be written to is hashed once in every process.
Bytes that change on the disk itself, without a write, keep their times; only `ShardStore.verify`, which the validation
pipeline calls, reads every byte again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mm_ldlm.core.errors import MissingShardError, StoreError
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.store.fingerprint import file_sha256

RECORD = ".verified"
_known: dict[str, set[str]] = {}
"""Folder → lines of its record, and those that could not be written to it."""


def verify_file(directory: Path, name: str, *, sha256: str, remedy: str) -> None:
    """Compare the checksum of a file with the expected one, unless it was compared since the file changed.

    Raises:
        MissingShardError: the file does not exist.
        StoreError: the checksum differs.
    """
    line = _line(directory, name, sha256, remedy)
    if line in _lines(directory):
        return
    if file_sha256(directory / name) != sha256:
        raise StoreError(
            f"{directory / name}: checksum differs: the bytes on disk changed after they were written. Remove this "
            f"file. {remedy}"
        )
    remember(directory, line)


def remember(directory: Path, line: str) -> None:
    """Add one line to the record of a folder."""
    _lines(directory).add(line)
    # One append of one short line: writers in other processes cannot mix with it, and a torn line matches no file.
    # O_NONBLOCK: a pipe in its place would be opened only when somebody reads it.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def record(directory: Path, name: str, *, sha256: str) -> None:
    """Record a file as verified without reading it, as the benchmark of ten million rows does with its 15 GB."""
    remember(directory, _line(directory, name, sha256, ""))


def _line(directory: Path, name: str, sha256: str, remedy: str) -> str:
    try:
        found = (directory / name).stat()
    except FileNotFoundError:
        raise MissingShardError(f"{directory / name}: this shard is missing. {remedy}") from None
    except OSError as error:
        raise StoreError(f"{directory / name}: cannot be read ({error.strerror}). {remedy}") from None
    return f"{name} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {sha256}"


def _lines(directory: Path) -> set[str]:
    key = os.path.abspath(directory)
    if key not in _known:
        try:
            _known[key] = set(InputFile(directory / RECORD, remedy="").lines())
        except StoreError:
            _known[key] = set()
    return _known[key]
