"""JSONL and CSV files: a record is one row, good or bad, and a fault in one of them costs no other."""

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import read, reasons, texts

from mm_ldlm.core import SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, delimited

LIMIT = 300
FIELD = st.text(st.sampled_from('ab ,"\n;é'), max_size=12)
HARM = st.sampled_from([None, None, b"\xff", b"\0", b"x" * (LIMIT + 50), b"\xff\n\xfe", b"y" * (LIMIT + 1) + b"\n\n"])


def read_raw(raw: bytes, kind: str = "csv", *, max_row_bytes: int = LIMIT, **keys: Any) -> list[Row | BadRow]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.write_bytes(raw)
        return read({"kind": kind, "path": str(path), **keys}, max_row_bytes=max_row_bytes)


@settings(max_examples=60)
@given(records=st.lists(st.tuples(FIELD, FIELD, HARM, st.integers(0, 12)), max_size=8), columns=st.sampled_from([1, 2]))
def test_a_record_with_a_bad_line_is_left_out_and_no_other(
    records: list[tuple[str, str, bytes | None, int]], columns: int
) -> None:
    """Quoted fields with line breaks; bytes that make one line bad are inserted at any place of some of the texts."""
    raw, expected = b'"text","n"\n' if columns == 2 else b'"text"\n', []
    for text, other, harm, place in records:
        cell = text.encode()
        if harm is None:
            expected.append(text)
        else:
            while cell[place : place + 1] and (cell[place] & 0xC0) == 0x80:  # not inside a character
                place += 1
            cell = cell[:place] + harm + cell[place:]
        raw += b",".join(b'"' + each.replace(b'"', b'""') + b'"' for each in [cell, other.encode()][:columns]) + b"\n"
    found = read_raw(raw)
    assert texts(found) == expected
    assert len(found) == len(records)


@pytest.mark.parametrize("rows", [30, 3000])
def test_an_unclosed_quote_damages_one_row_of_a_table(rows: int) -> None:
    lines = [f"{number},the text of row {number}" for number in range(rows)]
    lines[7] = '7,"an open quote'
    found = read_raw("\n".join(["n,text", *lines]).encode())
    assert len(found) == rows
    assert reasons(found) == ["broken_csv"]
    assert len(texts(found)) == rows - 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'text\n"one\ntwo "three" four\nfive"\nlast\n', ["last"]),  # quotation marks that are not doubled
        (b'text\nfirst\n"cut in the middle\nof a text', ["first"]),
        (b'text\n"' + b"long line\n" * 60 + b'"\nlast\n', ["last"]),  # a record of lines that are short each
        (b'text,n\n"one, two\nthree",1\nfour,2\n', ["one, two\nthree", "four"]),
    ],
)
def test_the_rest_of_a_broken_record_is_not_a_text(raw: bytes, expected: list[str]) -> None:
    assert texts(read_raw(raw, max_row_bytes=100)) == expected


def test_an_unclosed_quote_of_one_column_costs_a_bounded_number_of_rows() -> None:
    """Whether the next lines are texts is not certain, so that some are left out, but never the file."""
    found = read_raw(b'text\n"' + b"a line without an end\n" * 400, max_row_bytes=100)
    assert len(found) == 400
    assert 1600 / 22 < len(reasons(found)) < 1700 / 22
    assert len(texts(found)) == 400 - len(reasons(found))


def test_a_broken_record_is_read_in_linear_time() -> None:
    """Lines that each open a quote: every line is a row, and none is read again and again."""
    found = read_raw(b"text,n\n" + b'"x,1\n' * 20_000)
    assert len(found) == 20_000
    assert not texts(found)


@pytest.mark.parametrize("header", [b"\xfftext,n", b'"text,n', b"te\0xt,n", b"text,n" + b"x" * 500])
def test_the_first_row_is_never_promoted_to_the_header(header: bytes) -> None:
    with pytest.raises(SourceError, match="line 1"):
        read_raw(header + b"\ntext,1\nsecond,2\n")


def test_keys_of_csv_files(tmp_path: Path) -> None:
    raw = b"one;1\n\ntwo;2\nthree;3;cut\n"
    rows = read_raw(raw, delimiter=";", header=False, columns=["0"])
    assert texts(rows) == ["one", "", "two"]  # a blank line is an empty text; columns are numbered without a header
    assert reasons(rows) == ["broken_csv"]  # more fields than the first record
    assert reasons(read_raw(b"text,n\na\nb,1\n")) == ["broken_csv"]  # fewer fields than the header
    assert texts(read_raw("text\ncaf\u00e9\n".encode("latin-1"), encoding="latin-1")) == ["café"]


