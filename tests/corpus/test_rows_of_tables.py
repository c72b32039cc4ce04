"""Rows of tables that are read in several batches, from several files, and with several texts in each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, columnar, hugging_face
from mm_ldlm.data.corpus.sources.registry import open_source


def read(*, max_row_bytes: int = 300, **keys: Any) -> list[Row | BadRow]:
    return list(open_source(parse(SourceConfig, keys, at="source"), seed=0, max_row_bytes=max_row_bytes).rows())


def faults(rows: list[Row | BadRow]) -> list[tuple[str, str]]:
    return [(row.reason, row.detail) for row in rows if isinstance(row, BadRow)]


@pytest.mark.parametrize("form", ["parquet", "arrow", "disk"])
def test_rows_of_every_batch_have_their_own_numbers_and_vectors(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (columnar, hugging_face):
        monkeypatch.setattr(module, "BATCH_ROWS", 2)
    vectors = np.arange(14, dtype=np.float32).reshape(7, 2)
    table = pa.table({"text": [f"t{i}" for i in range(7)], "e": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 2)})
    path = tmp_path / "rows"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=3)
    elif form == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    else:
        import datasets

        datasets.Dataset(table).save_to_disk(str(path))
    rows = read(kind=form, path=str(path), vector_column="e")
    assert [(row.text, row.line) for row in rows if isinstance(row, Row)] == [(f"t{i}", i + 1) for i in range(7)]
    assert [np.asarray(row.vector).tolist() for row in rows if isinstance(row, Row)] == vectors.tolist()


def test_a_missing_column_is_named_beside_all_that_there_are(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "title": ["b"], "n": [1]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pa.ipc.new_stream(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    for form in ("parquet", "arrow"):
        rows = read(kind=form, path=str(tmp_path / f"rows.{form}"), columns=["text", "titel"])
        assert [row.text for row in rows if isinstance(row, Row)] == ["a"]
        assert faults(rows) == [
            ("missing_column", "no column 'titel'. Did you mean 'title'? Found text, title, n."),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "keys", "reason"),
    [
        ({"s": "holiday"}, {"split_column": "s"}, "wrong_type"),
        ({}, {"split_column": "s"}, "missing_column"),
        ({"l": " "}, {"label_column": "l"}, "no_label"),
        ({"l": "c"}, {"label_column": "l", "labels": ["a", "b"]}, "unknown_label"),
        ({"l": 1.5}, {"label_column": "l"}, "wrong_type"),
        ({"m": [[[]]] * 3 + [json.loads("[" * 80 + "]" * 80)]}, {"meta_columns": ["m"]}, "wrong_type"),
    ],
)
def test_a_fault_of_a_row_counts_for_each_of_its_texts(
    fields: dict[str, Any], keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """The number of rows in is the number of texts, whatever is wrong with their row."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"a": "one", "b": "two", **fields}) + "\n")
    for columns in (["a"], ["a", "b"], ["a", "b", "a"]):
        rows = read(kind="jsonl", path=str(tmp_path / "a.jsonl"), columns=columns, **keys)
        assert [each for each, _ in faults(rows)] == [reason] * len(columns)
        assert len(rows) == len(columns)


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    path = [str(tmp_path / name) for name in ("b.txt", "*.txt", "b.txt", "[ac].txt")]
    assert [row.text for row in read(kind="text", path=path) if isinstance(row, Row)] == ["b", "a", "c"]


def test_a_csv_record_of_many_lines_has_the_same_largest_size(tmp_path: Path) -> None:
    """Each line is short enough; the record is not."""
    path = tmp_path / "a.csv"
    path.write_text('text\nfirst\n"' + "x" * 40 + "\n" + "y" * 40 + '"\nlast\n')
    (one, long, last) = read(kind="csv", path=str(path), max_row_bytes=60)
    assert [getattr(row, "text", None) for row in (one, last)] == ["first", "last"]
    assert isinstance(long, BadRow)
    assert (long.line, long.reason) == (3, "oversized")
    assert long.detail == "the record of lines 3 to 4 has 84 characters, at most 60 are read"
    assert all(isinstance(row, Row) for row in read(kind="csv", path=str(path), max_row_bytes=84))
    path.write_bytes(b'text\n"one\n\xff\ntwo"\nlast\n')
    (bad, last) = read(kind="csv", path=str(path))
    assert isinstance(bad, BadRow)
    assert (bad.line, bad.reason) == (3, "encoding")
    assert bad.detail.endswith("; the record of lines 2 to 4 is left out")
    path.write_bytes(b'text\n"one\n\xff"\nlast\n')
    assert faults(read(kind="csv", path=str(path)))[0][1].endswith("; the record of lines 2 to 3 is left out")


def test_the_split_of_a_text_file_is_that_of_its_lines_with_and_without_vectors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\nb\n")
    np.save(tmp_path / "a.npy", np.eye(3, 2))
    for more in ({}, {"vectors": "beside"}, {"vectors": str(tmp_path / "a.npy")}):
        rows = read(kind="text", path=str(tmp_path / "a.txt"), split="test", **more)
        assert [(row.text, row.split) for row in rows if isinstance(row, Row)] == [(t, "test") for t in ("a", "", "b")]
        assert [None if row.vector is None else row.vector.tolist() for row in rows if isinstance(row, Row)] == (
            np.eye(3, 2).tolist() if more else [None] * 3
        )


def test_text_files_of_a_table_need_vectors_where_a_column_of_vectors_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n")
    keys = {"kind": "table", "path": str(tmp_path / "a.txt")}
    assert [row.text for row in read(**keys) if isinstance(row, Row)] == ["a", "b"]
    with pytest.raises(SourceError, match=r"a\.npy does not exist: expected the vectors of .*a\.txt"):
        read(**keys, vector_column="e")
    np.save(tmp_path / "a.npy", np.eye(2))
    rows = read(**keys, vector_column="e")
    assert [np.asarray(row.vector).tolist() for row in rows if isinstance(row, Row)] == [[1, 0], [0, 1]]


def test_splits_of_other_names_of_a_saved_data_set_are_divided_by_the_hash(tmp_path: Path) -> None:
    import datasets

    names = ("train", "dev", "test", "unsupervised")
    datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": [name]}) for name in names}).save_to_disk(
        str(tmp_path / "set")
    )
    rows = read(kind="disk", path=str(tmp_path / "set"))
    assert [(row.text, row.split) for row in rows if isinstance(row, Row)] == [
        ("test", "test"), ("dev", "validation"), ("unsupervised", None), ("train", "train"),
    ]  # fmt: skip
