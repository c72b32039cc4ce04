"""A copy of the project in which faults are planted one at a time."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def copy_project(project: Path, to: Path) -> Path:
    """Copy the files of the project that git tracks or does not ignore, and return the root of the copy."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=project, check=True, capture_output=True
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = project / name, to / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return to


@contextlib.contextmanager
def planted(file: Path, changed: bytes) -> Iterator[None]:
    """Replace the content of a file, and restore it at the end.

    Compiled files are recognised by the time of their source in whole seconds and its size, so each version of the
    source gets a time of its own.
    """
    original, stat = file.read_bytes(), file.stat()
    file.write_bytes(changed)
    _CLOCK[0] += 2
    os.utime(file, (_CLOCK[0], _CLOCK[0]))
    try:
        yield
    finally:
        file.write_bytes(original)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


_CLOCK = [1_000_000_000.0]
