"""CSV files, plain or compressed.

A record that contains a damaged line is left out as a whole. Where quotation marks do not match, it is not certain
whether the following lines are records or the rest of a text. They are read as records if nearly all of them have as
many fields as the first record, which needs two columns; otherwise they are quarantined up to the line where the
quotation marks are balanced.
"""

import contextlib
import csv
import itertools
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core import SourceError, config, setting
from mm_ldlm.data.corpus.quarantine import BadRow, excerpt
from mm_ldlm.data.corpus.sources.base import AUTO, Delimiter, Header, Opening, Row, TableFilesConfig
from mm_ldlm.data.corpus.sources.lines import SNIFFED_LINES, Encoding, Line, read_lines

log = logging.getLogger(__name__)

DELIMITERS = (",", ";", "\t", "|")
LOOKAHEAD = 16
"""How many times the largest record is held while the end of a quoted field is searched"""


@config
class CsvConfig(TableFilesConfig):
    """CSV files; quoted fields may contain line breaks.

    Attributes:
        encoding: any encoding of text in which ASCII characters are single bytes.
        delimiter: one character; "auto" recognises it by the columns that are read and the widths of the first records.
        header: whether the first record has the names of the columns, or the names, if it has none. With false they are
            "0", "1", ...
    """

    kind: str = "csv"
    encoding: Encoding = "utf-8"
    delimiter: Delimiter = ","
    header: Header = True

    def describe(self, opening: Opening) -> Any:
        if self.delimiter == AUTO:
            for path in self.find():
                log.info("%s: the delimiter is %r", path, self._delimiter(path, opening))
        return super().describe(opening)

    def _delimiter(self, path: Path, opening: Opening) -> str:
        """Return the delimiter, recognised in the first lines if it is "auto".

        Raises:
            SourceError: several fit.
        """
        if self.delimiter != AUTO:
            return self.delimiter
        read = read_lines(path, encoding=self.encoding, max_bytes=opening.max_row_bytes)
        lines = [f"{line.text}\n" for line in itertools.islice(read, SNIFFED_LINES)]
        parsed = {each: _parsed(lines, each) for each in (*DELIMITERS, *":^~")}  # those only by the header
        records = {each: rows for each, rows in parsed.items() if rows and len(rows[0]) > 1}
        usual = [each for each in records if each in DELIMITERS]
        tables = [each for each, rows in records.items() if _is_table(rows)]
        named = [
            each
            for each in (tables + usual if self.header is True else usual)
            if len(names := self._names(records[each][0])) == len(records[each][0]) and {*self.columns} <= {*names}
        ]
        entire = [each for each in usual if each in tables and len(records[each]) == max(map(len, parsed.values()))]
        choices = ([each for each in entire if each in named], [*dict.fromkeys(named)], entire, usual)
        found = next(filter(None, choices), DELIMITERS[:1])
        if len(found) > 1:
            raise SourceError(
                f"{path}: expected one delimiter, found that several may divide its lines: "
                f"{', '.join(f'{each!r} in {len(records[each][0])} columns' for each in found)}. Name the one that is "
                f"meant: {setting('ingestion.delimiter', found[0])}."
            )
        return found[0]

    def _names(self, first: list[str]) -> Sequence[str]:
        """Return the names of the columns of a file with this first record."""
        return first if self.header is True else self.header or [*map(str, range(len(first)))]

    def remedy(self, fields: Mapping[str, Any], name: str, option: str | None) -> str:
        line = "".join(fields if self.header is True else map(str, fields.values()))
        marks = [each for each in line if not each.isalnum() and each not in " _-.!?'\"()"]
        found = super().remedy(fields, name, option)
        if name.isdecimal() and (self.header is True or (self.header is False and len(fields) > 1)):
            found = (
                "If the first line is not a header, add `--params ingestion.header=false`: the"
                if self.header
                else "The"
            ) + f" columns are 0 to {len(fields) - 1}."
        elif len(fields) == 1 and marks:
            mark = max(marks, key=marks.count)
            found = f"If {mark!r} divides its columns, add {setting('ingestion.delimiter', mark)}."
        elif option and self.header is True:
            found += (
                " If the first line is not a header, add `--params ingestion.header=false,ingestion.text_column=0`."
            )
        if any(".txt" in path for path in self.paths):
            found += " If each line is a text, use `--env=own_text`."
        return found

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        file, names = str(path), list(self.header if isinstance(self.header, tuple) else ())
        delimiter = self._delimiter(path, opening)
        self.present(names, file)
        lines = read_lines(path, encoding=self.encoding, max_bytes=opening.max_row_bytes)
        for number, values in _Records(lines, delimiter, file, opening.max_row_bytes):
            if self.header is True and not names:
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
            elif len(values) != len(names := names or [*self._names(values)]):
                yield BadRow(
                    file,
                    number,
                    "broken_csv",
                    f"{len(values)} fields, the first record or the header has {len(names)}",
                    excerpt(delimiter.join(values)),
                )
            else:
                yield from self.rows_of(dict(zip(names, values, strict=True)), file=file, line=number)


def _parsed(lines: list[str], delimiter: str) -> list[list[str]]:
    """Return the records before the first one that this delimiter does not divide."""
    records, reader = list[list[str]](), csv.reader(lines, delimiter=delimiter, strict=True)
    with contextlib.suppress(csv.Error):
        records.extend(reader)
    return records


def _is_table(records: list[list[str]]) -> bool:
    """Return whether nearly all records have as many fields as the first, and several."""
    width = len(records[0])
    return width > 1 and 10 * sum(len(record) == width for record in records) >= 9 * len(records)


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
                for row in self._broken(f"{error}; inside quotation marks, a quotation mark is written twice", width):
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
            return BadRow(
                self.file,
                first,
                "oversized",
                f"{self.size} characters in the lines {first} to {last}, at most {self.max_bytes} are read",
                excerpt(self.taken[0].text),
            )
        return None

    def _broken(self, reason: str, width: int) -> list[BadRow]:
        """Return the damaged rows of a record that cannot be parsed, and give back the lines that are records."""
        quotes = sum(line.text.count('"') for line in self.taken)
        while quotes % 2 and self.size <= LOOKAHEAD * self.max_bytes and self._next_line() is not None:
            quotes += self.taken[-1].text.count('"')
        first, rest = self.taken[0], self.taken[1:]
        fitting = sum([*map(len, _parsed([line.text], self.delimiter))] == [width] for line in rest)
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
