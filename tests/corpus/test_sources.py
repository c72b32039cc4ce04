from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source

TEXTS = ["first text", "второй", "third, “quoted”"]


def read(max_row_bytes: int = 10_000, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, keys, at="source")
    source = open_source(config, seed=0, max_row_bytes=max_row_bytes)
    assert json.dumps(source.describe())
    return list(source.rows())


def texts(items: list[Row | BadRow]) -> list[str]:
    assert all(isinstance(item, Row) for item in items), items
    return [item.text for item in items if isinstance(item, Row)]


def reasons(items: list[Row | BadRow]) -> list[tuple[int, str]]:
    return [(item.line, item.reason) for item in items if isinstance(item, BadRow)]


# -- every kind reads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".zst"])
def test_text_by_line_plain_and_packed(tmp_path: Path, suffix: str) -> None:
    raw = "".join(f"{text}\n" for text in TEXTS).encode()
    packed = {".txt": raw, ".gz": gzip.compress(raw), ".zst": zstandard.compress(raw)}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(packed)
    rows = read(kind="text", path=str(path))
    assert texts(rows) == TEXTS
    assert [row.line for row in rows] == [1, 2, 3]
    assert rows[0].file == str(path)


def test_text_by_file_and_by_glob_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(f"line one of {name}\nline two")
    rows = read(kind="text", path=str(tmp_path / "*.txt"), unit="file")
    assert texts(rows) == [f"line one of {name}\nline two" for name in "abc"]
    assert len(read(kind="text", path=[str(tmp_path / "a.txt"), str(tmp_path / "[bc].txt")])) == 6


def test_line_ends_of_windows_and_the_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nno break at the end")
    assert texts(read(kind="text", path=str(tmp_path / "a.txt"))) == ["one", "two", "no break at the end"]


