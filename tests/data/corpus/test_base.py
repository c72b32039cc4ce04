"""Named columns become rows: texts, labels, pairs, splits, meta and vectors; the JSON of lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus.examples import described, ingested, jsonl, read, read_raw, reasons, texts, written

from mm_ldlm.core import ConfigurationError
from mm_ldlm.data.corpus.sources import SOURCES, Row
from mm_ldlm.data.corpus.sources import jsonl as jsonl_lines

ROWS = [
    {"text": "one", "other": "eins", "label": "a", "where": "dev", "n": "5"},
    {"text": "two", "other": "zwei", "label": "b", "where": "Test", "n": "6"},
    {"text": "three", "other": "drei", "label": "a", "where": "train", "n": "7"},
]
TABULAR = [kind for kind in ("csv", "jsonl", "parquet", "arrow", "disk", "hub") if kind in SOURCES]


def rows_of(kind: str, folder: Path, **keys: Any) -> list[Row]:
    found = read({**written(kind, folder, ROWS), **keys})
    assert not reasons(found)
    return [row for row in found if isinstance(row, Row)]


@pytest.mark.parametrize("kind", TABULAR)
def test_columns_of_texts_become_rows_of_their_own(kind: str, tmp_path: Path) -> None:
    rows = rows_of(kind, tmp_path, columns=["other", "text"], meta_columns=["n"])
    assert [row.text for row in rows] == ["eins", "one", "zwei", "two", "drei", "three"]
    assert [row.meta for row in rows] == [{"n": str(number)} for number in (5, 5, 6, 6, 7, 7)]
    assert len({row.group for row in rows}) == 3


@pytest.mark.parametrize("kind", TABULAR)
def test_a_label_and_a_second_text_belong_to_the_record(kind: str, tmp_path: Path) -> None:
    rows = rows_of(kind, tmp_path / "a", label_column="label", pair_column="other")
    assert [(row.text, row.pair, row.meta["label"]) for row in rows] == [
        (row["text"], row["other"], row["label"]) for row in ROWS
    ]
    found = read({**written(kind, tmp_path / "b", ROWS), "label_column": "label", "labels": ["a"]})
    assert (texts(found), reasons(found)) == (["one", "three"], ["unknown_label"])
    out = ingested(
        tmp_path / "out", {**written(kind, tmp_path / "c", ROWS), "pair_column": "other", "label_column": "label"}
    )
    assert [json.loads(row["meta"]) for row in out.rows] == [{"label": r["label"], "pair": r["other"]} for r in ROWS]


@pytest.mark.parametrize("kind", [kind for kind in TABULAR if kind not in ("disk", "hub")])
def test_a_column_or_the_source_decides_the_split(kind: str, tmp_path: Path) -> None:
    by_column = {row.text: row.split for row in rows_of(kind, tmp_path / "a", split_column="where")}
    assert by_column == {"one": "validation", "two": "test", "three": "train"}
    out = ingested(tmp_path / "out", {**written(kind, tmp_path / "c", ROWS), "split": "validation"})
    assert {row["split"] for row in out.rows} == {"validation"}


def test_missing_and_odd_columns_are_bad_rows_that_name_the_columns(tmp_path: Path) -> None:
    keys = {"kind": "jsonl", **jsonl(tmp_path, [{"text": 5}, {"text": "good", "label": ""}])}
    assert reasons(read({**keys, "label_column": "label"}))[-1] == "no_label"
    found = read(keys)
    assert (reasons(found), texts(found)) == (["wrong_type"], ["good"])
    numbered = {**written("jsonl", tmp_path / "b", [{"text": "good", "label": 3}]), "meta_columns": ["absent"]}
    assert texts(read({**numbered, "label_column": "label", "labels": ["3"]})) == ["good"]
    found = read({**keys, "columns": ["txet"]})
    assert reasons(found) == ["missing_column"] * 2
    assert "text" in found[0].detail  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [kind for kind in TABULAR if kind != "csv"])  # a cell of a CSV file is not null
@pytest.mark.parametrize("column", ["text", "other"])
def test_null_in_place_of_a_text_is_empty_and_not_damage(kind: str, column: str, tmp_path: Path) -> None:
    keys = written(kind, tmp_path / "in", [{**ROWS[0], column: None}, *ROWS[1:]]) | {"pair_column": "other"}
    report = ingested(tmp_path / "out", keys, max_bad_fraction=0.0).report
    assert (report["accepted"], report["quarantined_by_reason"]) == (2, {"empty": 1})


@pytest.mark.parametrize(
    "keys",
    [
        {"columns": []}, {"labels": ["a"]}, {"columns": ["a", "b"], "pair_column": "c"}, {"unknown": 1}, {"encodin": 1},
        {"columns": ["a", "b"], "vector_column": "v"}, {"pair_column": "c", "vector_column": "v"},
        {"split": "test", "split_column": "s"}, {"split": "dev"}, {"dataset": "x"}, {"path": None},
    ],
)  # fmt: skip
def test_keys_that_contradict_one_another_or_are_not_read_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(reversed(keys))):
        described({"kind": "jsonl", "path": "a", **keys})


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
    (row,) = read_raw("jsonl", json.dumps(fields).encode() + b"\n", **keys)
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
        patch.setattr(jsonl_lines, "SNIFFED_LINES", sniffed)
        found = read_raw("jsonl", "\n".join(lines).encode())
    assert texts(found) == ["a" if '"a"' in line else "" for line in lines]


@pytest.mark.parametrize(
    "line", ['{"text": "a", "text": "b"}', '{"text": "c", "m": {"x": 1, "x": 2}}', "[1]", "{", "[" * 9000]
)
def test_json_that_is_not_one_object_is_a_bad_row(line: str) -> None:
    found = read_raw("jsonl", f'{line}\n{{"text": "d"}}\n'.encode(), max_row_bytes=10_000)
    assert (len(found), texts(found)) == (2, ["d"])