@settings(max_examples=60)
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**64), 2**64)
        | st.floats()
        | st.text(max_size=3)
        | st.just("\ud800"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    column=st.sampled_from(["text", "meta", "label", "split", "pair"]),
)
def test_any_json_value_in_any_column_gives_one_row_or_one_bad_row(value: Any, column: str) -> None:
    fields = {"text": "a text", "meta": 1, "label": "a", "split": "train", "pair": "another", column: value}
    keys = {"meta_columns": ["meta"], "label_column": "label", "split_column": "split", "pair_column": "pair"}
    (row,) = read_raw(json.dumps(fields).encode() + b"\n", "jsonl", **keys)
    if isinstance(row, Row):
        assert (row.text, row.pair) == (fields["text"] or "", fields["pair"] or "")
        assert row.meta["label"].encode()


@settings(max_examples=60)
@given(
    lines=st.lists(st.sampled_from(['{"text": "a", "n": 1}', '{"text": null}', '{"n": 1}', " "]), max_size=9),
    place=st.integers(0, 9), sniffed=st.sampled_from([0, 100]),
)  # fmt: skip
def test_a_column_that_is_in_another_line_is_empty_where_it_is_left_out(
    lines: list[str], place: int, sniffed: int
) -> None:
    """In any line after it, and before it within the lines that are read ahead."""
    place = place if sniffed else 0
    lines = [*lines[:place], '{"text": "a", "n": 1}', *lines[place:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "SNIFFED_LINES", sniffed)
        found = read_raw("\n".join(lines).encode(), "jsonl")
    assert texts(found) == ["a" if '"a"' in line else "" for line in lines]


@pytest.mark.parametrize(
    "line", ['{"text": "a", "text": "b"}', '{"text": "c", "m": {"x": 1, "x": 2}}', "[1]", "{", "[" * 9000]
)
def test_json_that_is_not_one_object_is_a_bad_row(line: str) -> None:
    found = read_raw(f'{line}\n{{"text": "d"}}\n'.encode(), "jsonl", max_row_bytes=10_000)
    assert (len(found), texts(found)) == (2, ["d"])


def test_a_column_that_is_read_and_occurs_twice_is_refused(refuses: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n,text\na,1,b\n")
    with refuses(SourceError, "text"):
        read({"kind": "csv", "path": str(tmp_path / "a.csv")})
    assert texts(read_raw(b"text,,\na,,\n")) == ["a"]  # columns that are not read may be equal


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.text(st.sampled_from("ab ,;|\té"), max_size=8), st.integers()), min_size=1, max_size=9),
    delimiter=st.sampled_from([",", ";", "\t", "|", ":"]),
    header=st.sampled_from([True, False, ("n", "text", "more")]),
)
def test_the_delimiter_is_recognised_in_files_with_and_without_a_header(
    rows: list[tuple[str, int]], delimiter: str, header: Any
) -> None:
    """With a header that names the text column it is certain, whatever the texts contain and however few they are."""
    assume(header is True or delimiter != ":")
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if header is True else csv.QUOTE_ALL)
    writer.writerows([["n", "text", "more"]] * (header is True) + [[number, text, "x"] for text, number in rows])
    if header is True and delimiter != ":":
        out.write(5 * delimiter)  # a damaged line
    found = read_raw(
        out.getvalue().encode(), delimiter="auto", header=header, columns=["1" if header is False else "text"]
    )
    assert texts(found) == [text for text, _ in rows]


def test_a_delimiter_that_may_be_one_of_two_is_refused_with_the_line_that_works(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    (tmp_path / "a.csv").write_text("a,b;c\nd,e;f\n")
    keys = {"kind": "csv", "path": str(tmp_path / "a.csv"), "header": False, "columns": ["0"]}
    with refuses(SourceError, "','", "';'", "ingestion.delimiter"):
        read({**keys, "delimiter": "auto"})
    assert texts(read({**keys, "delimiter": ";"})) == ["a,b", "d,e"]
    assert texts(read_raw(b"text\none, and two\n", delimiter="auto", columns=["0"], header=("0", "1"))) == ["one"]
