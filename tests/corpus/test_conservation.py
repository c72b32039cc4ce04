"""What was in a source is accepted or quarantined: counted from its bytes, independently of the reader."""

from __future__ import annotations

import datetime
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError, SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source

LIMIT = 300
QUICK = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(max_row_bytes: int = LIMIT, **keys: Any) -> list[Row | BadRow]:
    source = open_source(parse(SourceConfig, keys, at="source"), seed=0, max_row_bytes=max_row_bytes)
    json.dumps(source.describe())
    return list(source.rows())


def texts(items: list[Row | BadRow]) -> list[str]:
    return [item.text for item in items if isinstance(item, Row)]


def reasons(items: list[Row | BadRow]) -> list[str]:
    return [item.reason for item in items if isinstance(item, BadRow)]


# -- CSV ---------------------------------------------------------------------------------------------------------------

FIELD = st.text(st.sampled_from('ab ,"\n;é'), max_size=12)
HARM = st.sampled_from([None, None, b"\xff", b"\0", b"x" * (LIMIT + 50), b"\xff\n\xfe", b"y" * (LIMIT + 1) + b"\n\n"])


@QUICK
@given(records=st.lists(st.tuples(FIELD, FIELD, HARM, st.integers(0, 12)), max_size=8), columns=st.sampled_from([1, 2]))
def test_a_record_with_a_bad_line_is_left_out_as_a_whole(
    tmp_path: Path, records: list[tuple[str, str, bytes | None, int]], columns: int
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
        cells = [cell, other.encode()][:columns]
        raw += b",".join(b'"' + each.replace(b'"', b'""') + b'"' for each in cells) + b"\n"
    (tmp_path / "a.csv").write_bytes(raw)
    rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    assert texts(rows) == expected
    assert len(rows) == len(records), "each record is one row, good or bad"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'text\n"one\ntwo "three" four\nfive"\nlast\n', ["last"]),  # quotation marks that are not doubled
        (b'text\nfirst\n"cut in the middle\nof a text', ["first"]),
        (b'text\n"a "b" c\nd"\nlast\n', ["last"]),
        (b'text,n\n"one, two\nthree",1\nfour,2\n', ["one, two\nthree", "four"]),
        (b'text\n"' + b"long line\n" * 60 + b'"\nlast\n', ["last"]),  # a record of lines that are short each
    ],
)
def test_the_rest_of_a_broken_record_is_no_text(tmp_path: Path, raw: bytes, expected: list[str]) -> None:
    (tmp_path / "a.csv").write_bytes(raw)
    rows = read(kind="csv", path=str(tmp_path / "a.csv"))
    assert texts(rows) == expected
    assert reasons(rows) or b", two" in raw


def test_a_field_without_an_end_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text\n"' + b"a line that may be a text\n" * 2000)
    with pytest.raises(SourceError, match=r"the quoted field that begins in line 2, found none"):
        read(kind="csv", path=str(tmp_path / "a.csv"))


@pytest.mark.parametrize("header", [b"\xfftext,n", b'"text,n', b"te\0xt,n", b"text,n" + b"x" * 500])
def test_the_first_row_is_never_promoted_to_the_header(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(header + b"\ntext,1\nsecond,2\n")
    with pytest.raises(SourceError, match="line 1: expected the header"):
        read(kind="csv", path=str(tmp_path / "a.csv"))


# -- names that occur twice --------------------------------------------------------------------------------------------


def test_duplicate_columns_are_refused_and_duplicate_keys_quarantined(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n,text\na,1,b\n")
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "text": "b"}\n{"text": "c", "m": {"x": 1, "x": 2}}\n{"text": "d"}\n'
    )
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), twice.schema) as writer:
        writer.write_table(twice)
    for kind in ("csv", "parquet", "arrow"):
        with pytest.raises(SourceError, match="expected one column 'text', found 2"):
            read(kind=kind, path=str(tmp_path / f"a.{kind}"))
    rows = read(kind="jsonl", path=str(tmp_path / "a.jsonl"))
    assert reasons(rows) == ["broken_json", "broken_json"]
    assert texts(rows) == ["d"]
    (tmp_path / "b.csv").write_text("text,,\na,,\n")
    assert texts(read(kind="csv", path=str(tmp_path / "b.csv"))) == ["a"], "columns that are not read may be equal"


# -- files that end early ----------------------------------------------------------------------------------------------


def _ipc(new: Callable[..., Any]) -> bytes:
    sink, table = io.BytesIO(), pa.table({"text": [f"text {n}" for n in range(40)]})
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    return sink.getvalue()


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(40)]}), sink, row_group_size=10)
    return sink.getvalue()


