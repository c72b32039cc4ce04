"""Names that files contain: their resolution inside a folder, and the reason why a path is no regular file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from mm_ldlm.core.errors import StoreError, UnsafePathError

FOLDER, MISSING = "is a folder", "does not exist"
"""The two answers of `problem` that callers treat separately."""
_KINDS = (
    (stat.S_ISDIR, FOLDER),
    (stat.S_ISFIFO, "is a named pipe (FIFO)"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISCHR, "is a device"),
)
_ERRORS = {
    errno.ENOENT: MISSING,
    errno.ENOTDIR: "does not exist: a part of its path is a file",
    errno.ELOOP: "is a loop of symbolic links",
    errno.ENAMETOOLONG: "has a name that is too long for the file system",
}


def inside(root: str | Path, name: Any) -> Path:
    """Resolve a name that a file contains, relative to the folder `root`. The path need not exist.

    Every name that one file gives for another one passes through this function. The check and the later opening are
    two steps: it protects against names in files, not against a process that exchanges files meanwhile.

    Raises:
        UnsafePathError: `check_name` refuses the name, or a symbolic link on the way leads out of `root`.
    """
    parts = check_name(root, name).parts
    path = Path(root, *parts)
    current = os.fspath(root)
    try:
        for part in parts:
            current = os.path.join(current, part)
            if stat.S_ISLNK(os.lstat(current).st_mode):
                _check_target(root, name, path)
                break
    except FileNotFoundError:
        pass  # the caller finds that the file is missing
    except OSError as error:
        if error.errno != errno.ENOTDIR:
            raise UnsafePathError(root, name, _explain(error)) from None
    return path


def check_name(root: str | Path, name: Any) -> PurePosixPath:
    """Check the form of a name that a file contains, for example of a member of an archive `root`.

    Raises:
        UnsafePathError: It is no text, empty, absolute, contains `..` or NUL, or cannot be a file name.
    """
    if not isinstance(name, str):
        raise UnsafePathError(root, name, f"is of type {type(name).__name__} instead of text")
    path = PurePosixPath(name)
    if not path.parts:
        raise UnsafePathError(root, name, "is empty")
    if path.is_absolute() or ".." in path.parts:
        raise UnsafePathError(root, name, "leads out of the folder")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise UnsafePathError(root, name, "contains a lone surrogate") from None
    if "\0" in name:
        raise UnsafePathError(root, name, "contains NUL")
    return path


def problem(path: str | Path) -> str | None:
    """Return why a path is no regular file, as the end of a sentence about it; None if it is one.

    A pipe, a device or a socket is never opened, because reading it may never end.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.islink(path):
            return "is a symbolic link to a file that does not exist"
        return _explain(error)
    except ValueError as error:  # NUL, or a lone surrogate
        return f"is not a valid path ({error})"
    if stat.S_ISREG(mode):
        return None
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "is not a regular file")


def refuse_no_file(path: str | Path) -> None:
    """Raise StoreError for a path that exists and is no regular file: a folder, or a pipe whose reading may not end."""
    if os.path.lexists(path) and (reason := problem(path)) is not None:
        raise StoreError(f"{path}: expected a file, found that it {reason}. Remove it, or put the file in its place.")


def is_taken(path: str | Path) -> bool:
    """Return whether a path is no place for a new folder or archive: anything but nothing or an empty folder is there.

    Raises:
        OSError: the file system accepts no such name.
    """
    folder = Path(path).is_dir()
    return any(Path(path).iterdir()) if folder else os.path.lexists(path)


def _check_target(root: str | Path, name: str, path: Path) -> None:
    try:
        target = os.path.realpath(path, strict=True)
    except (FileNotFoundError, NotADirectoryError):
        target = os.path.realpath(path)
    if not Path(target).is_relative_to(os.path.realpath(root)):
        raise UnsafePathError(root, name, "is or passes a symbolic link that leads out of the folder")


def _explain(error: OSError) -> str:
    return _ERRORS.get(error.errno or 0, f"cannot be accessed ({error.strerror})")
