"""Sources that contain a vector for each text: tables, saved data sets, and `.npy` files beside text files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.data.store import ShardStore
from mm_ldlm.extras.own_vectors import store as vectors_module
from mm_ldlm.extras.own_vectors.source import column_vectors, vector_of
from mm_ldlm.extras.own_vectors.store import COLUMN, VectorStore

D = 5
TEXTS = [f"sentence number {number} of the table" for number in range(40)]
VECTORS = np.random.default_rng(0).standard_normal((len(TEXTS), D)).astype(np.float32)


def run(folder: Path, *sources: dict[str, Any], dim: int = D, **keys: Any) -> tuple[ShardStore, ShardStore, Any, Any]:
    """Ingest with vectors; return records, vectors, the rows in quarantine by line, and the report."""
    config = parse(IngestionConfig, {"sources": list(sources), "progress": False, **keys}, at="ingestion")
    store = VectorStore(dim, folder / "vectors")
    records, refused, report = ingest(
        config, seed=0, workspace=folder / "records", quarantine=folder / "quarantine", vectors=store
    )
    records.write(folder / "records")
    refused.write(folder / "quarantine")
    assert report["rows_in"] == report["accepted"] + report["duplicates"] + report["quarantined"]
    opened = ShardStore.open(folder / "records"), ShardStore.open(folder / "vectors", "vectors")
    assert opened[0].strings("id").take(slice(None)) == opened[1].strings("id").take(slice(None))
    quarantine = ShardStore.open(folder / "quarantine").take(slice(None)).to_pylist()
    return *opened, {row["line"]: row for row in quarantine}, report


def by_text(records: ShardStore, vectors: ShardStore) -> dict[str, list[float]]:
    rows = vectors.fixed(COLUMN).take(slice(None))
    return dict(zip(records.strings("text").take(slice(None)), rows.tolist(), strict=True))


def write(path: Path, texts: list[str], vectors: Any) -> Path:
    """Write texts and vectors as the name of the path says."""
    table = pa.table({"text": texts, "embedding": [None if row is None else list(row) for row in vectors]})
    lists = [None if row is None else [float(value) for value in row] for row in vectors]
    lines = [{"text": text, "embedding": row} for text, row in zip(texts, lists, strict=True)]
    match path.suffixes:
        case [".parquet"]:
            pq.write_table(table, path, row_group_size=7)
        case [".feather"]:
            feather.write_feather(table, path, compression="uncompressed")
        case [".jsonl"]:
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        case [".jsonl", ".gz"]:
            path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
        case [".csv"]:
            quoted = [f'"{line["text"]}","{json.dumps(line["embedding"])}"\n' for line in lines]
            path.write_text("text,embedding\n" + "".join(quoted))
        case [".tsv"]:
            rows = [f"{line['text']}\t{{{','.join(map(str, line['embedding'] or ()))}}}\n" for line in lines]
            path.write_text("text\tembedding\n" + "".join(rows))
        case [".txt"]:
            path.write_text("".join(f"{text}\n" for text in texts))
            np.save(path.with_suffix(".npy"), np.array(vectors))
        case _:
            import datasets

            datasets.Dataset(table).save_to_disk(str(path))
    return path


FORMATS = ("t.parquet", "t.feather", "t.jsonl", "t.jsonl.gz", "t.csv", "t.tsv", "t.txt", "saved")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_each_vector_with_its_text(tmp_path: Path, name: str) -> None:
    """Duplicates and short rows are left out between others, which keep their vectors, bit for bit."""
    texts = [*TEXTS[:10], TEXTS[3], "x", *TEXTS[10:]]
    vectors = np.concatenate([VECTORS[:10], VECTORS[20:22], VECTORS[10:]])
    place = write(tmp_path / name, texts, vectors)
    source = {"kind": "table", "path": str(place), "vector_column": "embedding"}
    records, stored, refused, report = run(tmp_path / "out", source, shard_rows=16, length={"min_characters": 3})
    assert (report["duplicates"], report["quarantined"]) == (1, 1), refused
    assert by_text(records, stored) == dict(zip(TEXTS, VECTORS.tolist(), strict=True))
    assert stored.manifest.fingerprints["records"] == records.manifest.fingerprint


BAD: dict[str, Any] = {
    "wrong_dimension": [0.5] * (D - 1),
    "not_finite": [0.5] * (D - 1) + [float("nan")],
    "no_vector": None,
    "wrong_type": "nonsense",
}


@pytest.mark.parametrize("too_long", ["split", "truncate", "drop"])
def test_a_text_with_a_vector_is_never_split(tmp_path: Path, bert: TextTokenizer, too_long: Any) -> None:
    """The vector is that of the whole text, so that no piece has one."""
    path = write(tmp_path / "t.parquet", ["one two three four five six", "a cat"], VECTORS[:2])
    source = {"kind": "parquet", "path": str(path), "vector_column": "embedding"}
    _, _, report = ingest(
        parse(IngestionConfig, {"sources": [source], "progress": False}, at="ingestion"),
        seed=0,
        workspace=tmp_path / "records",
        quarantine=tmp_path / "quarantine",
        tokenizer=bert,
        tokens=TokenizerConfig(max_length=4, too_long=too_long),
        vectors=VectorStore(D, tmp_path / "vectors"),
    )
    kept = 2 if too_long == "truncate" else 1
    assert (report["accepted"], report["quarantined"], report["rows_from_splitting"]) == (kept, 2 - kept, 0)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_bad_vectors_are_quarantined_with_a_reason_and_counted(tmp_path: Path, suffix: str) -> None:
    rows: list[Any] = VECTORS.tolist()
    bad = BAD if suffix == "jsonl" else {reason: BAD[reason] for reason in list(BAD)[:3]}
    for number, vector in enumerate(bad.values()):
        rows[4 + number] = vector
    if suffix == "jsonl":
        lines = [{"text": text, "embedding": row} for text, row in zip(TEXTS, rows, strict=True)]
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        write(tmp_path / "t.parquet", TEXTS, rows)
    source = {"kind": suffix, "path": str(tmp_path / f"t.{suffix}"), "vector_column": "embedding"}
    records, stored, refused, report = run(tmp_path / "out", source, max_bad_fraction=0.5)
    assert {line: row["reason"] for line, row in refused.items()} == {5 + i: name for i, name in enumerate(bad)}
    assert report["damaged"] == len(bad)
    kept = {
        text: row
        for i, (text, row) in enumerate(zip(TEXTS, VECTORS.tolist(), strict=True))
        if not 4 <= i < 4 + len(bad)
    }
    assert by_text(records, stored) == kept
    with pytest.raises(SourceError, match=rf"{len(bad)} of 40 rows are damaged .* dimension 4, encoder\.dim is 5"):
        run(tmp_path / "stopped", source)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("[0.1, 0.2", "expected a list of numbers such as"),
        ("[0.1,,0.2]", "not every item is a number"),
        ("[1_0, 2]", "expected a list of numbers such as"),
        ("", "an empty text"),
        ([0.1, "0.2"], "a list with str '0.2'"),
        ([0.1, None], "a list with null"),
        ([True, False], "a list with bool True"),
        ([[0.1], [0.2]], "a list with list"),
        (b"\0\0\0\0", "bytes"),
        (0.5, "float 0.5, expected a list"),
        ([10**400], "beyond float64"),
        (np.zeros((2, 2)), r"an array of shape \(2, 2\)"),
        (np.array(["a"]), "an array of type <U1"),
    ],
)
def test_a_cell_that_is_no_vector_is_described(cell: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vector_of(cell)


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_written_vectors_are_read_exactly(values: list[float]) -> None:
    for text in (str(values), f" {{{','.join(map(repr, values))}}} ", f"[{' '.join(map(repr, values))}]"):
        np.testing.assert_array_equal(vector_of(text), np.array(values))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float16()), pa.list_(pa.float64(), 2)])
def test_columns_of_lists_are_read_at_their_offsets(kind: pa.DataType) -> None:
    column = pa.array([[1, 2], [3, 4], None, [5, 6], [7, None]], kind)
    for sliced in (column, column.slice(1, 3), pa.chunked_array([column.slice(1, 2), column.slice(3)])):
        found = column_vectors(sliced)
        assert found is not None
        assert [row.tolist() if isinstance(row, np.ndarray) else row for row in found] == sliced.to_pylist()
        assert isinstance(found[0], np.ndarray)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: np.save(place / "t.npy", VECTORS[:39]), "for each of the 40 lines .* found 39 rows"),
        (lambda place: np.save(place / "t.npy", VECTORS[0]), r"expected a matrix of numbers .* found shape \(5,\)"),
        (lambda place: np.save(place / "t.npy", VECTORS.astype(str)), "type <U"),
        (lambda place: np.save(place / "t.npy", [{}], allow_pickle=True), "pickled objects"),
        (lambda place: (place / "t.npy").write_bytes(b"junk"), r"not a readable \.npy array"),
        (lambda place: (place / "t.npy").unlink(), r"t\.npy does not exist: expected the vectors of"),
    ],
)
def test_an_npy_file_that_does_not_fit_its_texts_is_refused(
    tmp_path: Path, change: Callable[[Path], Any], message: str
) -> None:
    write(tmp_path / "t.txt", TEXTS, VECTORS)
    change(tmp_path)
    with pytest.raises(SourceError, match=message):
        run(tmp_path / "out", {"kind": "text", "path": str(tmp_path / "t.txt"), "vectors": "beside"})


def test_blank_lines_have_vectors_too_and_several_files_have_one_each(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", [*TEXTS[:3], "", *TEXTS[3:20]], np.insert(VECTORS[:20], 3, 9, axis=0))
    write(tmp_path / "b.txt", TEXTS[20:], np.asfortranarray(VECTORS[20:].astype(np.float64)))
    source = {"kind": "text", "path": str(tmp_path / "*.txt"), "vectors": "beside"}
    records, stored, refused, _ = run(tmp_path / "out", source)
    assert [row["reason"] for row in refused.values()] == ["empty"]
    assert by_text(records, stored) == dict(zip(TEXTS, VECTORS.tolist(), strict=True))
    with pytest.raises(SourceError, match=r"expected one text file for the vectors in .*, found 2"):
        run(tmp_path / "two", source | {"vectors": str(tmp_path / "a.npy")})


def test_other_vectors_of_the_same_texts_are_read_again(tmp_path: Path) -> None:
    place = write(tmp_path / "t.txt", TEXTS, VECTORS)
    source = {"kind": "text", "path": str(place), "vectors": "beside"}
    run(tmp_path / "out", source)
    np.save(tmp_path / "t.npy", -VECTORS)
    records, stored, _, _ = run(tmp_path / "out", source)
    assert by_text(records, stored) == dict(zip(TEXTS, (-VECTORS).tolist(), strict=True))


def test_a_declaration_of_another_dimension_reads_the_sources_again(tmp_path: Path) -> None:
    source = {"kind": "text", "path": str(write(tmp_path / "t.txt", TEXTS, VECTORS)), "vectors": "beside"}
    run(tmp_path / "out", source)
    with pytest.raises(SourceError, match=r"a vector of dimension 5, encoder\.dim is 4"):
        run(tmp_path / "out", source, dim=4)


def test_an_interrupted_ingestion_continues_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "t.parquet", TEXTS, VECTORS)
    source = {"kind": "parquet", "path": str(place), "vector_column": "embedding"}
    whole = run(tmp_path / "whole", source, shard_rows=8)
    from mm_ldlm.data.corpus import ingestion

    kept, commits = ingestion._commit, iter(range(100))

    def killed(*arguments: Any) -> None:
        if next(commits) == 2:
            raise KeyboardInterrupt
        kept(*arguments)

    monkeypatch.setattr(ingestion, "_commit", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", source, shard_rows=8)
    monkeypatch.undo()
    again = run(tmp_path / "out", source, shard_rows=8)
    assert again[3]["resumed_after_rows"] == 16
    assert again[1].manifest.shards == whole[1].manifest.shards
    (tmp_path / "out/vectors/part-000001.arrow").write_bytes(b"damaged")
    assert run(tmp_path / "out", source, shard_rows=8)[1].manifest.shards == whole[1].manifest.shards


def test_a_shard_of_vectors_has_bounded_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [VectorStore(dim, tmp_path).most_rows for dim in (1, 384, 1 << 28)] == [1 << 26, 174_762, 1]
    monkeypatch.setattr(vectors_module, "_SHARD_BYTES", 4 * D * 9 + 3)
    place = write(tmp_path / "t.parquet", TEXTS, VECTORS)
    source = {"kind": "parquet", "path": str(place), "vector_column": "embedding"}
    records, stored, _, _ = run(tmp_path / "out", source)
    assert [shard.rows for shard in stored.manifest.shards] == [9, 9, 9, 9, 4]
    assert [shard.rows for shard in records.manifest.shards] == [9, 9, 9, 9, 4]
    assert (stored.manifest.meta["dim"], len(stored)) == (D, len(TEXTS))
    assert by_text(records, stored) == dict(zip(TEXTS, VECTORS.tolist(), strict=True))


def test_texts_without_vectors_are_not_given_those_of_others(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    _, stored, refused, _ = run(tmp_path / "out", *[
        {"kind": "text", "path": str(tmp_path / "t.txt")},
        {"kind": "text", "name": "b", "path": str(write(tmp_path / "b.txt", ["one more text"], VECTORS[:1])),
         "vectors": "beside"},
    ], max_bad_fraction=1)  # fmt: skip
    assert len(stored) == 1
    assert {row["reason"] for row in refused.values()} == {"no_vector"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "jsonl", "vector_column": "v", "columns": ["a", "b"]}, "exactly one of 'columns'"),
        ({"kind": "jsonl", "vector_column": "v", "pair_column": "b"}, "no 'pair_column'"),
        ({"kind": "text", "vector_column": "v"}, "'vector_column' is not read by kind 'text'"),
        ({"kind": "text", "vectors": "beside", "unit": "file"}, "'vectors' needs 'unit' line"),
        ({"kind": "image_folder", "vector_column": "v"}, "'vector_column' is not read by kind 'image_folder'"),
    ],
)
def test_sources_whose_vectors_would_be_ambiguous_are_refused(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(SourceConfig, {"path": "x", **source}, at="source")


def test_a_table_of_no_known_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(SourceError, match=r"expected a file with one of the suffixes \.parquet, .* found .*t\.xlsx"):
        run(tmp_path / "out", {"kind": "table", "path": str(tmp_path / "t.xlsx"), "vector_column": "v"})


@pytest.mark.parametrize("changed", ["the texts", "the vectors"])
def test_a_source_is_another_one_if_its_texts_or_vectors_change(tmp_path: Path, changed: str) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    np.save(tmp_path / "texts.npy", VECTORS)
    config = parse(SourceConfig, {"kind": "text", "path": str(texts), "vectors": "beside"}, at="source")
    before = open_source(config, seed=0, max_row_bytes=1000).describe()
    if changed == "the texts":
        texts.write_text("\n".join(TEXTS[::-1]))
    else:
        np.save(tmp_path / "texts.npy", -VECTORS)
    assert open_source(config, seed=0, max_row_bytes=1000).describe() != before
