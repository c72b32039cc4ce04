"""Read text files, plain or compressed, in lines of bounded size; other sources of text use this reader too."""

import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from mm_ldlm.core import SourceError, checked, config, refuse_if
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.corpus.quarantine import BadRow, excerpt
from mm_ldlm.data.corpus.sources.base import Opening, Row, SourceConfig, damaged, describe_files
from mm_ldlm.data.corpus.splits import Split

BESIDE = "beside"
"""Value of `vectors` for .npy files with the names of the text files"""
SNIFFED_LINES = 100
"""Number of lines of a table that are read ahead to find its columns"""


def _encoding(name: str) -> str:
    try:
        encoded = "a\n".encode(name)
    except (LookupError, ValueError):
        encoded = b""
    if encoded != b"a\n":
        raise ValueError("an encoding that Python knows and whose ASCII characters are single bytes, such as utf-8")
    return name


Encoding = Annotated[str, checked(_encoding)]
"""A text encoding; a file in UTF-16 must be converted first (iconv)"""
_BUFFER = 1 << 20
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_UTF8_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
"""Byte order marks of UTF-16 and UTF-32, in which a line break is not one byte"""


@config
class TextConfig(SourceConfig):
    """Text files, plain or compressed (.gz, .zst).

    Attributes:
        path: a file, a glob, or a list of files and globs; relative to the working directory.
        split: the split of every text, instead of the hash split.
        unit: one document per "line" or per "file".
        encoding: any text encoding in which ASCII characters are single bytes.
        vectors: the .npy file with a vector for each line, or "beside" for the file of the same name.
    """

    kind: str = "text"
    path: str | tuple[str, ...]
    split: Split | None = None
    unit: Literal["line", "file"] = "line"
    encoding: Encoding = "utf-8"
    vectors: str | None = None

    def __post_init__(self) -> None:
        refuse_if(
            self.has_vectors and self.unit != "line",
            "'vectors' needs 'unit' line: a row of the .npy file belongs to one line",
            "vectors",
        )

    @property
    def files(self) -> list[tuple[str, str]]:
        named = [] if self.vectors in (None, BESIDE) else [("vectors", str(self.vectors))]
        return [*super().files, *named]

    @property
    def meta_keys(self) -> set[str] | None:
        return set()

    def describe(self, opening: Opening) -> Any:
        vectors = [self._vectors_of(path).check() for path in self.find() if self.has_vectors]
        return [*super().describe(opening), *describe_files(vectors)]

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        lines = functools.partial(
            read_lines, path, encoding=self.encoding, max_bytes=opening.max_row_bytes, whole=self.unit == "file"
        )
        vectors_nd = None
        if self.has_vectors:
            file, count = self._vectors_of(path), sum(1 for _ in lines())
            vectors_nd = file.array()
            if vectors_nd.ndim != 2 or len(vectors_nd) != count:
                file.refuse(f"a row for each of the {count} lines of {path}", f"an array of shape {vectors_nd.shape}")
        for line in lines():
            vector = None if vectors_nd is None else np.array(vectors_nd[line.number - 1])
            yield line.bad or Row(line.text, str(path), line.number, self.split, vector=vector)

    def _vectors_of(self, path: Path) -> InputFile:
        if self.vectors != BESIDE and len(self.find()) > 1:
            raise SourceError(
                f"source '{self.label}': expected one text file for the vectors in {self.vectors}, found several. Set "
                f"the source's 'vectors' to {BESIDE}, and give each text file a .npy file of the same name."
            )
        plain = path.with_suffix("") if path.suffix in _CODECS else path
        return self.file(plain.with_suffix(".npy") if self.vectors == BESIDE else str(self.vectors), key="vectors")


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes; .gz and .zst files are decompressed, and truncated ones are detected."""
    if path.suffix not in _CODECS:
        return open(path, "rb", buffering=_BUFFER)
    stream = pa.CompressedInputStream(pa.OSFile(str(path)), _CODECS[path.suffix])
    return cast(BinaryIO, io.BufferedReader(cast(Any, stream), _BUFFER))


class Line(NamedTuple):
    """A line: its number, counted from 1, its text without the line break, and a `BadRow` if it is damaged.

    The text of a damaged line is a quotation mark or empty, so that the quoting of the other lines stays the same.
    """

    number: int
    text: str
    bad: BadRow | None = None


def read_lines(path: Path, *, encoding: str, max_bytes: int, whole: bool = False) -> Iterator[Line]:
    """Yield the lines of a text file, or the entire file as one line; at most `max_bytes` of a line are kept.

    Line breaks are LF or CR LF; a UTF-8 byte order mark is dropped. A line that cannot be decoded, contains NUL or
    exceeds `max_bytes` is damaged.

    Raises:
        SourceError: the file is a damaged archive, is UTF-16 or UTF-32, or changes while it is read.
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
            if path.suffix not in _CODECS and offset != (found := path.stat().st_size):
                raise OSError(f"{offset} bytes were read, but the file has {found} now: it changed while it was read")
    except OSError as error:
        raise damaged(path, number, error) from None


def explain_decoding(error: UnicodeError, encoding: str, offset: int) -> str:
    """Explain which byte cannot be decoded, and the remedy; `offset` is where the decoded bytes begin in the file."""
    place = offset + getattr(error, "start", 0)
    return (
        f"byte {place} of the file is not {encoding} ({getattr(error, 'reason', error)}): convert the file (iconv -f "
        "cp1252 -t utf-8 for one from Windows), or set the source's 'encoding'"
    )


def _without_mark(path: Path, beginning: bytes) -> bytes:
    if beginning.startswith(_WIDE_MARKS):
        raise SourceError(
            f"{path}: expected one byte per line break, found the mark of UTF-16 or UTF-32 at byte 0. Convert the file "
            "first: iconv -f UTF-16 -t UTF-8."
        )
    return beginning.removeprefix(_UTF8_MARK)
