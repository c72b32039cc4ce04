"""The token store: rows of the records, counts of the splits, and the same bytes after any interruption."""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.data.corpus.examples import Ingested, ingested, jsonl

from mm_ldlm.core import FingerprintError, StoreError, parse
from mm_ldlm.data.corpus import tokens as module
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.corpus.tokens import build_tokenizer, ingestion_report, tokenize_records
from mm_ldlm.data.store import Manifest, ShardStore

TEXTS = [f"the {word} {number} {number}" for number in range(12) for word in ("cat", "red zebra", "unaffable dog")]
KEYS = {"max_length": 5, "too_long": "truncate", "reduce_vocabulary": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    folder = tmp_path_factory.mktemp("records")
    source = {"kind": "jsonl", **jsonl(folder, [{"text": text} for text in TEXTS])}
    return ingested(folder, source, tokens=KEYS, shard_rows=8, splits={"validation": 0.3, "test": 0.2})


@pytest.fixture(autouse=True)
def several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 5)


def limits(**keys: Any) -> TokenizerConfig:
    return parse(TokenizerConfig, {**KEYS, **keys}, at="tokenizer")


def test_row_i_has_the_tokens_of_record_i_and_the_counts_add_up(
    made: Ingested, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = build_tokenizer(made.records, limits())
    manifest = tokenize_records(made.records, tokenizer, limits(), tmp_path)
    manifest.write(tmp_path)
    rows = ShardStore.open(tmp_path, "tokens").table(slice(None)).to_pylist()
    full = tokenizer.encode(made.texts)
    assert [(row["id"], row["input_ids"]) for row in rows] == [
        (record["id"], ids[:5]) for record, ids in zip(made.rows, full, strict=True)
    ]
    assert [row["length"] for row in rows] == [len(row["input_ids"]) for row in rows]
    for split, counts in manifest.meta["splits"].items():
        own = [row for row, record in zip(rows, made.rows, strict=True) if record["split"] == split]
        assert counts["rows"] == len(own)
        assert counts["tokens"] == sum(row["length"] for row in own)
        unknown = sum(row["input_ids"].count(tokenizer.unk_id) for row in own)
        assert counts["unknown"] == unknown
        assert counts["rows_with_unknown"] == sum(tokenizer.unk_id in row["input_ids"] for row in own)
    assert manifest.meta["splits"]["train"]["unknown"] == 0  # pitfall 36: counted where it happens
    assert manifest.meta["splits"]["train"]["truncated"] > 0
    lengths = [row["length"] for row in rows]
    with caplog.at_level(logging.WARNING):
        report = ingestion_report(made.report, ShardStore.open(tmp_path))["tokens"]
    assert f"{sum(len(ids) > 5 for ids in full)} of {len(full)} texts" in caplog.text  # never in silence
    assert report["length_histogram"] == {str(length): count for length, count in sorted(Counter(lengths).items())}
    assert report["lengths"] == {
        "mean": round(sum(lengths) / len(lengths), 3),
        **{f"p{part}": sorted(lengths)[-(-part * 36 // 100) - 1] for part in (5, 50, 95, 100)},
    }


def test_a_reduced_vocabulary_has_the_tokens_of_training_texts(made: Ingested, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(made.records, limits())
    train = [row["text"] for row in made.rows if row["split"] == "train"]
    used = {index for ids in tokenizer.encode(train) for index in ids[:5]}
    assert used | {tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id} == set(range(tokenizer.vocab_size))
    assert build_tokenizer(made.records, limits(reduce_vocabulary=False)).vocab_size == 30_522
    source = {"kind": "jsonl", "pair_column": "pair", **jsonl(tmp_path, [{"text": "the cat", "pair": "a dog... sun"}])}
    tokenizer = build_tokenizer(ingested(tmp_path, source, splits={"test": 0, "validation": 0}).records, limits())
    assert [tokenizer.unk_id in ids for ids in tokenizer.encode(["a dog", "sun"])] == [False, True]  # cut before it


def test_pitfall_22_a_killed_run_continues_and_ends_with_the_same_bytes(
    made: Ingested, tmp_path: Path, sweep: Callable[..., Iterator[int]]
) -> None:
    tokenizer, folder = build_tokenizer(made.records, limits()), tmp_path / "killed"
    expected = tokenize_records(made.records, tokenizer, limits(), tmp_path / "whole")
    for number in sweep(lambda: tokenize_records(made.records, tokenizer, limits(), folder)):
        assert tokenize_records(made.records, tokenizer, limits(), folder) == expected, number
        for shard in expected.shards:
            assert (folder / shard.name).read_bytes() == (tmp_path / "whole" / shard.name).read_bytes()
        shutil.rmtree(folder)
    assert number > 15
    expected.write(tmp_path / "whole")
    (tmp_path / "whole" / expected.shards[0].name).write_bytes(b"damaged")
    again = tokenize_records(made.records, tokenizer, limits(), tmp_path / "whole")
    assert all(shard.is_intact(tmp_path / "whole") for shard in again.shards)
    assert not Manifest.exists(tmp_path / "whole"), "the manifest of shards that were written again is the caller's"


def test_records_of_other_limits_and_reports_of_other_records_are_refused(
    made: Ingested, tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    tokenizer = build_tokenizer(made.records, limits())
    for other in ({"too_long": "drop"}, {"min_length": 5}):
        with refuses(StoreError, "5 tokens per record"):
            tokenize_records(made.records, tokenizer, limits(**other), tmp_path)
    tokenize_records(made.records, tokenizer, limits(), tmp_path).write(tmp_path)
    with pytest.raises(FingerprintError):
        ingestion_report({**made.report, "fingerprint": "of others"}, ShardStore.open(tmp_path))
