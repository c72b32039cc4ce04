"""Files of sources: globs, compression, and lines or documents of bounded size."""

from __future__ import annotations

import dataclasses
import glob
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from mm_ldlm.core.config import InvalidValue
from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import InputFile
from mm_ldlm.core.messages import reason_of, show
from mm_ldlm.data.corpus.sources.base import BadRow, Opening, Row, SourceConfig, excerpt, printable
from mm_ldlm.data.store.fingerprint import file_sha256

_BUFFER = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
"""Byte order marks of UTF-16 and UTF-32, in which a line break is not one byte"""


@dataclasses.dataclass(frozen=True)
class FileSource:
    """The rows of all files of a source, one file after another: `config.read(path, opening)` yields those of one."""

    config: Any
    opening: Opening

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            yield from self.config.read(path, self.opening)

    def describe(self) -> Any:
        return describe_files(find_files(self.config))


def find_files(config: SourceConfig, *, key: str = "path") -> list[Path]:
    """List the files that a key of a source names, in that order, each once; the files of a glob are sorted.

    Raises:
        SourceError: a file is missing or is not a regular file, or a glob matches nothing.
    """
    found: list[Path] = []
    for pattern in [path for name, path in config.files if name == key]:
        matches = [pattern]
        if glob.has_magic(pattern) and not os.path.lexists(pattern):
            matches = [each for each in sorted(glob.glob(pattern, recursive=True)) if not os.path.isdir(each)]
        found += [regular_file(config, path, key=key) for path in matches or [pattern]]
    return list(dict.fromkeys(found))


def regular_file(config: SourceConfig, path: str | Path, *, key: str) -> Path:
    """Return the path of a file of a source; a folder, a pipe or a missing file is a SourceError."""
    remedy = f"Correct the '{key}' of source '{config.label}', or put the file there (looked from {Path.cwd()})."
    return InputFile(path, remedy=remedy, error=SourceError).check()


def describe_files(paths: list[Path]) -> list[dict[str, Any]]:
    """Describe each file by name, size and sha256, without its location or time."""
    try:
        return [
            {"name": printable(path.name), "bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in paths
        ]
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read ({error.strerror}). Correct the permissions.") from None


def check_encoding(encoding: str) -> None:
    """Check the key `encoding` of a source.

    Raises:
        InvalidValue: Python has no such encoding of text, or its ASCII characters are not single bytes.
    """
    try:
        encoded = "a\n".encode(encoding)
    except (LookupError, ValueError):
        encoded = b""
    if encoded != b"a\n":
        raise InvalidValue(
            f"expected an encoding of text whose ASCII characters are single bytes, found {show(encoding)}. Use utf-8 "
            "or another one that Python knows, or convert the file to UTF-8 (iconv)",
            "encoding",
        )


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes; .gz and .zst files are decompressed."""
    if path.suffix == ".gz":
        return cast(BinaryIO, io.BufferedReader(cast(Any, gzip.open(path, "rb")), _BUFFER))
    if path.suffix == ".zst":
        import pyarrow as pa  # detects truncated archives, which the zstandard package's reader does not

        stream = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        return cast(BinaryIO, io.BufferedReader(cast(Any, stream), _BUFFER))
    return open(path, "rb", buffering=_BUFFER)


class Line(NamedTuple):
    """A line: its number from 1, its text without the line break, and the damaged row if it cannot be read.

    The text of such a line is one quotation mark or none, whichever leaves the quoting of the other lines as it is.
    """

    number: int
    text: str
    bad: BadRow | None = None


def read_lines(path: Path, *, encoding: str, max_bytes: int, whole: bool = False) -> Iterator[Line]:
    """Yield the lines of a text file, or the whole file as one; a line is never held beyond `max_bytes`.

    Line breaks are LF or CR LF; a UTF-8 byte order mark is dropped. A line that cannot be decoded, contains NUL or
    exceeds `max_bytes` is damaged.

    Raises:
        SourceError: the file is a damaged archive, is UTF-16 or UTF-32, or its lines have fewer or more bytes than it.
    """
    number = offset = 0
    try:
        with open_bytes(path) as file:
            read = file.read if whole else file.readline
            while (raw := read(max_bytes + 1)) or (whole and not number):
                number += 1
                size, quotes = len(raw), raw.count(b'"')
                if offset == 0:
                    raw = _without_mark(path, raw)
                start = offset + size - len(raw)
                rest = size > max_bytes and (whole or raw[-1:] != b"\n")
                too_long = rest
                while rest and (piece := read(_BUFFER)):
                    size += len(piece)
                    quotes += piece.count(b'"')
                    rest = whole or piece[-1:] != b"\n"
                text, fault = "", None
                if too_long:
                    fault = "oversized", f"{size} bytes, at most {max_bytes} are read"
                elif b"\0" in raw:
                    fault = "nul", f"NUL byte at byte {start + raw.index(0)} of the file"
                else:
                    try:
                        text = raw.rstrip(b"\r\n").decode(encoding)
                    except UnicodeError as error:
                        fault = "encoding", explain_decoding(error, encoding, start)
                if fault is None:
                    yield Line(number, text)
                else:
                    yield Line(number, '"' * (quotes % 2), BadRow(str(path), number, *fault, excerpt(raw)))
                offset += size
            if path.suffix not in (".gz", ".zst") and offset != (found := path.stat().st_size):
                raise OSError(f"{offset} bytes were read, but the file has {found} now: it changed while it was read")
    except (EOFError, zlib.error, OSError) as error:
        raise damaged(path, number, error) from None


def explain_decoding(error: UnicodeError, encoding: str, offset: int) -> str:
    """Explain which byte cannot be decoded and what to do; `offset` is the place of the decoded bytes in the file."""
    place = offset + getattr(error, "start", 0)
    return (
        f"byte {place} of the file is not {encoding} ({getattr(error, 'reason', error)}): convert the file (iconv -f "
        "latin1 -t utf-8), or set the source's 'encoding'"
    )


def damaged(path: Path, number: int, error: Exception) -> SourceError:
    """Return the error for a truncated or unreadable file; continuing would lose rows silently."""
    return SourceError(
        f"{path}: damaged, or not of the type that its name suggests, after line {number} "
        f"({reason_of(error)}). Fetch the file again or take it out of the source's 'path'."
    )


def _without_mark(path: Path, beginning: bytes) -> bytes:
    if beginning.startswith(_WIDE_MARKS):
        raise SourceError(
            f"{path}: expected one byte per line break, found the mark of UTF-16 or UTF-32 at byte 0. Convert the file "
            "first: iconv -f UTF-16 -t UTF-8."
        )
    return beginning.removeprefix(_UTF8_MARK)
