from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import StoreError, ValidationError
from mm_ldlm.data.corpus import tokens as tokens_module
from mm_ldlm.data.corpus.report import ingestion_report
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.data.corpus.tokens import build_tokenizer, tokenize_records
from mm_ldlm.data.store import Manifest, ShardStore


@pytest.fixture
def records(tmp_path: Path, ingested: Callable[..., Any]) -> Any:
    (tmp_path / "train.txt").write_text("a cat sat on the mat\nthe dog ran\na dog sat\nwe ran to the cat today\n")
    (tmp_path / "test.txt").write_text("the cat ran\na zebra sat\n")
    return ingested(
        {"kind": "text", "name": "one", "path": str(tmp_path / "train.txt"), "split": "train"},
        {"kind": "text", "name": "two", "path": str(tmp_path / "test.txt"), "split": "test"},
        shard_rows=2,
    )


def config(**keys: Any) -> TokenizerConfig:
    return parse(TokenizerConfig, {"max_length": 16, **keys}, at="tokenizer")


def make(records: Any, tokenizer: TextTokenizer, folder: Path, **keys: Any) -> ShardStore:
    manifest = tokenize_records(records.records, tokenizer, config(**keys), folder)
    manifest.write(folder)
    return ShardStore.open(folder, "tokens")


@pytest.mark.parametrize("at_once", [1, 2, 8192])
def test_row_i_of_the_tokens_is_row_i_of_the_records(
    at_once: int, records: Any, bert: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "_BATCH", at_once)
    store = make(records, bert, tmp_path / "tokens")
    assert store.strings("id").take(slice(None)) == [row["id"] for row in records.rows]
    assert [shard.rows for shard in store.manifest.shards] == [shard.rows for shard in records.manifest.shards]
    padded = store.lists("input_ids").padded(slice(None), pad=bert.pad_id)
    assert bert.decode_batch(padded) == records.texts
    assert store.ints("length").take(slice(None)).tolist() == [len(text.split()) for text in records.texts]
    assert (store.manifest.meta["splits"]["train"]["rows"], store.manifest.meta["splits"]["test"]["tokens"]) == (4, 6)


def test_the_vocabulary_is_that_of_the_training_split(records: Any, tmp_path: Path) -> None:
    small = build_tokenizer(records.records, config(reduce_vocabulary=True))
    training = {word for row in records.rows if row["split"] == "train" for word in row["text"].split()}
    assert small.vocab_size == len(training) + 3
    store = make(records, small, tmp_path / "tokens")
    none = {"rows": 0, "tokens": 0, "unknown": 0, "outside_vocabulary": 0, "truncated": 0}
    assert store.manifest.meta["splits"] == {
        "train": {**none, "rows": 4, "tokens": 18}, "validation": none,
        "test": {**none, "rows": 2, "tokens": 6, "outside_vocabulary": 1},  # zebra
    }  # fmt: skip
    assert store.manifest.meta["lengths"] == {"3": 4, "6": 2}
    names = ("vocab_size", "base_vocab_size", "max_length")
    assert [store.manifest.meta[name] for name in names] == [small.vocab_size, 30_522, 16]
    assert build_tokenizer(records.records, config()).vocab_size == 30_522


def test_truncation_cuts_tokens_and_counts_rows(records: Any, bert: TextTokenizer, tmp_path: Path) -> None:
    store = make(records, bert, tmp_path / "tokens", max_length=3, too_long="truncate")
    values, offsets = store.lists("input_ids").take(slice(None))
    assert np.diff(offsets).tolist() == [3] * 6
    assert bert.decode(values[:3]) == "a cat sat"
    assert store.manifest.meta["splits"]["train"]["truncated"] == 2


def test_unknown_tokens_and_those_outside_the_vocabulary_are_counted_apart(
    tmp_path: Path, ingested: Callable[..., Any], bert: TextTokenizer
) -> None:
    (tmp_path / "a.txt").write_text("a cat 𓀀 sat\n𓀁 𓀂 ran today far away\n")
    out = ingested({"kind": "text", "path": str(tmp_path / "a.txt"), "split": "test"})
    small = bert.with_vocabulary(bert.encode_base(["a cat sat ran"])[0])
    for tokenizer, outside in ((bert, 0), (small, 3)):
        store = make(out, tokenizer, tmp_path / f"{outside}", max_length=4, too_long="truncate")
        assert store.manifest.meta["splits"]["test"] == {
            "rows": 2, "tokens": 8, "unknown": 3, "outside_vocabulary": outside - (outside > 0) * 2, "truncated": 1
        }  # fmt: skip