def test_jsonl_with_meta_and_a_split_column(tmp_path: Path) -> None:
    splits = ["Train", "dev", "TEST"]  # in any capitals
    lines = [{"body": text, "where": splits[i], "n": i} for i, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = read(
        kind="jsonl", path=str(tmp_path / "a.jsonl"), columns=["body"], split_column="where", meta_columns=["n"]
    )
    assert texts(rows) == TEXTS
    assert [row.split for row in rows if isinstance(row, Row)] == ["train", "validation", "test"]
    assert [json.loads(row.meta or "") for row in rows if isinstance(row, Row)] == [{"n": 0}, {"n": 1}, {"n": 2}]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00\r")), min_size=2, max_size=2), min_size=1
    )
)
def test_csv_gives_back_any_fields(tmp_path: Path, rows: list[list[str]]) -> None:
    with open(tmp_path / "a.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    found = read(kind="csv", path=str(tmp_path / "a.csv"), columns=["a", "b"])
    assert texts(found) == [text for row in rows for text in row]


def test_csv_without_a_header_and_with_another_delimiter(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one;two;5.0\nthree;four;1.0\n")
    keys = {"kind": "csv", "path": str(tmp_path / "a.csv"), "header": False, "delimiter": ";", "columns": ["0", "1"]}
    assert texts(read(**keys)) == ["one", "two", "three", "four"]


def _table() -> pa.Table:
    return pa.table({"text": TEXTS, "split": ["train", "valid", "test"], "n": [1, 2, 3]})


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_parquet_and_arrow_in_both_formats(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "parquet":
        pq.write_table(_table(), path)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(str(path), _table().schema) as writer:
            writer.write_table(_table(), max_chunksize=2)
    name = "parquet" if kind == "parquet" else "arrow"
    rows = read(kind=name, path=str(path), split_column="split", meta_columns=["n"])
    assert texts(rows) == TEXTS
    assert [row.line for row in rows] == [1, 2, 3]
    assert [row.split for row in rows if isinstance(row, Row)] == ["train", "validation", "test"]


def test_data_sets_on_disk_with_and_without_splits(tmp_path: Path) -> None:
    import datasets

    one = datasets.Dataset.from_dict({"text": TEXTS})
    one.save_to_disk(str(tmp_path / "one"))
    assert texts(read(kind="disk", path=str(tmp_path / "one"))) == TEXTS
    assert {row.split for row in read(kind="disk", path=str(tmp_path / "one")) if isinstance(row, Row)} == {None}
    both = datasets.DatasetDict(train=one, test=datasets.Dataset.from_dict({"text": ["held out"]}))
    both.save_to_disk(str(tmp_path / "both"))
    rows = read(kind="disk", path=str(tmp_path / "both"))
    assert texts(rows) == ["held out", *TEXTS], "held-out splits come first"
    assert [row.split for row in rows if isinstance(row, Row)] == ["test", "train", "train", "train"]
    rows = read(kind="disk", path=str(tmp_path / "both"), splits={"train": "hash"})
    assert [row.split for row in rows if isinstance(row, Row)] == [None] * 3
    with pytest.raises(SourceError, match=r"has no split \['dev'\]; it has \['train', 'test'\]"):
        read(kind="disk", path=str(tmp_path / "both"), splits={"dev": "validation"})


def test_the_hub_is_read_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[dict[str, Any]] = []

    def load(name: str, subset: str | None, **keys: Any) -> Any:
        asked.append({"name": name, "subset": subset, **keys})
        return datasets.Dataset.from_dict({"text": [f"{keys['split']} {i}" for i in range(2)]}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    keys = {"kind": "hub", "dataset": "owner/set", "subset": "v1", "revision": "abc"}
    rows = read(**keys, splits={"train": "train", "validation": "validation"})
    assert texts(rows) == ["validation 0", "validation 1", "train 0", "train 1"]
    expected = {"name": "owner/set", "subset": "v1", "revision": "abc", "streaming": True}
    assert asked == [{**expected, "split": "validation"}, {**expected, "split": "train"}]
    assert [row.split for row in rows if isinstance(row, Row)] == ["validation"] * 2 + ["train"] * 2
    rows = read(**keys, streaming=False, splits={"a": "hash", "b": "train", "c": "test"})
    assert [(row.text, row.split, row.line) for row in rows if isinstance(row, Row)] == [
        ("c 0", "test", 1), ("c 1", "test", 2), ("a 0", None, 1), ("a 1", None, 2), ("b 0", "train", 1),
        ("b 1", "train", 2),
    ]  # fmt: skip
    assert [call["streaming"] for call in asked[2:]] == [False] * 3


def test_an_unreachable_data_set_is_named_with_a_remedy() -> None:
    with pytest.raises(
        SourceError, match=r"data set 'no-one/no-such-set', split 'train' could not be read.*kind 'disk'"
    ):
        read(kind="hub", dataset="no-one/no-such-set", splits={"train": "hash"})


def test_the_starter_corpus_keeps_its_split() -> None:
    rows = read(kind="starter", num_train=40, num_validation=3, num_test=4)
    assert [row.split for row in rows if isinstance(row, Row)].count("train") == 40
    assert len(rows) == 47
    assert rows == read(kind="starter", num_train=40, num_validation=3, num_test=4)
    assert "shape" in json.loads(getattr(rows[0], "meta", "{}"))


# -- bad rows ----------------------------------------------------------------------------------------------------------


def test_a_large_record_of_several_lines_is_named_by_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text\nfirst\n"begins\n' + "x" * 90 + '\nends"\nlast\n', encoding="utf-8")
    rows = read(kind="table", path=str(tmp_path / "a.csv"), max_row_bytes=100)
    assert texts([row for row in rows if isinstance(row, Row)]) == ["first", "last"]
    (bad,) = (row for row in rows if isinstance(row, BadRow))
    assert (bad.reason, bad.line) == ("oversized", 3)
    assert "the record of lines 3 to 5 has" in bad.detail
    assert "begins" in bad.excerpt


def test_bad_lines_of_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\xfe bad\nnul \x00 byte\n" + b"x" * 300 + b"\nlast\n" + b"y" * 300)
    rows = read(kind="text", path=str(tmp_path / "a.txt"), max_row_bytes=100)
    assert reasons(rows) == [(2, "encoding"), (3, "nul"), (4, "oversized"), (6, "oversized")]
    assert texts([row for row in rows if isinstance(row, Row)]) == ["good", "last"]
    details = [row.detail for row in rows if isinstance(row, BadRow)]
    assert "byte 0xff at byte 5 of the file" in details[0]
    assert "NUL byte at byte 16 of the file" in details[1]
    assert details[2].startswith("301 bytes in one line")


def test_bad_documents_are_named(tmp_path: Path) -> None:
    for name, raw in {"a": b"x" * 200, "b": b"one\ntwo \xff", "c": b"\x00"}.items():
        (tmp_path / f"{name}.txt").write_bytes(raw)
    rows = read(kind="text", path=str(tmp_path / "*.txt"), unit="file", max_row_bytes=100)
    assert reasons(rows) == [(1, "oversized"), (2, "encoding"), (1, "nul")]


def test_bad_lines_of_jsonl_are_named(tmp_path: Path) -> None:
    lines = ['{"text": "good"}', "{broken", "[1]", '{"other": 1}', '{"text": 5}', '{"text": null}', "[" * 100_000]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = read(kind="jsonl", path=str(tmp_path / "a.jsonl"), max_row_bytes=1_000_000)
    wanted = ["broken_json", "wrong_type", "missing_column", "wrong_type", "wrong_type", "broken_json"]
    assert [reason for _, reason in reasons(rows)] == wanted
    assert "found other" in [row.detail for row in rows if isinstance(row, BadRow)][2]


def test_an_open_quote_costs_one_line_of_csv(tmp_path: Path) -> None:
    good = [f"row {i},{i}" for i in range(50)]
    lines = ["text,n", *good[:10], '"never closed,1', *good[10:], "too,many,fields", "few", '"a ""fine"" one",3']
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    rows = read(kind="csv", path=str(tmp_path / "a.csv"), max_row_bytes=200)
    assert [reason for _, reason in reasons(rows)] == ["broken_csv"] * 3
    assert reasons(rows)[0][0] == 12
    kept = [row.text for row in rows if isinstance(row, Row)]
    assert kept == [*(line.split(",")[0] for line in good), 'a "fine" one']


@pytest.mark.parametrize(("fitting", "kept"), [(9, True), (8, False)])
def test_nine_of_ten_lines_after_an_open_quote_decide(fitting: int, kept: bool, tmp_path: Path) -> None:
    lines = [f"row {i},{i}" if i < fitting else f"row {i}" for i in range(10)]
    (tmp_path / "a.csv").write_text("\n".join(["text,n", "first,1", '"never closed,1', *lines]) + "\n")
    rows = read(kind="csv", path=str(tmp_path / "a.csv"), max_row_bytes=200)
    good = [row.text for row in rows if isinstance(row, Row)]
    assert good == ["first", *(f"row {i}" for i in range(9) if kept)]
    assert [line for line, _ in reasons(rows)] == ([3, 13] if kept else list(range(3, 14)))


def test_undecodable_lines_of_csv_are_named_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,n\ngood,1\n\xff,2\nnext,3\nnul\x00,4\n")
    rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    assert reasons(rows) == [(3, "encoding"), (5, "nul")]
    assert [row.text for row in rows if isinstance(row, Row)] == ["good", "next"]


def test_bad_cells_of_columnar_files_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["good", None], "n": [1, 2]}), tmp_path / "a.parquet")
    assert reasons(read(kind="parquet", path=str(tmp_path / "a.parquet"))) == [(2, "wrong_type")]
    assert reasons(read(kind="parquet", path=str(tmp_path / "a.parquet"), columns=["n"])) == [
        (1, "wrong_type"),
        (2, "wrong_type"),
    ]
    rows = read(kind="parquet", path=str(tmp_path / "a.parquet"), columns=["body"])
    assert reasons(rows) == [(1, "missing_column"), (2, "missing_column")]
    assert "found text, n" in getattr(rows[0], "detail", "")
    raw = pa.array([b"good", b"\xff\xfe"], pa.binary())
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.schema([("text", pa.string())])) as writer:
        writer.write_batch(pa.record_batch([pa.StringArray.from_buffers(2, *raw.buffers()[1:])], names=["text"]))
    assert reasons(read(kind="arrow", path=str(tmp_path / "a.arrow"))) == [(2, "encoding")]


