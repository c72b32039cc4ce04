"""Text, JSONL and CSV files, plain or compressed, in lines of bounded size.

A CSV record that contains a damaged line is left out as a whole. Where quotation marks do not match, it is not certain
whether the following lines are records or the rest of a text. They are read as records if nearly all of them have as
many fields as the first record, which needs two columns; otherwise they are quarantined up to the line where the
quotation marks are balanced (decision 0121).
"""

import csv
import functools
import gzip
import io
import json
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np

from mm_ldlm.core import InvalidValue, SourceError, bounded, checked, config
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.corpus.record import Split
from mm_ldlm.data.corpus.sources.base import (
    BadRow,
    Opening,
    Row,
    SourceConfig,
    TableFilesConfig,
    Unusable,
    damaged,
    describe_files,
    excerpt,
)

BESIDE = "beside"
"""Value of `vectors` for the .npy files that have the names of the text files"""


def _encoding(name: str) -> str:
    try:
        encoded = "a\n".encode(name)
    except (LookupError, ValueError):
        encoded = b""
    if encoded != b"a\n":
        raise ValueError("an encoding that Python knows and whose ASCII characters are single bytes, such as utf-8")
    return name


Encoding = Annotated[str, checked(_encoding)]
"""An encoding of text; a file in UTF-16 is converted first (iconv)"""
LOOKAHEAD = 16
"""How many times the largest record is held while the end of a quoted field is searched"""
_BUFFER = 1 << 20
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
        encoding: any encoding of text in which ASCII characters are single bytes.
        vectors: the .npy file with a vector for each line, or "beside" for the file of the same name.
    """

    kind: str = "text"
    path: str | tuple[str, ...]
    split: Split | None = None
    unit: Literal["line", "file"] = "line"
    encoding: Encoding = "utf-8"
    vectors: str | None = None

    def __post_init__(self) -> None:
        if self.has_vectors and self.unit != "line":
            raise InvalidValue("'vectors' needs 'unit' line: a row of the .npy file belongs to one line", "vectors")

    @property
    def files(self) -> list[tuple[str, str]]:
        named = [] if self.vectors in (None, BESIDE) else [("vectors", str(self.vectors))]
        return [*super().files, *named]

    def describe(self, opening: Opening) -> Any:
        texts = self.find()
        return describe_files([*texts, *(self._vectors_of(path).check() for path in texts if self.has_vectors)])

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
        plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
        return self.file(plain.with_suffix(".npy") if self.vectors == BESIDE else str(self.vectors), key="vectors")


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


def _without_mark(path: Path, beginning: bytes) -> bytes:
    if beginning.startswith(_WIDE_MARKS):
        raise SourceError(
            f"{path}: expected one byte per line break, found the mark of UTF-16 or UTF-32 at byte 0. Convert the file "
            "first: iconv -f UTF-16 -t UTF-8."
        )
    return beginning.removeprefix(_UTF8_MARK)


# -- JSONL and CSV -----------------------------------------------------------------------------------------------------


@config
class JsonlConfig(TableFilesConfig):
    """JSONL files, one JSON object per line.

    Attributes:
        encoding: any encoding of text in which ASCII characters are single bytes.
    """

    kind: str = "jsonl"
    encoding: Encoding = "utf-8"

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        for line in read_lines(path, encoding=self.encoding, max_bytes=opening.max_row_bytes):
            if line.bad is not None:
                yield line.bad
                continue
            try:
                fields = json_object(line.text)
            except Unusable as error:
                yield error.at(str(path), line.number)
                continue
            yield from self.rows_of(fields, file=str(path), line=line.number)


@config
class CsvConfig(TableFilesConfig):
    """CSV files; quoted fields may contain line breaks.

    Attributes:
        encoding: any encoding of text in which ASCII characters are single bytes.
        delimiter: one character.
        header: whether the first record has the names of the columns; without, they are "0", "1", ...
    """

    kind: str = "csv"
    encoding: Encoding = "utf-8"
    delimiter: Annotated[str, bounded(min_length=1, max_length=1)] = ","
    header: bool = True

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        file, names = str(path), list[str]()
        lines = read_lines(path, encoding=self.encoding, max_bytes=opening.max_row_bytes)
        for number, values in _Records(lines, self.delimiter, file, opening.max_row_bytes):
            if self.header and not names:
                if isinstance(values, BadRow):
                    raise SourceError(
                        f"{file}: line {number}: expected the header, found a line that cannot be read "
                        f"({values.detail}). Correct the line, or set the source's 'header' to false."
                    )
                names = values
                self.present(names, file)
            elif isinstance(values, BadRow):
                yield values
            elif not values:
                yield Row("", file, number)
            elif names and len(values) != len(names):
                detail = f"{len(values)} fields, the header has {len(names)}"
                yield BadRow(file, number, "broken_csv", detail, excerpt(self.delimiter.join(values)))
            else:
                fields = dict(zip(names or map(str, range(len(values))), values, strict=True))
                yield from self.rows_of(fields, file=file, line=number)


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; raises `Unusable` as `parse_json`, and for anything but an object."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise Unusable("wrong_type", f"a JSON {type(value).__name__}, expected an object", text)
    return value


def parse_json(text: str | bytes) -> Any:
    """Parse JSON from outside.

    Raises:
        Unusable: it is not JSON, it is nested too deeply, or a key occurs twice in one object.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except (ValueError, RecursionError) as error:
        raise Unusable("broken_json", str(error)[:200], text) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Made once: `json.loads` with a hook makes a decoder for every text."""


class _Records:
    """Iterates over (number of the first line, fields or damaged row) of a CSV file, in the order of its lines."""

    def __init__(self, lines: Iterator[Line], delimiter: str, file: str, max_bytes: int) -> None:
        self.lines, self.delimiter, self.file, self.max_bytes = lines, delimiter, file, max_bytes
        self.again: deque[Line] = deque()
        self.taken: list[Line] = []
        self.size = 0

    def __iter__(self) -> Iterator[tuple[int, list[str] | BadRow]]:
        csv.field_size_limit(2**31 - 1)  # `_next_line` limits the size of a record
        width = 0
        while True:
            self.taken, self.size = [], 0
            try:
                for values in csv.reader(iter(self._next_line, None), delimiter=self.delimiter, strict=True):
                    bad = self._damage()
                    width = width or (0 if bad else len(values))
                    yield self.taken[0].number, bad or values
                    self.taken, self.size = [], 0
                return
            except csv.Error as error:
                for row in self._broken(str(error), width):
                    yield row.line, row

    def _next_line(self) -> str | None:
        if self.size > LOOKAHEAD * self.max_bytes:
            raise csv.Error(f"the quoted field has no end in the next {self.size} characters")
        line = self.again.popleft() if self.again else next(self.lines, None)
        if line is None:
            return None
        self.taken.append(line)
        self.size += len(line.text) + 1
        return line.text + "\n"

    def _damage(self) -> BadRow | None:
        """Return the damaged row in place of a record with a damaged line, or with too many characters."""
        first, last = self.taken[0].number, self.taken[-1].number
        bad = next((line.bad for line in self.taken if line.bad is not None), None)
        if bad is not None:
            return bad._replace(detail=f"{bad.detail}; the record has the lines {first} to {last}")
        if self.size > self.max_bytes:
            detail = f"{self.size} characters in the lines {first} to {last}, at most {self.max_bytes} are read"
            return BadRow(self.file, first, "oversized", detail, excerpt(self.taken[0].text))
        return None

    def _broken(self, reason: str, width: int) -> list[BadRow]:
        """Return the damaged rows of a record that cannot be parsed, and give back the lines that are records."""
        quotes = sum(line.text.count('"') for line in self.taken)
        while quotes % 2 and self.size <= LOOKAHEAD * self.max_bytes and self._next_line() is not None:
            quotes += self.taken[-1].text.count('"')
        first, rest = self.taken[0], self.taken[1:]
        fitting = sum(self._num_fields(line.text) == width for line in rest)
        if width > 1 and 10 * fitting >= 9 * len(rest):
            self.again.extendleft(reversed(rest))
            rest = []
        lost = f"; the lines up to {rest[-1].number} may belong to its text" if rest else ""
        begins = f"belongs to the record of line {first.number}, whose quotation marks do not match"
        details = [f"{reason}{lost}", *[begins] * len(rest)]
        return [
            line.bad or BadRow(self.file, line.number, "broken_csv", detail, excerpt(line.text))
            for line, detail in zip([first, *rest], details, strict=True)
        ]

    def _num_fields(self, text: str) -> int:
        try:
            return len(next(csv.reader([text], delimiter=self.delimiter, strict=True), ()))
        except csv.Error:
            return 0
