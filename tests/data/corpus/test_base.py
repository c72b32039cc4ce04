"""Named columns become rows: texts, labels, pairs, splits, meta and vectors; and tables by suffix."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.corpus.examples import csv, described, ingested, jsonl, read, reasons, texts, written

from mm_ldlm.core import ConfigurationError, SourceError
from mm_ldlm.data.corpus.sources import SOURCES, Row

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
    assert {row.split for row in rows_of(kind, tmp_path / "b", split="test")} == {"test"}
    out = ingested(tmp_path / "out", {**written(kind, tmp_path / "c", ROWS), "split": "validation"})
    assert {row["split"] for row in out.rows} == {"validation"}


def test_missing_and_odd_columns_are_bad_rows_that_name_the_columns(tmp_path: Path) -> None:
    keys = {"kind": "jsonl", **jsonl(tmp_path, [{"text": 5}, {"text": "good", "label": ""}])}
    assert reasons(read({**keys, "label_column": "label"}))[-1] == "no_label"
    found = read(keys)
    assert (reasons(found), texts(found)) == (["wrong_type"], ["good"])
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


def test_the_format_of_a_table_follows_from_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.TSV").write_text("text\tv\ntab, separated\t[1]\n")
    (tmp_path / "a.ndjson").write_text('{"text": "json", "v": [1]}\n')
    (tmp_path / "a.txt").write_text("a line\n")
    np.save(tmp_path / "a.npy", np.ones((1, 1)))
    csv(tmp_path, [{"text": "quoted", "v": "[1]"}])
    names = ["a.TSV", "a.ndjson", "a.txt", "rows.csv"]
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
    with refuses(SourceError, "columns", "group_column"):
        read({**keys, "vector_column": "v", "group_column": "topic"})
    with refuses(SourceError, "rows.jsonl", "header"):
        read({**keys, **written("jsonl", tmp_path, [{"one": "a"}]), "kind": "table", "header": False})
