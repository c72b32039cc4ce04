"""Reading of files: globs, compression, lines of bounded size."""

from __future__ import annotations

import glob
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import problem
from mm_ldlm.data.corpus.sources.base import BadRow, excerpt, printable
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.store.fingerprint import file_sha256

_BUFFER = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8, which is no part of the text."""
_BOMS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Line(NamedTuple):
    """A decoded line: its number from 1 and its text without the line break."""

    number: int
    text: str


class BadLine(BadRow):
    """A line that cannot be read; `quotes` counts its quotation marks, for readers of quoted fields."""

    quotes: int = 0


def find_files(config: SourceConfig) -> list[Path]:
    """List files in the order of the parameters; the files of a glob are sorted.

    Raises:
        SourceError: A file is missing or no regular file, or a glob matches nothing.
    """
    found: list[Path] = []
    for pattern in config.paths:
        if glob.has_magic(pattern) and not os.path.lexists(pattern):
            matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
            matches = [match for match in matches if not os.path.isdir(match)]
            for match in matches:
                if (fault := problem(match)) is not None:
                    raise SourceError(
                        f"source '{config.label}': {match}, which {pattern!r} matches, {fault}. Remove it, or "
                        "correct the source's 'path'."
                    )
            if not matches:
                raise SourceError(
                    f"source '{config.label}': no file matches {pattern!r} (looked from {Path.cwd()}). "
                    "Put the files there or correct the source's 'path'."
                )
            found += matches
            continue
        path = Path(pattern)
        if os.path.isdir(path):
            raise SourceError(
                f"source '{config.label}': {pattern} is a folder, expected a file. For example, write {pattern}/*.txt."
            )
        if (fault := problem(path)) is not None:
            raise SourceError(
                f"source '{config.label}': file {pattern} {fault} (looked from {Path.cwd()}). "
                "Correct the source's 'path' or put the file there."
            )
        found.append(path)
    return list(dict.fromkeys(found))


def describe_files(paths: list[Path]) -> list[dict[str, Any]]:
    """Describe each file by name, size and sha256, without its location or time."""
    try:
        return [
            {"name": printable(path.name), "bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in paths
        ]
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read ({error.strerror}). Correct the permissions.") from None


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes; .gz and .zst files are decompressed."""
    if path.suffix == ".gz":
        return cast(BinaryIO, io.BufferedReader(cast(Any, gzip.open(path, "rb")), _BUFFER))
    if path.suffix == ".zst":
        import pyarrow as pa  # detects truncated archives, which the zstandard package's reader does not

        stream = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        return cast(BinaryIO, io.BufferedReader(cast(Any, stream), _BUFFER))
    return open(path, "rb", buffering=_BUFFER)


def read_lines(path: Path, *, encoding: str, max_bytes: int) -> Iterator[Line | BadLine]:
    """Yield the lines of a text file. Line breaks are LF or CR LF; a UTF-8 byte order mark is dropped.

    A line that cannot be decoded, contains NUL or exceeds `max_bytes` is yielded as a `BadLine`; a line that is too
    long is never held in memory whole.

    Raises:
        SourceError: The file is truncated (a damaged archive), is UTF-16 or UTF-32, or its size changed meanwhile.
    """
    name, number, offset = str(path), 0, 0
    try:
        with open_bytes(path) as file:
            while raw := file.readline(max_bytes + 1):
                number += 1
                size, start = len(raw), offset
                if number == 1:
                    _refuse_wide(path, raw)
                    raw = raw.removeprefix(_UTF8_MARK)
                    start = size - len(raw)
                if size > max_bytes and raw[-1:] != b"\n":
                    skipped, quotes = _skip_line(file)
                    size += skipped
                    detail = f"{size} bytes in one line, at most {max_bytes} are read"
                    yield _bad_line(name, number, "oversized", detail, raw, quotes)
                elif b"\x00" in raw:
                    detail = f"NUL byte at byte {start + raw.index(bytes(1))} of the file"
                    yield _bad_line(name, number, "nul", detail, raw)
                else:
                    try:
                        yield Line(number, raw.rstrip(b"\r\n").decode(encoding))
                    except UnicodeError as error:
                        yield _bad_line(name, number, "encoding", explain_decoding(error, encoding, start), raw)
                offset += size
            if path.suffix not in (".gz", ".zst") and offset != (found := path.stat().st_size):
                raise OSError(f"{offset} bytes were read, but the file has {found} now: it changed while it was read")
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        raise damaged(path, number, error) from None


def read_document(path: Path, *, encoding: str, max_bytes: int) -> Line | BadRow:
    """Read a whole file as one text, with the same rules as for a line."""
    try:
        with open_bytes(path) as file:
            raw = file.read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        raise damaged(path, 1, error) from None
    _refuse_wide(path, raw)
    size = len(raw)
    raw = raw.removeprefix(_UTF8_MARK)
    first = size - len(raw)
    if size > max_bytes:
        return BadRow(str(path), 1, "oversized", f"a document of more than {max_bytes} bytes", excerpt(raw))
    if b"\x00" in raw:
        return BadRow(str(path), 1, "nul", f"NUL byte at byte {first + raw.index(bytes(1))} of the file", excerpt(raw))
    try:
        return Line(1, raw.decode(encoding))
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = 1 + raw[:start].count(b"\n")
        return BadRow(str(path), line, "encoding", explain_decoding(error, encoding, first), excerpt(raw))


def explain_decoding(error: UnicodeError, encoding: str, offset: int) -> str:
    """Explain which byte cannot be decoded, where it is, and what to do."""
    if not isinstance(error, UnicodeDecodeError) or error.start >= len(error.object):
        return f"the bytes from byte {offset} of the file are not {encoding} ({error}): set the source's 'encoding'"
    byte = error.object[error.start]
    return (
        f"byte 0x{byte:02x} at byte {offset + error.start} of the file is not {encoding}: convert the file "
        "(iconv -f latin1 -t utf-8) or set the source's 'encoding'"
    )


def damaged(path: Path, number: int, error: Exception) -> SourceError:
    """Return the error for a truncated or unreadable file; continuing would lose rows silently."""
    return SourceError(
        f"{path}: damaged, or not of the type that its name suggests, after line {number} ({type(error).__name__}: "
        f"{error}). Fetch the file again or take it out of the source's 'path'."
    )


def _bad_line(file: str, number: int, reason: str, detail: str, raw: bytes, more_quotes: int = 0) -> BadLine:
    line = BadLine(file, number, reason, detail, excerpt(raw))
    line.quotes = raw.count(b'"') + more_quotes
    return line


def _skip_line(file: BinaryIO) -> tuple[int, int]:
    """Skip the rest of a line; return the numbers of its bytes and of its quotation marks."""
    skipped = quotes = 0
    while piece := file.readline(_BUFFER):
        skipped += len(piece)
        quotes += piece.count(b'"')
        if piece[-1:] == b"\n":
            break
    return skipped, quotes


def _refuse_wide(path: Path, beginning: bytes) -> None:
    for bom, name in _BOMS.items():
        if beginning.startswith(bom):
            raise SourceError(
                f"{path}: line 1, byte 0: expected one byte per line break, found {name}. "
                f"Convert the file first: iconv -f {name} -t UTF-8."
            )
