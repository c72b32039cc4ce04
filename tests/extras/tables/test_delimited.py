"""CSV files: a record is one row, good or bad, and a fault in one costs no other; tables by suffix."""

import csv
import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.data.corpus import examples
from tests.data.corpus.examples import described, ingested, read, reasons, texts, written

from mm_ldlm.core import SourceError

LIMIT = 300
SPLIT = {"validation": 0.3, "test": 0.3}
read_raw = functools.partial(examples.read_raw, "csv", max_row_bytes=LIMIT)
FIELD = st.text(st.sampled_from('ab ,"\n;é'), max_size=12)
HARM = st.sampled_from([None, None, b"\xff", b"\0", b"x" * (LIMIT + 50), b"\xff\n\xfe", b"y" * (LIMIT + 1) + b"\n\n"])


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
    lines[6:8], lines[20] = ["6,one,more", '7,"an open quote'], "20,one,more"
    found = read_raw("\n".join(["n,text", *lines]).encode())
    assert len(found) == rows
    assert reasons(found) == ["broken_csv"] * 3
    assert len(texts(found)) == rows - 3


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
    lengths = [LIMIT - 1, LIMIT]  # with its line end the second record is above the limit
    assert [*map(len, texts(read_raw(b"".join(b"%s\n" % (b"a" * n) for n in lengths), header=["text"])))] == lengths[:1]


@pytest.mark.parametrize("header", [b"\xfftext,n", b'"text,n', b"te\0xt,n", b"text,n" + b"x" * 500])
def test_the_first_row_is_never_promoted_to_the_header(header: bytes) -> None:
    with pytest.raises(SourceError, match="line 1"):
        read_raw(header + b"\ntext,1\nsecond,2\n")


def test_keys_of_csv_files(tmp_path: Path) -> None:
    raw = b'"one\nmore";1\n\ntwo;2\nthree;3;cut\n'
    rows = read_raw(raw, delimiter=";", header=False, columns=["0"])
    assert texts(rows) == [
        "one\nmore",
        "",
        "two",
    ]  # a blank line is an empty text; columns are numbered without a header
    assert [row.line for row in rows] == [1, 3, 4, 5]
    assert reasons(rows) == ["broken_csv"]  # more fields than the first record
    assert texts(read_raw("text\ncaf\u00e9\n".encode("latin-1"), encoding="latin-1")) == ["café"]


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
    assert texts(read_raw(b"text;a,b\none\ntwo\nthree;x,y\n", delimiter="auto")) == ["three"], "by the header"
    assert texts(read_raw(b"text\none, and two\n", delimiter="auto", columns=["0"], header=("0", "1"))) == ["one"]


def test_the_format_of_a_table_follows_from_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.TSV").write_text("text\tv\ntab, separated\t[1]\n")
    (tmp_path / "a.ndjson.zst").write_bytes(zstandard.compress(b'{"text": "json", "v": [1]}\n'))
    (tmp_path / "a.txt").write_text("a line\n")
    np.save(tmp_path / "a.npy", np.ones((1, 1)))
    written("csv", tmp_path, [{"text": "quoted", "v": "[1]"}])
    names = ["a.TSV", "a.ndjson.zst", "a.txt", "rows.csv"]
    keys = {"kind": "table", "vector_column": "v", "path": [str(tmp_path / name) for name in names]}
    found = read(keys)
    assert texts(found) == ["tab, separated", "json", "a line", "quoted"]
    assert all(row.vector is not None for row in found)  # type: ignore[union-attr]
    assert len(described(keys)) == len(names)
    (tmp_path / "a.pdf").write_text("")
    for name, found in (("a.pdf", "suffix '.pdf'"), ("", "a folder")):
        with pytest.raises(SourceError, match=found):
            read({**keys, "path": str(tmp_path / name)})