def test_splits_of_one_shard_are_counted_apart(
    tmp_path: Path, ingested: Callable[..., Any], bert: TextTokenizer
) -> None:
    texts = {"test": "a cat zebra", "train": "a cat sat", "validation": "𓀀 sat cat a ran"}
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"text": "{text}", "s": "{split}"}}\n' for split, text in texts.items())
    )
    out = ingested({"kind": "jsonl", "path": str(tmp_path / "a.jsonl"), "split_column": "s"})
    small = bert.with_vocabulary(bert.encode_base(["a cat sat"])[0])
    store = make(out, small, tmp_path / "tokens", max_length=4, too_long="truncate")
    assert store.manifest.meta["splits"] == {
        "train": {"rows": 1, "tokens": 3, "unknown": 0, "outside_vocabulary": 0, "truncated": 0},
        "validation": {"rows": 1, "tokens": 4, "unknown": 1, "outside_vocabulary": 0, "truncated": 1},
        "test": {"rows": 1, "tokens": 3, "unknown": 0, "outside_vocabulary": 1, "truncated": 0},
    }


def test_records_of_other_limits_are_refused(records: Any, bert: TextTokenizer, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"expected 1 to 3 tokens.* found 6 .*run ingestion again"):
        make(records, bert, tmp_path / "tokens", max_length=3)


def test_an_interrupted_run_continues_with_the_missing_shards(
    records: Any, bert: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(records, bert, tmp_path / "whole")
    real, made = tokens_module._shard, []

    def killed(store: Any, start: int, *rest: Any) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(start)
        return real(store, start, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(tokens_module, "_shard", killed)
        with pytest.raises(KeyboardInterrupt):
            make(records, bert, tmp_path / "parts")
    first = tmp_path / "parts" / "part-000000.arrow"
    first.write_bytes(first.read_bytes()[:-8] + b"damaged!")
    parts = make(records, bert, tmp_path / "parts")
    assert parts.manifest == whole.manifest
    parts.verify()


def test_a_store_that_is_written_again_is_not_the_old_one_meanwhile(
    records: Any, bert: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest would name shards that are gone, or those of another tokenizer."""
    folder = tmp_path / "tokens"
    first = make(records, bert, folder).manifest

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokens_module, "_shard", killed)
    assert make(records, bert, folder).manifest == first, "nothing is missing"
    for tokenizer in (bert.with_vocabulary(bert.encode_base(["a cat"])[0]), bert):
        with pytest.raises(KeyboardInterrupt):
            make(records, tokenizer, folder)
        assert not Manifest.exists(folder)
        assert not list(folder.glob("part-*.arrow"))


def test_another_tokenizer_writes_another_store(records: Any, bert: TextTokenizer, tmp_path: Path) -> None:
    first = make(records, bert, tmp_path / "tokens").manifest
    small = build_tokenizer(records.records, config(reduce_vocabulary=True))
    store = make(records, small, tmp_path / "tokens")
    second = store.manifest
    assert second.fingerprints["tokenizer"] == small.fingerprint != first.fingerprints["tokenizer"]
    assert store.lists("input_ids").take(slice(None))[0].max() < small.vocab_size, "ids of the smaller vocabulary"
    marks = {first.fingerprints["parameters"]}
    for number, other in enumerate(({"max_length": 15}, {"min_length": 2}, {"too_long": "split"})):
        marks.add(make(records, bert, tmp_path / f"other{number}", **other).manifest.fingerprints["parameters"])
    assert len(marks) == 4
    assert first.fingerprints["records"] == second.fingerprints["records"] == records.manifest.fingerprint


def test_no_training_text_is_no_vocabulary(tmp_path: Path, ingested: Callable[..., Any]) -> None:
    (tmp_path / "a.txt").write_text("only held out\n")
    out = ingested({"kind": "text", "path": str(tmp_path / "a.txt"), "split": "test"})
    with pytest.raises(StoreError, match="that split is empty"):
        build_tokenizer(out.records, config(reduce_vocabulary=True))


def test_the_report_adds_up_or_is_refused(
    records: Any, bert: TextTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = make(records, bert, tmp_path / "tokens").manifest
    with caplog.at_level("INFO"):
        report = ingestion_report(records.report, manifest)
    assert report["conservation"] == "6 rows read = 6 accepted + 0 duplicates + 0 quarantined"
    assert caplog.messages[-1] == f"ingestion: {report['conservation']}"
    assert report["tokens"]["lengths"] == {"mean": 4.0, "p5": 3, "p50": 3, "p95": 6, "p100": 6}
    with pytest.raises(ValidationError, match="rows were lost"):
        ingestion_report({**records.report, "rows_in": 7}, manifest)
    with pytest.raises(ValidationError, match="made from other records"):
        ingestion_report({**records.report, "rows_in": 7, "accepted": 7}, manifest)
    with pytest.raises(ValidationError, match="other records"):
        ingestion_report({**records.report, "fingerprint": "x"}, manifest)
