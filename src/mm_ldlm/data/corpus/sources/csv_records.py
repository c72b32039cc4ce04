"""Division of CSV lines into records; a record that contains a bad line is left out as a whole.

A line that cannot be read is replaced by as many quotation marks (one or none) as leave the division unchanged, so that
the lines after it stay in the record to which they belong. Where quotation marks do not match, it is not
certain whether the following lines are records or the rest of a text. They are read as records if nearly all of them
have as many fields as the first record, which needs two columns; otherwise they are quarantined up to the line where
the quotation marks are balanced (decision 0121).
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources.base import BadRow, excerpt
from mm_ldlm.data.corpus.sources.files import BadLine, Line

LOOKAHEAD = 16
"""How many times the largest record is held while the end of a quoted field is searched."""


class Record(NamedTuple):
    """The fields of one record and the number of its first line."""

    number: int
    values: list[str]


class CsvRecords:
    """Iterates over the records of a CSV file and the bad rows among them, in the order of the lines.

    Raises:
        SourceError: A quoted field does not end within `LOOKAHEAD` times `max_bytes`.
    """

    def __init__(self, lines: Iterator[Line | BadLine], *, delimiter: str, file: str, max_bytes: int) -> None:
        self.file, self.delimiter, self.max_bytes = file, delimiter, max_bytes
        self._lines = _Lines(lines, LOOKAHEAD * max_bytes)
        self._width: int | None = None

    def __iter__(self) -> Iterator[Record | BadRow]:
        csv.field_size_limit(max(csv.field_size_limit(), 2**30))  # `_Lines` limits the size of a record
        lines = self._lines
        while True:
            lines.begin()
            try:
                for values in csv.reader(lines, delimiter=self.delimiter, strict=True):
                    if lines.bad is None and lines.size <= self.max_bytes:
                        if self._width is None and values:
                            self._width = len(values)
                        yield Record(_number(lines.taken[0]), values)
                    else:
                        yield self._bad_record()
                    lines.begin()
                return
            except (csv.Error, _RecordTooLong) as error:
                yield from self._broken(error)

    def _bad_record(self) -> BadRow:
        taken, bad = self._lines.taken, self._lines.bad
        place = f"the record of lines {_number(taken[0])} to {_number(taken[-1])}"
        if bad is None:
            detail = f"{place} has {self._lines.size} characters, at most {self.max_bytes} are read"
            return BadRow(self.file, _number(taken[0]), "oversized", detail, _beginning(taken[0]))
        return bad if len(taken) == 1 else bad._replace(detail=f"{bad.detail}; {place} is left out")

    def _broken(self, error: Exception) -> Iterator[BadRow]:
        """Yield the bad rows of a record that cannot be parsed, and give back the lines that are records themselves."""
        lines = self._lines
        complete = lines.balance()
        first, rest = lines.taken[0], lines.taken[1:]
        if self._are_records(rest):
            lines.give_back(rest)
            rest = []
        elif not complete:
            raise SourceError(
                f"{self.file}: expected the end of the quoted field that begins in line {_number(first)}, found none "
                f"in the next {lines.limit} characters. Close or remove the quotation mark."
            )
        if not rest:
            yield _bad_row(self.file, first, str(error))
            return
        lost = f"line {_number(rest[0])}" if len(rest) == 1 else f"lines {_number(rest[0])} to {_number(rest[-1])}"
        yield _bad_row(self.file, first, f"{error}; a quotation mark that is open there takes {lost} too")
        for line in rest:
            detail = f"belongs to the record of line {_number(first)}, whose quotation marks do not match"
            yield _bad_row(self.file, line, detail)

    def _are_records(self, lines: list[Line | BadLine]) -> bool:
        """Return whether nine of ten lines are records of their own: they have the fields of the first record."""
        if not lines or self._width is None or self._width < 2:
            return not lines
        fitting = sum(isinstance(line, Line) and self._num_fields(line.text) == self._width for line in lines)
        return 10 * fitting >= 9 * len(lines)

    def _num_fields(self, text: str) -> int:
        try:
            return len(next(csv.reader([text], delimiter=self.delimiter, strict=True), ()))
        except csv.Error:
            return 0


class _RecordTooLong(Exception):
    pass


class _Lines:
    """Iterator of decoded lines for `csv.reader`; the lines of the current record can be read again."""

    def __init__(self, lines: Iterator[Line | BadLine], limit: int) -> None:
        self._lines, self.limit = lines, limit
        self._again: deque[Line | BadLine] = deque()
        self.taken: list[Line | BadLine] = []
        self.size = 0
        self.bad: BadLine | None = None

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self.size > self.limit:
            raise _RecordTooLong(f"a quoted field has more than {self.limit} characters")
        line = self._again.popleft() if self._again else next(self._lines)
        self.taken.append(line)
        if isinstance(line, Line):
            self.size += len(line.text) + 1
            return line.text + "\n"
        self.bad = self.bad or line
        return '"' * (line.quotes % 2) + "\n"

    def begin(self) -> None:
        """Begin a record."""
        self.taken, self.size, self.bad = [], 0, None

    def balance(self) -> bool:
        """Take lines until the quotation marks of the record are balanced, or to the end; False at the limit."""
        quotes = sum(_quotes(line) for line in self.taken)
        while quotes % 2:
            try:
                next(self)
            except StopIteration:
                return True
            except _RecordTooLong:
                return False
            quotes += _quotes(self.taken[-1])
        return True

    def give_back(self, lines: list[Line | BadLine]) -> None:
        """Read these lines again; they are the last ones that were taken."""
        self._again.extendleft(reversed(lines))


def _quotes(line: Line | BadLine) -> int:
    return line.text.count('"') if isinstance(line, Line) else line.quotes


def _number(line: Line | BadLine) -> int:
    return line.number if isinstance(line, Line) else line.line


def _beginning(line: Line | BadLine) -> str:
    return excerpt(line.text) if isinstance(line, Line) else line.excerpt


def _bad_row(file: str, line: Line | BadLine, detail: str) -> BadRow:
    return line if isinstance(line, BadLine) else BadRow(file, line.number, "broken_csv", detail, excerpt(line.text))