def test_an_option_of_a_table_is_followed_or_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    (tmp_path / "a.txt").write_text("one;topic\na, b;c\n")
    keys = {"kind": "table", "path": str(tmp_path / "a.txt"), "columns": ["one"]}
    (row,) = read({**keys, "label_column": "topic"})
    assert (row.text, row.meta["label"]) == ("a, b", "c")  # type: ignore[union-attr]
    (tmp_path / "b.tsv").write_text("one;topic\na\tb;c\n")
    assert texts(read({**keys, "path": str(tmp_path / "b.tsv"), "delimiter": ";"})) == ["a\tb"]
    with refuses(SourceError, "columns", "group_column"):
        read({**keys, "vector_column": "v", "group_column": "topic"})
    with refuses(SourceError, "rows.jsonl", "header"):
        read({**keys, **written("jsonl", tmp_path, [{"one": "a"}]), "kind": "table", "header": False})


@pytest.mark.parametrize("header", [False, ["topic", "title", "author"]])
def test_options_of_a_file_are_those_of_its_source_and_columns_may_be_numbers(tmp_path: Path, header: Any) -> None:
    (tmp_path / "news.csv").write_text("".join(f"{n % 2};title number {n};author {n % 3}\n" for n in range(9)))
    source, numbers = {"kind": "table", "path": "elsewhere"}, header is False
    given = {
        "path": str(tmp_path / "news.csv"), "header": header, "limit": 6,
        "text_column": 1 if numbers else "title", "label_column": 0 if numbers else "topic",
        "group_column": "2" if numbers else "author",
    }  # fmt: skip
    rows = ingested(tmp_path / "out", source, **given, splits=SPLIT).rows
    assert [row["text"] for row in rows] == [f"title number {n}" for n in range(6)]
    assert [json.loads(row["meta"]) for row in rows] == [
        {"label": str(n % 2), "split_group": f"author {n % 3}"} for n in range(6)
    ]
    more = ingested(tmp_path / "out", source, **given | {"limit": 9}, splits=SPLIT)  # another number begins again
    assert (len(more.rows), more.report["resumed_after_rows"]) == (9, 0)


def test_a_column_that_is_missing_is_refused_with_the_columns_that_are_there(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    (tmp_path / "news.csv").write_text("topic;title\na;b\nc;d\n")
    source = {"kind": "table", "path": str(tmp_path / "news.csv")}
    with refuses(SourceError, "topic, title", "`--params ingestion.text_column=ti", "ingestion.header=false"):
        ingested(tmp_path, source, max_bad_fraction=0.0)
    with refuses(SourceError, "topic, title", "`--params ingestion.label_column=topic`"):
        ingested(tmp_path, source, text_column="title", label_column="Topics", max_bad_fraction=0.0)
    for delimiter, columns in (("~", "topic~title"), (";", "topic;title")):
        (tmp_path / "news.csv").write_text(f"{columns}\na{delimiter}b\n")
        with refuses(SourceError, "news.csv", f"`--params 'ingestion.delimiter=\"{delimiter}\"'`"):
            ingested(tmp_path, {**source, "delimiter": ","}, text_column="Title", max_bad_fraction=0.0)


@pytest.mark.parametrize("column", ["text_column", "label_column", "vector_column", "group_column"])
def test_a_number_of_a_column_is_kept_and_no_other_column_is_proposed(
    tmp_path: Path, refuses: Callable[..., Any], column: str
) -> None:
    (tmp_path / "news.csv").write_text("a text,2,5.0,[1]\nanother,3,6.0,[2]\n")
    source = {"kind": "table", "path": str(tmp_path / "news.csv"), "columns": ["a text"]}
    for number, header, proposed in ((1, None, "`--params ingestion.header=false`"), (5, False, "0 to 3")):
        keys = {"text_column": 0} if header is False else {}
        with refuses(SourceError, f"'{number}'", proposed) as caught:
            ingested(tmp_path, source, **{**keys, "header": header, column: number}, max_bad_fraction=0.0)
        assert f"ingestion.{column}" not in str(caught.value)
