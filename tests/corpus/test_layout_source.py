"""Preprocessed data in the older folder layout as a source: stored tokens are checked, latents stay with their rows."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.record import is_decoded, meta_value, record_id
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources.base import Row, StoredTokens
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.splits import SplitConfig, split_of
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.data.store import ShardStore
from mm_ldlm.extras.layout.reading import describe_layout
from mm_ldlm.extras.own_vectors.store import COLUMN, VectorStore

D = 4
WORDS = ("river", "garden", "teacher", "letter", "window", "bridge", "market", "winter", "doctor", "island")
TEXTS = [f"the {a} is near the {b}." for a in WORDS[:6] for b in WORDS[6:]]
VECTORS = np.random.default_rng(0).standard_normal((len(TEXTS), D)).astype(np.float32)
CLS, SEP, PAD = 101, 102, 0


def write_row(place: Path, name: str, text: str | None, ids: list[int], vector: Any) -> dict[str, str]:
    """Write the files of one row; return what a list says about it."""
    files = {"token_path": f"tokens/{name}.npz", "latent_path": f"latents/{name}.npy"}
    if text is not None:
        files["text_path"] = f"texts/{name}.txt"
    for file in files.values():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
    np.savez(place / files["token_path"], input_ids=np.array(ids, np.int64))
    np.save(place / files["latent_path"], vector)
    if text is not None:
        (place / files["text_path"]).write_text(text)
    return files


def write_layout(
    place: Path, bert: TextTokenizer, *, lists: str = "ids", texts: bool = True, test: bool = True
) -> Path:
    """Write TEXTS with their vectors: two of three rows train, and between them a duplicate and a short text.

    `lists`: "ids" (of their own), "digests" (of the records), "paths" (texts alone have paths) or "none".
    """
    rows: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
    for number, (text, vector) in enumerate(zip(TEXTS, VECTORS, strict=True)):
        split = "train" if number % 3 else "test" if number % 2 and test else "validation"
        more = [(text, vector)]
        if number == 4:
            more += [(TEXTS[1], -vector), ("x", 9 * vector)]
        for place_in_row, (content, stored) in enumerate(more):
            ids = [CLS, *bert.encode([content])[0], SEP, PAD, PAD]
            listed = write_row(place, f"{split}/{number:04d}{place_in_row}", content if texts else None, ids, stored)
            own = {"ids": f"row-{number}-{place_in_row}", "digests": record_id(content)}.get(lists)
            if lists == "paths":
                listed = {"text_path": listed["text_path"]}
            rows[split].append(listed if own is None else {"id": own, **listed})
    for split, listed_rows in rows.items():
        if lists != "none" and listed_rows:
            (place / f"{split}_data.json").write_text(json.dumps(listed_rows))
    return place


def run(
    folder: Path, place: Path, bert: TextTokenizer, *, source: Any = None, **keys: Any
) -> tuple[Any, Any, Any, Any]:
    """Ingest the layout; return records, vectors by text, quarantined rows and the report."""
    given = {"kind": "layout", "path": str(place), "tokens": True, "latents": True, **(source or {})}
    plain = {"sources": [given], "progress": False, "length": {"min_characters": 3}, "max_bad_fraction": 0.9, **keys}
    limits = TokenizerConfig(max_length=16, too_long="truncate")
    records, refused, report = ingest(
        parse(IngestionConfig, plain, at="ingestion"), seed=0, workspace=folder / "r", quarantine=folder / "q",
        tokenizer=bert, tokens=limits, vectors=VectorStore(D, folder / "v"),
    )  # fmt: skip
    records.write(folder / "r")
    refused.write(folder / "q")
    store, vectors = ShardStore.open(folder / "r"), ShardStore.open(folder / "v", "vectors")
    assert store.strings("id").take(slice(None)) == vectors.strings("id").take(slice(None))
    texts = store.strings("text").take(slice(None))
    found = dict(zip(texts, vectors.fixed(COLUMN).take(slice(None)).tolist(), strict=True))
    return store, found, ShardStore.open(folder / "q").take(slice(None)).to_pylist(), report


@pytest.mark.parametrize("lists", ["ids", "digests", "paths", "none"])
def test_dropped_rows_shift_no_latent(tmp_path: Path, bert: TextTokenizer, lists: str) -> None:
    place = write_layout(tmp_path / "old", bert, lists=lists)
    records, vectors, refused, report = run(tmp_path / "out", place, bert, shard_rows=8)
    assert (report["duplicates"], [row["reason"] for row in refused]) == (1, ["too_short"])
    assert vectors == dict(zip(TEXTS, VECTORS.tolist(), strict=True))
    rows = records.take(slice(None)).to_pylist()
    assert {row["text"]: row["split"] for row in rows} == {
        text: "train" if i % 3 else "test" if i % 2 else "validation" for i, text in enumerate(TEXTS)
    }
    kept = {row["text"]: meta_value(row["meta"], "layout_id") for row in rows}
    assert kept == {text: f"row-{i}-0" if lists == "ids" else None for i, text in enumerate(TEXTS)}
    assert all(row["id"] == record_id(row["text"]) for row in rows)


@pytest.mark.parametrize("lists", ["ids", "none"])
def test_missing_texts_are_decoded_from_the_tokens_and_marked(tmp_path: Path, bert: TextTokenizer, lists: str) -> None:
    place = write_layout(tmp_path / "old", bert, lists=lists, texts=False)
    records, vectors, refused, _ = run(tmp_path / "out", place, bert)
    assert [row["reason"] for row in refused] == ["too_short"]
    assert vectors == dict(zip(TEXTS, VECTORS.tolist(), strict=True))
    rows = records.take(slice(None)).to_pylist()
    assert all(is_decoded(row["meta"]) for row in rows)
    assert (meta_value(rows[0]["meta"], "layout_id") is not None) == (lists == "ids")
    with pytest.raises(SourceError, match="neither 'text_path' nor 'text'" if lists == "ids" else "missing_column"):
        run(tmp_path / "no", place, bert, source={"tokens": False})


def test_texts_that_lists_name_but_the_layout_lacks_are_decoded(tmp_path: Path, bert: TextTokenizer) -> None:
    place = write_layout(tmp_path / "old", bert)
    shutil.rmtree(place / "texts")
    assert run(tmp_path / "out", place, bert)[1] == dict(zip(TEXTS, VECTORS.tolist(), strict=True))


def test_tokens_of_another_tokenizer_stop_the_run(tmp_path: Path, bert: TextTokenizer) -> None:
    place = write_layout(tmp_path / "old", bert)
    for path in place.glob("tokens/*/*.npz"):
        np.savez(path, input_ids=np.load(path)["input_ids"] + 1)
    with pytest.raises(
        SourceError, match=r"other_tokens \(first: .* in the source and .* by the configured tokenizer: "
    ):
        run(tmp_path / "out", place, bert, max_bad_fraction=0.01)


def test_tokens_of_a_decoded_text_are_not_only_its_beginning(bert: TextTokenizer) -> None:
    ids = np.array(bert.encode([TEXTS[0]])[0], np.int32)
    config = parse(IngestionConfig, {"sources": [{"kind": "text", "path": "x"}]}, at="ingestion")
    for count, decoded, accepted in ((3, False, 1), (3, True, 0), (len(ids), True, 1)):
        counts = Counts.empty(1)
        tests = RowTests(config, bert, TokenizerConfig(max_length=16))
        row = Row(TEXTS[0], "x", 1, tokens=StoredTokens(ids[:count], decoded=decoded))
        Cleaner(config, counts).clean(tests([(0, row)]))
        assert sum(counts.accepted) == accepted


def test_stored_tokens_may_be_the_beginning_of_the_text(tmp_path: Path, bert: TextTokenizer) -> None:
    ids = bert.encode([TEXTS[0]])[0]
    listed = [write_row(tmp_path, f"train/{i}", TEXTS[i], [CLS, *row[:4], SEP], VECTORS[i]) for i, row in (
        (0, ids), (1, bert.encode([TEXTS[1]])[0])
    )]  # fmt: skip
    write_row(tmp_path, "train/2", TEXTS[2], [CLS, SEP], VECTORS[2])
    write_row(tmp_path, "train/3", TEXTS[3], [*bert.encode([TEXTS[3]])[0], 1010], VECTORS[3])
    _, vectors, refused, _ = run(tmp_path / "out", tmp_path, bert)
    assert list(vectors) == TEXTS[:2]
    assert len(listed) == 2
    assert [row["reason"] for row in refused] == ["other_tokens", "other_tokens"]


def damage(place: Path, what: str) -> None:
    """Damage the row train/00010, the first one of the training split."""
    tokens, latent = place / "tokens/train/00010.npz", place / "latents/train/00010.npy"
    match what:
        case "no tokens":
            tokens.unlink()
        case "broken tokens":
            tokens.write_bytes(b"junk")
        case "other array":
            np.savez(tokens, ids=np.arange(3))
        case "no latent":
            latent.unlink()
        case "broken latent":
            latent.write_bytes(b"junk")
        case "matrix":
            np.save(latent, np.zeros((2, D), np.float32))
        case "dimension":
            np.save(latent, np.zeros(D + 1, np.float32))
        case "nan":
            np.save(latent, np.full(D, np.nan, np.float32))
        case "text":
            (place / "texts/train/00010.txt").write_text("the garden is far from the market.")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("no tokens", "missing_file"),
        ("broken tokens", "unreadable_file"),
        ("other array", "unreadable_file"),
        ("no latent", "missing_file"),
        ("broken latent", "unreadable_file"),
        ("matrix", "wrong_type"),
        ("dimension", "wrong_dimension"),
        ("nan", "not_finite"),
        ("text", "other_tokens"),
    ],
)
def test_a_damaged_row_is_quarantined_and_the_others_keep_their_latents(
    tmp_path: Path, bert: TextTokenizer, what: str, reason: str
) -> None:
    place = write_layout(tmp_path / "old", bert)
    damage(place, what)
    _, vectors, refused, report = run(tmp_path / "out", place, bert)
    assert sorted(row["reason"] for row in refused) == sorted([reason, "too_short"])
    assert report["damaged"] == 1
    whole = dict(zip(TEXTS, VECTORS.tolist(), strict=True))
    whole[TEXTS[1]] = (-VECTORS[4]).tolist()  # of the later row with the same text, which is no duplicate any more
    assert vectors == whole


def test_validation_rows_are_divided_where_the_layout_has_none_for_testing(tmp_path: Path, bert: TextTokenizer) -> None:
    divided = {"splits": {"train": "train", "validation": "held_out", "test": "test"}}
    place = write_layout(tmp_path / "old", bert, test=False)
    report = run(tmp_path / "out", place, bert, source=divided)[3]
    assert report["splits"]["validation"] > 0 < report["splits"]["test"]
    assert report["splits"]["train"] == sum(1 for i in range(len(TEXTS)) if i % 3)
    low = [text for text in TEXTS if split_of(text, SplitConfig(validation=0.25, test=0.25)) != "train"]
    for i, text in enumerate(low):  # held out before by a hash split with the same key
        write_row(tmp_path / "low", f"val/{i:04d}", text, bert.encode([text])[0], VECTORS[i])
    again = run(tmp_path / "low out", tmp_path / "low", bert, source=divided)[3]["splits"]
    assert again["validation"] > 0 < again["test"]
    tested = run(tmp_path / "tested", write_layout(tmp_path / "two", bert), bert, source=divided)[3]
    assert tested["splits"] == {"train": 16, "validation": 4, "test": 4}
    # rows of the layout's own test split that go elsewhere test nothing
    elsewhere = {"splits": {"train": "train", "validation": "held_out", "test": "train"}}
    fractions = {"validation": 0.0, "test": 0.5}  # so that all held-out rows test
    moved = run(tmp_path / "moved", tmp_path / "two", bert, source=elsewhere, splits=fractions)[3]
    assert moved["splits"] == {"train": 20, "validation": 0, "test": 4}
    with pytest.raises(ConfigurationError, match="'held_out' is a split of kind 'layout'"):
        parse(SourceConfig, {"kind": "disk", "path": "x", "splits": {"a": "held_out"}}, at="source")
    with pytest.raises(ConfigurationError, match="the layout has the splits train, validation, test, found dev"):
        parse(SourceConfig, {"kind": "layout", "path": "x", "splits": {"dev": "test"}}, at="source")


@pytest.mark.parametrize("parts", [[], ["tokens"], ["latents"], ["tokens", "latents"]])
def test_the_description_has_the_texts_the_lists_and_the_parts_that_are_read(
    parts: list[str], tmp_path: Path, bert: TextTokenizer
) -> None:
    place = write_layout(tmp_path / "old", bert)
    before = describe_layout(place, parts=parts)
    assert before != describe_layout(place, parts=["latents"] if parts == ["tokens"] else ["tokens"] * (not parts))
    for part, name in (("tokens", "train/00010.npz"), ("latents", "train/00010.npy")):
        about = (place / part / name).stat()
        for time in (1, about.st_mtime_ns):  # other numbers of the same size
            os.utime(place / part / name, ns=(time, time))
            assert (describe_layout(place, parts=parts) != before) == (part in parts and time == 1), part
    for name, text in (("train_data.json", "[ ]"), ("texts/train/00010.txt", "the other")):
        content = (place / name).read_text()
        (place / name).write_text(text)
        assert describe_layout(place, parts=parts) != before, name
        (place / name).write_text(content)
    assert describe_layout(place, parts=parts) == before


def test_other_latents_of_the_same_size_are_read_again(tmp_path: Path, bert: TextTokenizer) -> None:
    place = write_layout(tmp_path / "old", bert)
    run(tmp_path / "out", place, bert)
    np.save(place / "latents/train/00010.npy", -VECTORS[1])
    assert run(tmp_path / "out", place, bert)[1][TEXTS[1]] == (-VECTORS[1]).tolist()
