"""Files: atomic writes, names that stay inside a folder, and `InputFile` for files that a person or a program made.

`InputFile` reads a regular file completely, within a limit, as bytes, text, lines or JSON, and refuses
everything else in one form: what was expected, what was found, what to do. A pipe, a device or a socket is never
opened, because reading it may never end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import json
import os
import re
import shutil
import stat
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, dataclass_transform

import pydantic

from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import MMLDLMError, StoreError, UnsafePathError, shorten
from mm_ldlm.core.messages import escape, reason_of, show
from mm_ldlm.core.typed import adapter

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

MOST_BYTES = 1 << 31
"""Size up to which a file is read at once"""
_TEMPORARY, _BLOCK = ".tmp-", 1 << 20
_KINDS = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a named pipe (FIFO)"),
    (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISCHR, "is a device"),
)
_ERRORS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "does not exist: a part of its path is a file",
    errno.ELOOP: "is a loop of symbolic links",
    errno.ENAMETOOLONG: "has a name that is too long for the file system",
}


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True)
def json_document(cls: type[T]) -> type[T]:
    """Make `cls` the frozen dataclass of a JSON file, whose keys are its fields; `InputFile.json` refuses others."""
    cls.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(cls)


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file that a person or another program made, with the text and class of its error.

    Attributes:
        path: where it is expected.
        remedy: what the user can do if it is missing or damaged.
        error: class of the refusal.
        name: name of the file in the error; "" stands for its path.
    """

    path: str | Path
    _: dataclasses.KW_ONLY
    remedy: str
    error: type[MMLDLMError] = StoreError
    name: str = ""

    def refuse(self, expected: str, found: str) -> NoReturn:
        """Raise the error that says what was expected of the file, and what was found."""
        name = self.name or shorten(escape(mask(str(self.path))))
        raise self.error(f"{name}: expected {expected}, found {found}. {self.remedy}")

    @contextlib.contextmanager
    def parsing(self, expected: str, *errors: type[Exception]) -> Iterator[None]:
        """Refuse a file whose content raises one of these errors."""
        try:
            yield
        except errors as error:
            self.refuse(expected, f"an error ({reason_of(error)})")

    def check(self) -> Path:
        """Return the path; refuse everything but a regular file."""
        if (fault := problem(self.path)) is not None:
            self.refuse("a file", f"that it {fault}")
        return Path(self.path)

    def read(self, *, most: int = MOST_BYTES, gzipped: bool = False) -> bytes:
        """Read a file of at most `most` bytes, after decompression if it is compressed by gzip."""
        path, found = self.check(), bytearray()
        try:
            with gzip.open(path) if gzipped else open(path, "rb") as file:
                while len(found) <= most and (block := file.read(_BLOCK)):
                    found += block
        except (OSError, EOFError, zlib.error) as error:
            self.refuse("a readable file", f"an error ({getattr(error, 'strerror', None) or error})")
        if len(found) > most:
            self.refuse(f"at most {most:,} bytes", "more")
        return bytes(found)

    def text(self) -> str:
        """Read a UTF-8 file, compressed by gzip if its name ends in `.gz`, without a byte order mark."""
        raw = self.read(most=MOST_BYTES, gzipped=str(self.path).endswith(".gz"))
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.refuse("a text in UTF-8", f"the byte {raw[error.start]:#x} at position {error.start}")

    def lines(self) -> list[str]:
        """Read the lines of a text, divided at LF or CR LF, as the sources do.

        `str.splitlines` also divides at form feeds, U+0085 and U+2028, which occur inside texts and in vocabularies:
        every later line would then get the vector, or the id, of another one.
        """
        text = self.text()
        return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []

    def json(self, like: Any = Any) -> Any:
        """Read a JSON file as a value of the type `like`: Any, a built-in type, a container, or a `json_document`.

        A value of another type is refused; nothing is converted. Mappings and lists are nested at most 200 deep, so
        that functions that copy a value can follow.
        """
        try:
            return adapter(like).validate_json(self.text(), strict=True)
        except pydantic.ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            found = f"{place}: {fault['msg']}, found {show(fault['input'], 200)}" if place else fault["msg"]
            self.refuse(f"JSON of the type {getattr(like, '__name__', like)}", f"an error ({found})")

    def array(self) -> npt.NDArray[Any]:
        """Map the array of numbers in a `.npy` file into memory, read-only; pickled objects are never loaded."""
        from numpy.lib import format as npy

        path = self.check()
        # A header raises errors of tokenize, ast and struct.
        with self.parsing("a .npy file of one array of numbers", Exception):
            found = npy.open_memmap(path, mode="r")
        if found.offset + found.nbytes != path.stat().st_size:
            self.refuse(
                "a .npy file of one array of numbers", f"{path.stat().st_size} bytes for {found.nbytes} of values"
            )
        return found


def recorded(path: str | Path, like: Any = dict) -> Any:
    """Read a JSON file that a run wrote for itself; None if it is missing, damaged or of another type."""
    try:
        return InputFile(path, remedy="").json(like)
    except StoreError:
        return None


