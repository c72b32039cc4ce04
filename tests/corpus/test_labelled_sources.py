"""Labels and pairs in sources: what is kept in `meta`, what is quarantined, and the id of a pair."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import _fingerprints
from mm_ldlm.data.corpus.record import record_id
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.corpus.tokens import build_tokenizer
from mm_ldlm.extras.layout.writing import export_layout
from mm_ldlm.extras.starter.pairs import longer

ROWS = [
    {"text": "a red cat", "kind": "animal", "other": "a dog"},
    {"text": "a hammer", "kind": 3, "other": "a saw"},
    {"text": "a lie", "kind": True, "other": "a truth"},
    {"text": "nothing here", "kind": None, "other": "x"},
    {"text": "blank label", "kind": "  ", "other": "x"},
    {"text": "half a label", "kind": 0.5, "other": "x"},
    {"text": "no label at all", "other": "x"},
]


def source(tmp_path: Path, form: str, rows: list[dict[str, Any]] = ROWS, **keys: Any) -> dict[str, Any]:
    path = tmp_path / f"rows.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "csv":
        lines = ["text,kind,other", *(f"{row['text']},{row.get('kind') or ''},{row['other']}" for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        named = [{**row, "kind": None if row.get("kind") is None else str(row["kind"])} for row in rows]
        pq.write_table(pa.Table.from_pylist(named), path)
    return {"kind": form, "path": str(path), "label_column": "kind", **keys}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_labels_are_kept_in_meta_and_rows_without_one_are_quarantined(tmp_path: Path, form: str, ingested: Any) -> None:
    out = ingested(source(tmp_path, form), max_bad_fraction=1.0)
    labels = {row["text"]: json.loads(row["meta"])["label"] for row in out.rows}
    assert (labels["a red cat"], labels["a hammer"]) == ("animal", "3")
    reasons = {row["excerpt"]: row["reason"] for row in out.quarantined}
    for text in ("nothing here", "blank label"):
        assert [reason for excerpt, reason in reasons.items() if text in excerpt] == ["no_label"]
    if form == "jsonl":
        assert labels["a lie"] == "true"
        assert Counter(reasons.values()) == {"no_label": 2, "wrong_type": 1, "missing_column": 1}
    assert out.report["rows_in"] == len(ROWS)


def test_a_label_that_is_not_accepted_is_quarantined_with_the_accepted_ones(tmp_path: Path, ingested: Any) -> None:
    out = ingested(source(tmp_path, "jsonl", ROWS[:3], labels=["animal", "true"], meta_columns=["other"]))
    assert [json.loads(row["meta"]) for row in out.rows] == [
        {"other": "a dog", "label": "animal"}, {"other": "a truth", "label": "true"}
    ]  # fmt: skip
    (refused,) = out.quarantined
    assert (refused["reason"], refused["detail"]) == ("unknown_label", "label '3', expected one of animal, true")


def test_the_id_of_a_pair_is_that_of_both_texts(tmp_path: Path, ingested: Any) -> None:
    rows = [
        {"text": "a  cat", "kind": "first", "other": "a   dog"},
        {"text": "a cat", "kind": "second", "other": "a saw"},
        {"text": "a cat", "kind": "similar", "other": "a dog"},
        {"text": "a cat", "kind": "first", "other": ""},
        {"text": "a cat", "kind": "first", "other": None},
    ]
    out = ingested(source(tmp_path, "jsonl", rows, pair_column="other"), max_bad_fraction=1.0)
    assert [json.loads(row["meta"]) for row in out.rows] == [
        {"label": "first", "pair": "a dog"}, {"label": "second", "pair": "a saw"}
    ]  # fmt: skip
    assert [row["id"] for row in out.rows] == [record_id("a cat", "a dog"), record_id("a cat", "a saw")]
    assert len({row["split"] for row in out.rows}) == 1
    assert out.report["duplicates"] == 1
    assert sorted(row["reason"] for row in out.quarantined) == ["empty", "wrong_type"]


def test_a_second_text_that_is_too_long_is_quarantined(tmp_path: Path, ingested: Any) -> None:
    rows = [{"text": "a cat", "kind": "first", "other": "one two three four five six"}, *ROWS[:1]]
    tokens = {"max_length": 4, "too_long": "split"}
    out = ingested(source(tmp_path, "jsonl", rows, pair_column="other"), tokens=tokens)
    assert out.texts == ["a red cat"]
    (refused,) = out.quarantined
    assert refused["reason"] == "too_many_tokens"
    assert "in the second text" in refused["detail"]


def test_a_pair_whose_first_text_is_too_long_is_quarantined_and_not_split(tmp_path: Path, ingested: Any) -> None:
    rows = [{"text": "one two three four five six", "kind": "first", "other": "a cat"}, *ROWS[:1]]
    tokens = {"max_length": 4, "too_long": "split"}
    out = ingested(source(tmp_path, "jsonl", rows, pair_column="other"), tokens=tokens)
    assert out.texts == ["a red cat"]
    (refused,) = out.quarantined
    assert (refused["reason"], refused["detail"]) == ("too_many_tokens", "6 tokens, tokenizer.max_length is 4")
    assert out.report["rows_from_splitting"] == 0


def test_the_vocabulary_has_the_words_of_second_texts(tmp_path: Path, ingested: Any) -> None:
    out = ingested(source(tmp_path, "jsonl", ROWS[:2], pair_column="other", split="train"))
    tokenizer = build_tokenizer(out.records, TokenizerConfig(max_length=8, reduce_vocabulary=True))
    assert tokenizer.unk_id not in tokenizer.encode(["dog saw"])[0]
    assert tokenizer.unk_id in tokenizer.encode(["tree"])[0]


def test_pairs_survive_the_folder_layout(tmp_path: Path, ingested: Any) -> None:
    out = ingested(source(tmp_path, "jsonl", ROWS[:3], pair_column="other"))
    export_layout(tmp_path / "layout", out.records)
    again = ingested({"kind": "layout", "path": str(tmp_path / "layout")})
    assert {row["id"] for row in again.rows} == {row["id"] for row in out.rows}


def test_a_source_without_labels_has_the_fingerprint_that_it_had_before_there_were_labels() -> None:
    """The digest was computed before these options existed; another one would make every store anew."""
    config = parse(IngestionConfig, {"sources": [{"kind": "starter"}]}, at="ingestion")
    sources = [open_source(config.sources[0], seed=0, max_row_bytes=100)]
    assert _fingerprints(config, sources, None, None)["parameters"] == PARAMETERS_BEFORE


PARAMETERS_BEFORE = "19c91486b963b3b336a07ced2248b63b"


def test_starter_pairs_compare_the_number_of_words(tmp_path: Path, ingested: Any) -> None:
    out = ingested({"kind": "starter_pairs", "num_train": 60, "num_validation": 4, "num_test": 4})
    assert Counter(row["split"] for row in out.rows) == {"train": 60, "validation": 4, "test": 4}
    for row in out.rows:
        meta = json.loads(row["meta"])
        assert meta["label"] == longer(row["text"], meta["pair"])
    assert longer("a b c", "a") == "first"
    assert longer("a", "a b c") == "second"
    assert longer("a b", "a") == longer("a", "a b") == "similar"


def test_pairs_by_another_rule_are_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(IngestionConfig, {"sources": [{"kind": "starter_pairs"}]}, at="ingestion").sources[0]
    before = open_source(config, seed=0, max_row_bytes=100).describe()
    monkeypatch.setattr("mm_ldlm.extras.starter.pairs.SIMILAR_WORDS", 2)
    assert open_source(config, seed=0, max_row_bytes=100).describe() != before
    assert longer("a b c", "a") == "similar"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "text", "path": "x", "label_column": "y"}, "'label_column' is not read by kind 'text'"),
        ({"kind": "csv", "path": "x", "labels": ["a"]}, "'labels' needs 'label_column'"),
        ({"kind": "csv", "path": "x", "columns": ["a", "b"], "pair_column": "c"}, "exactly one of 'columns'"),
    ],
)
def test_contradictory_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(IngestionConfig, {"sources": [keys]}, at="ingestion")