def test_a_word_that_names_no_split_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "s": "trainn"}\n{"text": "b"}\n')
    rows = read(kind="jsonl", path=str(tmp_path / "a.jsonl"), split_column="s")
    assert reasons(rows) == [(1, "wrong_type"), (2, "missing_column")]


# -- files that cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing.txt", "file .*nothing.txt does not exist"),
        ("*.nothing", "no file matches"),
        ("", "is a folder, expected a file"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read(kind="text", path=str(tmp_path / path) if path else str(tmp_path))


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".parquet", ".arrow"])
def test_a_truncated_file_stops_the_run(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    raw = "".join(f"line {i * 7919 % 104729} of the corpus\n" for i in range(20_000)).encode()
    if suffix == ".gz":
        data = gzip.compress(raw)
    elif suffix == ".zst":
        data = zstandard.compress(raw)
    else:
        pq.write_table(pa.table({"text": TEXTS * 100}), path)
        data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    kind = suffix[1:] if suffix in (".parquet", ".arrow") else "text"
    with pytest.raises(SourceError, match="damaged, or not of the type"):
        read(kind=kind, path=str(path))


def test_a_file_that_grows_while_it_is_read_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    source = open_source(parse(SourceConfig, {"kind": "text", "path": str(path)}, at="s"), seed=0, max_row_bytes=99)
    rows = source.rows()
    assert next(rows).text == "one"  # type: ignore[union-attr]
    with open(path, "ab") as file:
        file.truncate(5)
    with pytest.raises(SourceError, match="8 bytes were read, but the file has 5 now: it changed while it was read"):
        list(rows)


def test_a_file_that_is_named_twice_is_read_once_and_in_the_order_of_the_names(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    (tmp_path / "d.txt").mkdir()
    paths = [str(tmp_path / name) for name in ("c.txt", "*.txt", "a.txt")]
    assert texts(read(kind="text", path=paths)) == ["c", "a", "b"]


def test_a_damaged_page_of_a_parquet_file_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    lines = [f"line number {i} of the table" for i in range(200)]
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"text": lines}), path, **options)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"number 150", b"number 151"))
    with pytest.raises(SourceError, match="damaged, or not of the type"):
        read(kind="parquet", path=str(path))
    path.write_bytes(data)
    assert texts(read(kind="parquet", path=str(path))) == lines


@pytest.mark.parametrize(("long", "quotes"), [(10, 1), (10, 2), (500, 1), (500, 2)])
def test_the_quotation_marks_of_a_line_that_is_too_long_count(long: int, quotes: int, tmp_path: Path) -> None:
    """The line that ends a text may be too long: its marks are beyond the bytes that are read, and odd in number."""
    text = "first\n" + "x" * long + '"' * quotes
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
            [["text", "n"], [text, "1"], ["next", "2"]]
        )
    rows = read(kind="csv", path=str(tmp_path / "a.csv"), max_row_bytes=200)
    assert [row.text for row in rows if isinstance(row, Row)] == ([text, "next"] if long < 200 else ["next"])
    assert [reason for _, reason in reasons(rows)] == ([] if long < 200 else ["oversized"])


def test_utf16_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello", encoding="utf-16")
    with pytest.raises(SourceError, match=r"found UTF-16\. Convert the file first: iconv"):
        read(kind="text", path=str(tmp_path / "a.txt"))