def problem(path: str | Path) -> str | None:
    """Return why a path is not a regular file, as the end of a sentence about it; None if it is one."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _ERRORS.get(error.errno or 0, f"cannot be accessed ({error.strerror})")
    except ValueError as error:  # NUL, or a lone surrogate
        return f"is not a valid path ({error})"
    if stat.S_ISREG(mode):
        return None
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "is not a regular file")


def is_flat(value: Any, depth: int) -> bool:
    """Return whether mappings and lists are nested at most `depth` deep."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return depth >= 0 and all(is_flat(item, depth - 1) for item in items)


# -- writing -----------------------------------------------------------------------------------------------------------


def write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """Write a temporary file next to `path`, flush it to disk and rename it. Missing parents are created.

    A reader sees the old file or the entire new file, never a part of it.

    Raises:
        StoreError: something other than a file is at `path`.
    """
    path = Path(path)
    refuse_other(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a text atomically as UTF-8, with the newlines as given."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write a value atomically as indented JSON with keys in the given order; NaN is refused (JSON has none)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def new_directory(path: str | Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `path` when the block succeeds and removed when it fails.

    An existing `path` is replaced; between the two renames it does not exist for a moment. A folder has one writer at a
    time, so temporary directories for this `path` were left by killed writers and are removed first. A link to a folder
    stays, and that folder is replaced.

    Raises:
        StoreError: `path` exists and is not a folder. The two renames would replace even a device.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        InputFile(path, remedy="Choose another place.").refuse("a folder", f"that it {problem(path) or 'is a file'}")
    path = Path(path).resolve() if Path(path).is_symlink() else Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_temporaries(path.parent, of=path.name)
    temporary = temporary_of(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        old = temporary_of(path)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync(path.parent)


def remove_temporaries(directory: str | Path, *, of: str = "*") -> None:
    """Remove temporary files that killed writers of the file or folder `of` left in `directory`; none may be active."""
    for entry in Path(directory).glob(f"{_TEMPORARY}*"):
        mine = re.fullmatch(f"{_TEMPORARY}[0-9a-f]{{32}}-(.+)", entry.name)
        if mine is None or of not in ("*", mine[1]):
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def write_problem(error: OSError) -> str | None:
    """Describe a failure to write that the user can fix: a full disk or a folder without permission.

    Returns:
        What failed and what to do, or None if the error has another cause.
    """
    place = f" at {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"the disk is full{place} ({error.strerror}). Free some space, then run the same command again: what is "
            "finished is kept."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"expected a file or folder with permission to read and write{place}, found one without "
            f"({error.strerror}). Correct its permissions, or choose another folder (`--params data=FOLDER`)."
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
        return (
            f"no file or folder can be made{place} ({error.strerror}). Remove what is in its place, or choose another "
            "folder (`--params data=FOLDER`)."
        )
    return None


def refuse_other(path: str | Path, *, error: type[MMLDLMError] = StoreError) -> None:
    """Raise `error` if something other than a regular file is at `path`; nothing may be there."""
    if os.path.lexists(path):
        InputFile(path, remedy="Remove it, or choose another place.", error=error).check()


def is_taken(path: str | Path) -> bool:
    """Return whether anything but an empty folder is at a path, so that it has no room for a new folder or archive."""
    return any(Path(path).iterdir()) if os.path.isdir(path) else os.path.lexists(path)


def temporary_of(path: Path) -> Path:
    """Return a new name next to a path, which `remove_temporaries` finds."""
    return path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}-{path.name}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- names inside a folder ---------------------------------------------------------------------------------------------


def inside(root: str | Path, name: Any) -> Path:
    """Resolve a name that a file contains, relative to the folder `root`. The path need not exist.

    Every name that one file gives for another one passes through this function. The check and the later opening are
    two steps: it protects against names in files, not against a process that exchanges files meanwhile.

    Raises:
        UnsafePathError: `check_name` refuses the name, or a symbolic link on the way leads out of `root`.
    """
    path = Path(root) / check_name(root, name)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise _unsafe(root, name, "is or passes a symbolic link that leads out of the folder")
    return path


def check_name(root: str | Path, name: Any) -> PurePosixPath:
    """Check the form of a name that a file contains, for example of a member of an archive `root`.

    Raises:
        UnsafePathError: It is not a text, empty, absolute, contains `..` or NUL, or cannot be a file name.
    """
    path = PurePosixPath()
    with contextlib.suppress(TypeError, UnicodeEncodeError):  # a lone surrogate
        path = PurePosixPath("" if b"\0" in os.fsencode(name) else name)
    if not path.parts or not isinstance(name, str):
        raise _unsafe(root, name, "is not a file name")
    if path.is_absolute() or ".." in path.parts:
        raise _unsafe(root, name, "leads out of the folder")
    return path


def _unsafe(root: str | Path, name: Any, fault: str) -> UnsafePathError:
    return UnsafePathError(
        f"{root}: expected the name of a file inside this folder, but the name {name!a:.200} {fault}. Correct the "
        "name, or copy the file into the folder."
    )