def _tar() -> bytes:
    picture, sink = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (3, 3)).save(picture, "PNG")
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number in range(40):
            for name, data in ((f"{number}.png", picture.getvalue()), (f"{number}.txt", f"text {number}".encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


WHOLE = {
    "file": ("arrow", lambda: _ipc(pa.ipc.new_file)),
    "stream": ("arrow", lambda: _ipc(pa.ipc.new_stream)),
    "parquet": ("parquet", _parquet),
    "tar": ("webdataset", _tar),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    kind, make = WHOLE[name]
    data, path = make(), tmp_path / "a"
    path.write_bytes(data)
    assert len(texts(read(kind=kind, path=str(path)))) == 40
    step = 512 if name == "tar" else 8
    last = len(data.rstrip(b"\0")) // 512 * 512 + 512 if name == "tar" else len(data) - 1
    for end in {*range(0, last, max(step, len(data) // 50 // step * step)), last}:
        path.write_bytes(data[:end])
        with pytest.raises(SourceError):
            read(kind=kind, path=str(path))


@pytest.mark.parametrize("name", ["stream", "tar"])
def test_two_files_in_one_are_refused(tmp_path: Path, name: str) -> None:
    kind, make = WHOLE[name]
    (tmp_path / "a").write_bytes(make() * 2)
    with pytest.raises(SourceError, match="follow"):
        read(kind=kind, path=str(tmp_path / "a"))


def test_a_damaged_header_of_a_tar_is_not_its_end(tmp_path: Path) -> None:
    data = bytearray(_tar())
    data[40 * 512 + 148 : 40 * 512 + 156] = b"00000000"  # the checksum of a header in the middle
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(SourceError, match="neither a member nor the end"):
        read(kind="webdataset", path=str(tmp_path / "a"))


def test_a_data_set_on_disk_that_ends_early_is_refused(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(40)]}).save_to_disk(str(tmp_path / "set"))
    (path,) = (tmp_path / "set").glob("*.arrow")
    assert len(texts(read(kind="disk", path=str(tmp_path / "set")))) == 40
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SourceError, match="no end marker"):
        read(kind="disk", path=str(tmp_path / "set"))
    state = json.loads((tmp_path / "set/state.json").read_text())
    path.rename(tmp_path / "elsewhere.arrow")
    state["_data_files"] = [{"filename": "../elsewhere.arrow"}]
    (tmp_path / "set/state.json").write_text(json.dumps(state))
    with pytest.raises(MMLDLMError, match="leads out of the folder"):
        read(kind="disk", path=str(tmp_path / "set"))


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_every_text_of_a_layout_is_a_row(tmp_path: Path, lists: bool, packed: bool) -> None:
    files = {f"texts/{name}": "text" for name in ("train/a.txt", "train/b.txt", "other/c.txt", "d.txt", "train/e.md")}
    if lists:
        files["train_data.json"] = json.dumps([{"text_path": "texts/train/a.txt"}, {"text_path": 5}])
    place = tmp_path / ("a.zip" if packed else "a")
    if packed:
        with zipfile.ZipFile(place, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(content)
    rows = read(kind="layout", path=str(place))
    assert len(rows) == 5 + lists
    assert len(texts(rows)) == (1 if lists else 2)
    assert reasons(rows).count("unlisted_file") == (4 if lists else 3)
    assert {row.file for row in rows if isinstance(row, BadRow)} >= {
        f"{place}/texts/other/c.txt",
        f"{place}/texts/d.txt",
    }


def test_a_damaged_member_of_an_archive_is_one_bad_row(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("texts/train/a.txt", "text of the first")
        archive.writestr("texts/train/b.txt", "y" * (LIMIT + 1))
        archive.writestr("texts/train/c.txt", "fine")
    data = (tmp_path / "a.zip").read_bytes().replace(b"text of the first", b"text of the FIRST")
    (tmp_path / "a.zip").write_bytes(data)
    rows = read(kind="layout", path=str(tmp_path / "a.zip"))
    assert reasons(rows) == ["unreadable_file", "oversized"]
    assert texts(rows) == ["fine"]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=3) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@QUICK
@given(
    items=st.lists(
        st.dictionaries(st.sampled_from(["id", "text", "text_path", "token_path", "source", "meta"]), ODD), max_size=4
    )
)
def test_lists_of_any_values_lose_no_item(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    (tmp_path / "texts").mkdir(exist_ok=True)
    (tmp_path / "train_data.json").write_text(json.dumps(items))
    rows = read(kind="layout", path=str(tmp_path))
    assert len(rows) == len(items)
    for row in rows:
        if isinstance(row, Row):
            assert isinstance(json.loads(row.meta or "{}"), dict)


# -- values ------------------------------------------------------------------------------------------------------------


@QUICK
@given(fields=st.dictionaries(st.sampled_from(["text", "m", "label", "split", "pair"]), ODD))
def test_any_json_object_gives_a_row_or_a_bad_row(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(fields) + "\n")
    keys = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}
    for more in (
        {"meta_columns": ["m"]},
        {"label_column": "label"},
        {"pair_column": "pair"},
        {"split_column": "split"},
    ):
        (row,) = read(**keys, **more)
        if isinstance(row, Row):
            assert row.text == fields["text"]
            (row.meta or "").encode("utf-8")
            if "label_column" in more:
                json.loads(row.meta or "")["label"].encode("utf-8")


@pytest.mark.parametrize("depth", [60, 80, 400, 5000])
def test_deep_json_is_quarantined(tmp_path: Path, depth: int) -> None:
    value = "[" * depth + "]" * depth
    (tmp_path / "a.jsonl").write_text(
        f'{{"text": "a", "m": {value}}}\n{{"text": {value}, "m": 1}}\n{{"text": "b", "m": 2}}\n'
    )
    rows = read(10**6, kind="jsonl", path=str(tmp_path / "a.jsonl"), meta_columns=["m"])
    assert len(rows) == 3
    assert texts(rows) == (["a", "b"] if depth < 64 else ["b"])
    (tmp_path / "train_data.json").write_text(f'[{{"text": "a", "meta": {{"m": {value}}}}}, {{"text": "b"}}]')
    if depth < 500:
        assert "b" in texts(read(kind="layout", path=str(tmp_path)))
    else:
        with pytest.raises(SourceError, match="nested too deeply"):
            read(kind="layout", path=str(tmp_path))


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a": ', "}"), ('[{"a": ', "}]")])
def test_columns_of_meta_have_a_greatest_depth_of_lists_and_mappings(tmp_path: Path, left: str, right: str) -> None:
    levels = left.count("[") + left.count("{")
    for depth, kept in ((62 // levels, True), (70 // levels, False)):
        value = left * depth + "1" + right * depth
        (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "m": {value}}}\n')
        rows = read(10**6, kind="jsonl", path=str(tmp_path / "a.jsonl"), meta_columns=["m"])
        assert (texts(rows), reasons(rows)) == ((["a"], []) if kept else ([], ["wrong_type"]))


def test_values_that_python_cannot_represent_are_quarantined(tmp_path: Path) -> None:
    columns = {
        "big": pa.array([2**63, 2**64 - 1, 0], pa.uint64()),
        "date": pa.array([1, 2**31 - 1, -(2**31)], pa.date32()),
        "time": pa.array([1, 2**62, -(2**62)], pa.timestamp("s")),
        "span": pa.array([1, 2**62, -(2**62)], pa.duration("s")),
        "zone": pa.array([1, 2, 3], pa.timestamp("us", "Nowhere/Nothing")),
    }
    bad = {"big": 0, "date": 2, "time": 2, "span": 2, "zone": 3}
    for name, column in columns.items():
        table = pa.table({"text": ["a", "b", "c"], name: column})
        with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
            writer.write_table(table)
        keys = {"kind": "arrow", "path": str(tmp_path / "a.arrow")}
        rows = read(**keys, meta_columns=[name])
        assert reasons(rows) == ["wrong_type"] * bad[name], name
        assert len(texts(rows)) == 3 - bad[name]
        assert len(read(**keys, columns=[name])) == 3
        assert len(read(**keys, label_column=name)) == 3
    assert datetime.date.max.year == 9999


@pytest.mark.parametrize(
    "encoding", ["base64", "rot13", "zlib", "undefined", "utf-16", "klingon", "", "a\0", "\ud800", "cp037"]
)
def test_encodings_that_are_none_are_refused(encoding: str) -> None:
    with pytest.raises(ConfigurationError, match=r"encoding|line break"):
        parse(SourceConfig, {"kind": "text", "path": "a", "encoding": encoding}, at="source")


def test_every_encoding_of_python_is_refused_or_reads_any_bytes(tmp_path: Path) -> None:
    import encodings.aliases

    raw = b"plain,1\n" + bytes(range(1, 256)).replace(b"\n", b"").replace(b"\r", b"") + b",2\nlast,3\n"
    (tmp_path / "a").write_bytes(raw)
    read_by = 0
    for encoding in sorted({*encodings.aliases.aliases.values(), "idna", "raw_unicode_escape"}):
        try:
            rows = read(kind="text", path=str(tmp_path / "a"), encoding=encoding)
        except ConfigurationError:
            continue
        read_by += 1
        assert len(rows) == 3
        assert rows[0].line == 1 and getattr(rows[0], "text", "") == "plain,1"  # noqa: PT018
    assert read_by > 60


def test_a_filter_that_raises_costs_its_rows_and_stops_a_hopeless_run(
    tmp_path: Path, ingested: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "my_filter.py"
    module.write_text(
        "def keep(text):\n    if text == 'bad':\n        raise RuntimeError('no features')\n    return True\n"
    )
    (tmp_path / "broken_filter.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.txt").write_text("good\nbad\nalso good\n")
    source = {"kind": "text", "path": str(tmp_path / "a.txt")}
    out = ingested(source, language_filter="my_filter:keep", max_bad_fraction=0.5)
    assert out.report["quarantined_by_reason"] == {"filter_error": 1}
    assert "my_filter:keep raised RuntimeError: no features" in out.quarantined[0]["detail"]
    with pytest.raises(SourceError, match=r"1 of 3 rows are damaged .*no features"):
        ingested(source, language_filter="my_filter:keep")
    for wrong in ("broken_filter:keep", ":keep", "..:keep"):
        with pytest.raises(ConfigurationError, match=r"ingestion\.language_filter"):
            ingested(source, language_filter=wrong)
