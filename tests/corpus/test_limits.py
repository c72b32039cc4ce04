"""Limits of the corpus from both sides, and every count and column of a report in closed form."""

from __future__ import annotations

import dataclasses
import importlib
import json
import linecache
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SourceError, ValidationError
from mm_ldlm.data.corpus import ingestion
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig, NearDuplicates
from mm_ldlm.data.corpus.filters import LengthConfig, describe_language_filter, keep_ascii
from mm_ldlm.data.corpus.normalisation import comparison_form
from mm_ldlm.data.corpus.progress import Progress
from mm_ldlm.data.corpus.quarantine import Quarantine
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, label_text, record_id, text_digest
from mm_ldlm.data.corpus.report import conservation, ingestion_report
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources.base import DAMAGE, EXCERPT_CHARACTERS, HELD_OUT, BadRow, Row, StoredTokens, excerpt
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.splits import SPLITS, SplitConfig, splits_of
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
from mm_ldlm.data.store import Shard, ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.extras.ray.engine import RayEngineConfig
from mm_ldlm.families.images.decoding import ImageLimits
from stand_ins import Letters

TWO = (SourceConfig(kind="starter", name="one"), SourceConfig(kind="starter", name="two"))


def cleaned(
    rows: list[Row | BadRow], *, tokens: dict[str, Any] | None = None, dim: int | None = None, **keys: Any
) -> Any:
    """The accepted records, the quarantine and the counts of rows of the second source."""
    counts = Counts.empty(2)
    limits = None if tokens is None else TokenizerConfig(**tokens)
    config = IngestionConfig(sources=TWO, **keys)
    cleaner = Cleaner(config, counts, vector_dim=dim)
    tests = RowTests(config, Letters() if limits else None, limits, dim)  # type: ignore[arg-type]
    cleaner.clean(tests([(1, row) for row in rows]))
    assert cleaner.num_accepted_waiting + cleaner.num_quarantined_waiting + sum(counts.duplicates) == counts.rows_in
    accepted, refused, vectors = cleaner.take_tables()
    assert counts.balanced
    return accepted.to_pylist(), refused.to_pylist(), counts, vectors


def row(text: str, **more: Any) -> Row:
    return Row(text, "file", 7, **more)


# -- limits of texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "refused", "kept"),
    [
        ({"min_characters": 3}, "ab", "abc"), ({"max_characters": 3}, "abcd", "abc"),
        ({"min_words": 2}, "abc", "a b"), ({"max_words": 2}, "a b c", "a b"),
    ],
)  # fmt: skip
def test_lengths_at_their_limit_are_kept(limit: dict[str, int], refused: str, kept: str) -> None:
    length = LengthConfig(**limit)
    assert length.refuse(kept) is None
    reason, detail = length.refuse(refused) or ("", "")
    assert reason == ("too_short" if "min" in next(iter(limit)) else "too_long")
    assert detail.endswith(f"{next(iter(limit))} is {next(iter(limit.values()))}")
    accepted, quarantined, _, _ = cleaned([row(kept), row(refused)], length=limit)
    assert [record["text"] for record in accepted] == [kept]
    assert [record["reason"] for record in quarantined] == [reason]


@pytest.mark.parametrize(("text", "size"), [("abcd", 4), ("äb", 3), ("a\U0001f600", 5)])
def test_a_row_of_the_largest_size_in_bytes_is_kept(text: str, size: int) -> None:
    for most, reasons in ((size, []), (size - 1, ["oversized"])):
        _, quarantined, _, _ = cleaned([row(text)], max_row_bytes=most)
        assert [record["reason"] for record in quarantined] == reasons


@pytest.mark.parametrize(
    ("text", "too_long", "reason"),
    [("ab", "drop", "too_few_tokens"), ("abc", "drop", None), ("abcde", "drop", None),
     ("abcdef", "drop", "too_many_tokens"), ("abcdef", "truncate", None), ("abcde", "truncate", None),
     (" ", "drop", "empty")],
)  # fmt: skip
def test_numbers_of_tokens_at_their_limit_are_kept(text: str, too_long: str, reason: str | None) -> None:
    accepted, quarantined, counts, _ = cleaned(
        [row(text), row("zyxwvutsr")], tokens={"max_length": 5, "min_length": 3, "too_long": too_long}
    )
    long = too_long == "drop"  # the second text, beside which every text is looked at
    assert [record["reason"] for record in quarantined] == ([reason] if reason else []) + ["too_many_tokens"] * long
    assert [record["text"] for record in accepted] == ([] if reason else [text]) + ["zyxwvutsr"] * (not long)
    assert counts.truncated == (0 if long else 2 if len(text) > 5 else 1)


@pytest.mark.parametrize(
    ("second", "too_long", "reason"),
    [("xy", "drop", "too_few_tokens"), ("xyz", "drop", None), ("vwxyz", "split", None),
     ("uvwxyz", "split", "too_many_tokens"), ("uvwxyz", "truncate", None)],
)  # fmt: skip
def test_the_second_text_of_a_pair_has_the_same_limits(second: str, too_long: str, reason: str | None) -> None:
    accepted, quarantined, _, _ = cleaned(
        [row("abcd"), row("abcd", pair=second, meta='{"a": 1}')],
        tokens={"max_length": 5, "min_length": 3, "too_long": too_long},
    )
    assert [record["reason"] for record in quarantined] == ([reason] if reason else [])
    if reason is None:
        assert json.loads(accepted[1]["meta"]) == {"a": 1, "pair": second}
        assert accepted[1]["id"] == record_id("abcd", second) != accepted[0]["id"]


@pytest.mark.parametrize(
    ("ids", "decoded", "kept"),
    [("abcd", True, True), ("abc", False, True), ("abc", True, False), ("abx", False, False), ("abcde", False, False),
     ("", False, False)],
)  # fmt: skip
def test_stored_tokens_are_those_of_the_tokenizer_or_their_beginning(ids: str, decoded: bool, kept: bool) -> None:
    stored = StoredTokens(np.array([ord(letter) for letter in ids], np.int32), decoded)
    accepted, quarantined, _, _ = cleaned([row("abcd", tokens=stored)], tokens={"max_length": 9})
    assert len(accepted) == kept
    assert [record["reason"] for record in quarantined] == ([] if kept else ["other_tokens"])


@pytest.mark.parametrize(
    ("vector", "reason"),
    [([1.0, 2.0], None), ([1.0], "wrong_dimension"), ([1.0, 2.0, 3.0], "wrong_dimension"),
     ([1.0, np.nan], "not_finite"), ([1.0, 1e39], "not_finite"), (None, "no_vector")],
)  # fmt: skip
def test_vectors_have_the_declared_dimension_and_finite_numbers(vector: Any, reason: str | None) -> None:
    given = None if vector is None else np.array(vector)
    accepted, quarantined, _, vectors = cleaned([row("ab"), row("cd", vector=given)], dim=2)
    assert [record["reason"] for record in quarantined] == (["no_vector"] + ([reason] if reason else []))
    assert vectors["vector"].to_pylist() == ([] if reason else [[1.0, 2.0]])
    assert vectors["id"].to_pylist() == [record["id"] for record in accepted]


def test_every_column_of_records_and_quarantine() -> None:
    rows = [
        row("A text", split="test", meta='{"k": 2}'),
        BadRow("other", 9, "broken_csv", "a detail", "an excerpt"),
        row("A text"),
    ]
    accepted, quarantined, counts, vectors = cleaned(rows)
    assert accepted == [
        {"id": record_id("A text"), "text": "A text", "source": "two", "split": "test", "meta": '{"k": 2}'}
    ]  # fmt: skip
    assert quarantined == [
        {"source": "two", "file": "other", "line": 9, "reason": "broken_csv", "detail": "a detail",
         "excerpt": "an excerpt"}
    ]  # fmt: skip
    assert vectors is None
    assert (counts.read, counts.accepted, counts.duplicates, counts.quarantined) == ([0, 3], [0, 1], [0, 1], [0, 1])
    assert (counts.duplicates_by, counts.quarantined_by) == ({"exact": 1}, {"broken_csv": 1})
    assert counts.splits == {"train": 0, "validation": 0, "test": 1}
    assert counts.examples == {"broken_csv": "other, line 9: a detail"}


def test_the_first_refused_row_of_a_reason_is_the_example() -> None:
    counts = Counts.empty(1)
    quarantine = Quarantine(counts)
    for line in (3, 4):
        quarantine.add(0, "s", file="f", line=line, reason="r", detail="d", text="t")
    assert counts.examples == {"r": "f, line 3: d"}
    assert len(quarantine) == 2
    assert quarantine.take_table().num_rows == 2
    assert len(quarantine) == 0


def test_a_refused_row_is_stored_and_counted_with_printable_names() -> None:
    """A name of a file whose bytes are no UTF-8 reaches Python with surrogates, which no Arrow column takes."""
    counts = Counts.empty(1)
    quarantine = Quarantine(counts)
    quarantine.add(0, "s", file="caf\udce9.txt", line=1, reason="r", detail="a \udce9 and a \x00", text="t\udce9")
    (row,) = quarantine.take_table().to_pylist()
    assert (row["file"], row["detail"]) == ("caf\\udce9.txt", "a \\udce9 and a \\x00")
    assert counts.examples == {"r": f"{row['file']}, line 1: {row['detail']}"}
    assert row["excerpt"] == "t\\udce9"


@pytest.mark.parametrize(("text", "kept"), [("a" * 9 + "é", True), ("a" * 8 + "éé", False), ("", True), ("é", False)])
def test_nine_tenths_of_a_text_are_ascii(text: str, kept: bool) -> None:
    assert keep_ascii(text) == kept


def test_an_excerpt_has_a_length() -> None:
    assert (len(excerpt("x" * 999)), EXCERPT_CHARACTERS) == (160, 160)
    assert excerpt(b"\xffab") == "\\xffab"
    assert excerpt({"a": 1}) == "{'a': 1}"


@pytest.mark.parametrize(
    ("value", "text"), [(" a ", "a"), ("", None), (3, "3"), (True, "true"), (False, "false"), (1.5, None), (None, None)]
)
def test_labels_as_texts(value: Any, text: str | None) -> None:
    assert label_text(value) == text


# -- splits ----------------------------------------------------------------------------------------------------------


def test_splits_at_their_fractions() -> None:
    """Of the unit interval, a quarter is test, the next eighth validation, and the rest training."""
    points = [0.0, 0.25 - 2**-20, 0.25, 0.375 - 2**-20, 0.375, 1 - 2**-20]
    words = np.array([int(point * 2**64) for point in points], np.uint64)
    found = splits_of(words, SplitConfig(validation=0.125, test=0.25))
    assert [SPLITS[i] for i in found] == ["test", "test", "validation", "validation", "train", "train"]
    assert splits_of(words, SplitConfig(validation=0.0, test=0.0)).tolist() == [0] * 6


@pytest.mark.parametrize(("word", "split"), [(0.0, "test"), (0.74, "test"), (0.76, "validation"), (0.99, "validation")])
def test_held_out_rows_are_divided_in_the_ratio_of_the_fractions(word: float, split: str) -> None:
    cleaner: Any = SimpleNamespace(config=SimpleNamespace(splits=SplitConfig(validation=0.1, test=0.3)))
    number = np.uint64(int(word * 2**64))
    assert SPLITS[Cleaner._split_number(cleaner, HELD_OUT, 0, number)] == split
    assert Cleaner._split_number(cleaner, None, 1, number) == 1
    assert SPLITS[Cleaner._split_number(cleaner, "test", 0, number)] == "test"
    none: Any = SimpleNamespace(config=SimpleNamespace(splits=SplitConfig(validation=0.0, test=0.0)))
    assert SPLITS[Cleaner._split_number(none, HELD_OUT, 0, number)] == "validation"


def test_the_split_key_and_the_comparison_form_decide_where_a_text_goes() -> None:
    texts = [f"Text number {i}" for i in range(200)]
    by_key = [
        {r["text"]: r["split"] for r in cleaned([row(text) for text in texts], splits={"test": 0.5, "key": key})[0]}
        for key in ("a", "b", "a")
    ]
    assert by_key[0] == by_key[2] != by_key[1]
    assert 60 < sum(split == "test" for split in by_key[0].values()) < 140
    assert comparison_form("  ﬁNE\u00a0Day") == comparison_form("fine day") == "fine day"
    assert comparison_form("\u0390") == comparison_form("\u03aa\u0301"), "case folding takes characters apart"


def test_an_image_is_part_of_the_identity_of_a_text() -> None:
    assert len({text_digest("a"), text_digest("a", "i"), text_digest("a", "j"), text_digest("a\0\0i"[:1])}) == 3
    rows = [("a", "i", "test"), ("a", "j", "test"), ("b", "i", "train"), ("a", "i", "test")]
    accepted, _, counts, _ = cleaned([row(text, image=image, split=split) for text, image, split in rows])
    assert len(accepted) == 2
    assert counts.duplicates_by == {"image_in_test": 1, "exact": 1}


def test_near_duplicates_are_found_by_shingles_of_the_given_length() -> None:
    """Of two texts of 21 letters that differ at the end, the Jaccard similarity of shingles falls with their length."""
    one, two = "abcdefghijklmnopqrstu", "abcdefghijklmnopqrsxy"
    similar = []
    for size in (1, 3, 10):
        seen = NearDuplicates(NearDuplicateConfig(num_perm=1024, shingle_characters=size))
        a, b = seen.signature(one), seen.signature(two)
        sets = [{text[i : i + size] for i in range(len(text) - size + 1)} for text in (one, two)]
        similar.append(float(np.mean(a.hashvalues == b.hashvalues)))
        assert similar[-1] == pytest.approx(len(sets[0] & sets[1]) / len(sets[0] | sets[1]), abs=0.06)
    assert similar[0] > similar[1] > similar[2]


def test_a_restored_cleaner_decides_as_the_one_that_was_interrupted(tmp_path: Path) -> None:
    """Of earlier rows: exact and near duplicates, case variants, pairs and images, also in other splits."""
    one, two = "a long sentence about a dog that runs in the {}", "ships sail over the wide and cold sea at {}"
    image = {"image": "i", "meta": '{"image": {"digest": "i"}}'}
    first = [
        row("One text", split="train"), row(one.format("morning"), split="test"),
        row("a b c", pair=two.format("midnight"), split="train"), row("seen", split="validation", **image),
        row("x y", pair="z", split="test", meta='{"k": 1}'),
    ]  # fmt: skip
    second = [
        row("one text", split="test"), row("One text", split="train"), row(one.format("mornings"), split="test"),
        row("a b c", pair=two.format("midnights"), split="train"), row("a b c", split="train"),
        row("A b c", split="test"), row("seen", split="validation", **image), row("new", split="train", **image),
        row("seen", split="train"), row("x y", pair="z", split="test"), row("brand new"),
    ]  # fmt: skip
    config = IngestionConfig(sources=TWO, near_duplicates=NearDuplicateConfig(threshold=0.7))
    tests, found = RowTests(config), []
    writer = StoreWriter(tmp_path, kind="records", schema=RECORD_SCHEMA, shard_rows=2)
    whole = Cleaner(config, Counts.empty(2))
    whole.clean(tests([(0, each) for each in first]))
    assert sum(whole.counts.accepted) == 5
    writer.append(whole.take_tables()[0])
    writer.finish()
    again = Cleaner(config, Counts.empty(2))
    again.restore(ShardStore.open(tmp_path))
    before = Counter(whole.counts.duplicates_by)
    for cleaner in (whole, again):
        cleaner.clean(tests([(1, each) for each in second]))
        found.append((cleaner.take_tables()[0].to_pylist(), Counter(cleaner.counts.duplicates_by)))
    assert found[0][0] == found[1][0]
    assert found[0][1] - before == found[1][1]
    assert found[1][1] == {
        "in_train_but_for_case": 2, "exact": 3, "near": 2, "image_in_validation": 1
    }, found[1][1]  # fmt: skip


# -- parameters of sources -------------------------------------------------------------------------------------------

READS: dict[str, str] = {
    "starter": "num_train num_validation num_test", "starter_pairs": "num_train num_validation num_test",
    "text": "path unit encoding split vectors", "layout": "path splits tokens latents", "digits": "",
    "jsonl": "TABLE encoding", "csv": "TABLE encoding delimiter header", "parquet": "TABLE", "arrow": "TABLE",
    "hub": "dataset subset revision streaming splits COLUMNS", "disk": "path splits COLUMNS",
    "image_folder": "CAPTIONED encoding image_column", "webdataset": "CAPTIONED",
    "table": "path vector_column columns meta_columns",
}  # fmt: skip
GROUPS = {
    "LABELS": "label_column labels pair_column", "COLUMNS": "columns meta_columns vector_column LABELS",
    "CAPTIONED": "path split split_column columns meta_columns LABELS", "TABLE": "path split split_column COLUMNS",
}  # fmt: skip


def keys_of(text: str) -> set[str]:
    return {key for word in text.split() for key in (keys_of(GROUPS[word]) if word in GROUPS else {word})}


def test_every_kind_reads_its_keys_and_refuses_all_others() -> None:
    others: dict[str, Any] = {
        "path": "x", "dataset": "d", "subset": "s", "revision": "r", "streaming": False, "splits": {"train": "test"},
        "tokens": True, "latents": True, "columns": ["c"], "meta_columns": ["m"], "label_column": "l", "labels": ["x"],
        "pair_column": "p", "vector_column": "v", "vectors": "beside", "split": "test", "split_column": "w",
        "unit": "file", "encoding": "latin-1", "delimiter": ";", "header": False, "image_column": "i", "num_train": 1,
        "num_validation": 2, "num_test": 3,
    }  # fmt: skip
    always = {"kind": "x", "name": "n", "max_samples": 5, "weight": 0.5}
    assert {field.name for field in dataclasses.fields(SourceConfig)} == {*others, *always}
    for kind, words in READS.items():
        needed: dict[str, Any] = {"kind": kind, "name": "n", "max_samples": 5, "weight": 0.5}
        needed |= {"path": "x"} if "path" in keys_of(words) else {}
        needed |= {"dataset": "d", "splits": {"train": "test"}} if kind == "hub" else {}
        with_labels = {"labels": {"label_column": "l"}}
        for key, value in others.items():
            given = {**needed, key: value}
            if key in keys_of(words):
                parse(SourceConfig, given | with_labels.get(key, {}), at="source")
            else:
                with pytest.raises(ConfigurationError, match=f"'{key}' is not read by kind '{kind}'"):
                    parse(SourceConfig, given, at="source")


@pytest.mark.parametrize(
    ("cls", "keys", "key", "words"),
    [
        (SourceConfig, {"kind": "csv", "path": "x", "delimiter": "::"}, "delimiter", "must be one character"),
        (SourceConfig, {"kind": "csv", "path": "x", "delimiter": ""}, "delimiter", "must be one character"),
        (SourceConfig, {"kind": "csv", "path": "x", "columns": []}, "columns", "must name at least one column"),
        (SourceConfig, {"kind": "csv", "path": "x", "split": "test", "split_column": "s"}, "split", "not both"),
        (SourceConfig, {"kind": "csv"}, "path", "kind 'csv' needs 'path'"),
        (SourceConfig, {"kind": "hub", "dataset": "d"}, "dataset", "needs 'dataset' and 'splits'"),
        (SplitConfig, {"key": ""}, "key", "must have 1 to 64 bytes"),
        (SplitConfig, {"key": "é" * 33}, "key", "must have 1 to 64 bytes"),
        (SplitConfig, {"validation": 0.5, "test": 0.5}, "validation", "leaves no training text"),
        (LengthConfig, {"min_characters": 4, "max_characters": 3}, "max_characters", "max_characters 3 is below"),
        (LengthConfig, {"min_words": 4, "max_words": 3}, "max_words", "max_words 3 is below min_words 4"),
        (NearDuplicateConfig, {"threshold": 0.96}, "threshold", "outside 0.1 to 0.95"),
        (NearDuplicateConfig, {"threshold": 0.09}, "threshold", "outside 0.1 to 0.95"),
        (NearDuplicateConfig, {"num_perm": 63}, "num_perm", "below 64"),
    ],
)
def test_a_refusal_names_its_parameter(cls: Any, keys: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'at\.{key}'.*{words}"):
        parse(cls, keys, at="at")


def test_values_at_the_limits_of_parameters_pass() -> None:
    for cls, keys in (
        (SplitConfig, {"key": "é" * 32}), (SplitConfig, {"validation": 0.5, "test": 0.49}),
        (LengthConfig, {"min_characters": 3, "max_characters": 3, "min_words": 2, "max_words": 2}),
        (NearDuplicateConfig, {"threshold": 0.95, "num_perm": 64}), (NearDuplicateConfig, {"threshold": 0.1}),
        (TokenizerConfig, {"max_length": 5, "min_length": 5}),
    ):  # fmt: skip
        found = parse(cls, keys, at="at")
        assert {key: getattr(found, key) for key in keys} == keys


# -- counts and reports ----------------------------------------------------------------------------------------------


def counts() -> Counts:
    """Counts in which no number occurs twice."""
    return Counts(
        read=[100, 41], accepted=[50, 19], duplicates=[20, 9], quarantined=[33, 17], from_splitting=[3, 4], truncated=8,
        duplicates_by=Counter(near=22, exact=7), quarantined_by=Counter(too_long=26, nul=13, encoding=11),
        splits=Counter(train=61, validation=5, test=2),
        examples={reason: f"file, line 1: {reason}" for reason in ("encoding", "nul", "too_long")},
    )  # fmt: skip


def progress(**more: Any) -> Progress:
    return Progress("print", [90, 45], [True, False], counts(), [], [], **more)


def test_every_count_of_the_report() -> None:
    found = ingestion._counts(IngestionConfig(sources=TWO), progress())
    assert found == {
        "rows_in": 148, "rows_read": 141, "rows_from_splitting": 7, "accepted": 69, "duplicates": 29, "quarantined": 50,
        "damaged": 24, "truncated": 8, "duplicates_by_kind": {"exact": 7, "near": 22},
        "quarantined_by_reason": {"encoding": 11, "nul": 13, "too_long": 26},
        "first_example_by_reason": {name: f"file, line 1: {name}" for name in ("encoding", "nul", "too_long")},
        "splits": {"train": 61, "validation": 5, "test": 2},
        "sources": {
            "one": {"read": 100, "from_splitting": 3, "accepted": 50, "duplicates": 20, "quarantined": 33,
                    "read_to_its_end": True},
            "two": {"read": 41, "from_splitting": 4, "accepted": 19, "duplicates": 9, "quarantined": 17,
                    "read_to_its_end": False},
        },
    }  # fmt: skip
    assert counts().balanced
    for name in ("read", "accepted", "duplicates", "quarantined", "from_splitting"):
        other = counts()
        getattr(other, name)[1] += 1
        assert not other.balanced, name
    assert {"nul", "encoding", "oversized", "other_tokens"} <= set(DAMAGE)
    assert not {"too_long", "language", "empty"} & set(DAMAGE)


def test_counts_and_progress_come_back_with_every_field(tmp_path: Path) -> None:
    assert Counts.from_dict(json.loads(json.dumps(counts().to_dict()))) == counts()
    assert all(getattr(counts(), field.name) for field in dataclasses.fields(Counts)), "a new field needs a value"
    stores = {}
    for name in ("records", "quarantine", "vectors"):
        (tmp_path / name).mkdir()
        shard = tmp_path / name / "part-000000.arrow"
        shard.write_bytes(name.encode())
        stores[name] = [Shard(name=shard.name, rows=3, bytes=len(name), sha256=file_sha256(shard))]
    whole = dataclasses.replace(progress(done=True), **stores)  # type: ignore[arg-type]
    whole.write(tmp_path / "records")
    folders = [tmp_path / name for name in stores]
    again = Progress.resume(*folders, fingerprint="print", sources=2)
    assert again == whole
    assert Progress.resume(*folders, fingerprint="other", sources=2) == Progress.start("other", 2)
    for folder in folders:
        shard = folder / "part-000000.arrow"
        before = shard.read_bytes()
        shard.write_bytes(b"X" * len(before))
        assert Progress.resume(*folders, fingerprint="print", sources=2) == Progress.start("print", 2), folder.name
        shard.write_bytes(before)


@pytest.mark.parametrize(("most", "stops"), [(24 / 148, False), (23.9 / 148, True)])
def test_damage_of_exactly_the_largest_fraction_passes(most: float, stops: bool) -> None:
    config = IngestionConfig(sources=TWO, max_bad_fraction=most)
    if stops:
        with pytest.raises(SourceError, match=r"24 of 148 rows are damaged \(16\.2 %\)"):
            ingestion._check(config, progress())
    else:
        ingestion._check(config, progress())


def test_an_empty_source_and_no_accepted_row_stop() -> None:
    config = IngestionConfig(sources=TWO, max_bad_fraction=1.0)
    found = progress()
    found.counts = dataclasses.replace(counts(), read=[0, 41], accepted=[0, 19], duplicates=[0, 9], quarantined=[0, 17],
                                       from_splitting=[0, 4])  # fmt: skip
    with pytest.raises(SourceError, match="source 'one' is empty"):
        ingestion._check(config, found)
    found.exhausted[0] = False
    ingestion._check(config, found)
    found.counts = dataclasses.replace(found.counts, accepted=[0, 0], duplicates=[0, 28])
    with pytest.raises(SourceError, match="none of the 45 rows was accepted: 26 too_long"):
        ingestion._check(config, found)


def test_sources_are_mixed_by_weight_and_continue_where_they_stopped() -> None:
    def sources(*counts: int) -> Any:
        return [SimpleNamespace(rows=lambda c=c: iter(range(c))) for c in counts]

    def read(config: IngestionConfig, sources: Any, progress: Progress) -> list[Any]:
        chunks = ingestion._Chunks(config, sources, progress, size=2)
        rows = []
        for chunk in chunks:
            chunks.advance()
            rows += chunk
        chunks.finish()
        return rows

    weighted = IngestionConfig(
        sources=tuple(dataclasses.replace(s, weight=w) for s, w in zip(TWO, (2.0, 1.0), strict=True))
    )
    found = Progress.start("p", 2)
    whole = read(weighted, sources(6, 9), found)
    assert whole == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (0, 4), (0, 5), (1, 2)]
    assert (found.consumed, found.exhausted) == ([6, 3], [True, False])
    again = Progress.start("p", 2)
    again.consumed = [4, 1]
    assert read(weighted, sources(6, 9), again) == whole[5:]
    plain = IngestionConfig(sources=(dataclasses.replace(TWO[0], max_samples=2), TWO[1]))
    found = Progress.start("p", 2)
    found.consumed = [1, 0]
    assert read(plain, sources(9, 2), found) == [(0, 1), (1, 0), (1, 1)]
    assert (found.consumed, found.exhausted) == ([2, 2], [True, True])


def test_the_limits_and_the_seed_reach_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def refuse(source: Any, **options: Any) -> Any:
        opened.append((source.label, options))
        if source.label == "two":
            raise KeyboardInterrupt

    monkeypatch.setattr(ingestion, "open_source", refuse)
    config = IngestionConfig(sources=TWO, max_row_bytes=77, images=ImageLimits(max_pixels=9))
    tokenizer: Any = object()
    with pytest.raises(KeyboardInterrupt):
        ingestion.ingest(config, seed=5, workspace=tmp_path, quarantine=tmp_path, tokenizer=tokenizer)
    options = {"seed": 5, "max_row_bytes": 77, "images": ImageLimits(max_pixels=9), "tokenizer": tokenizer}
    assert opened == [("one", options), ("two", options)]


def test_a_function_is_described_by_its_name_and_the_code_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for code in ("def keep(text): return True\ndef other(text): return True\n", "def keep(text): return False\n"):
        (tmp_path / "described_filter.py").write_text(code)
        sys.modules.pop("described_filter", None)
        importlib.invalidate_caches()
        linecache.clearcache()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            found.append(describe_language_filter("described_filter:keep"))
        finally:
            sys.dont_write_bytecode = before
        if "other" in code:
            found.append(describe_language_filter("described_filter:other"))
    sys.modules.pop("described_filter", None)
    assert [each["name"] for each in found] == [f"described_filter:{name}" for name in ("keep", "other", "keep")]
    assert found[0]["source"] == found[1]["source"] != found[2]["source"]
    assert describe_language_filter(None) is None


def test_every_parameter_of_the_ingestion_that_changes_rows_changes_the_fingerprint() -> None:
    plain = IngestionConfig(sources=TWO)
    sources: Any = [SimpleNamespace(describe=lambda: "content")] * 2
    limits = TokenizerConfig(max_length=9)
    tokenizer: Any = SimpleNamespace(base_fingerprint="t")

    def made_by(
        config: IngestionConfig, limits: Any = limits, tokenizer: Any = tokenizer, sources: Any = sources
    ) -> Any:
        return ingestion._fingerprints(config, sources, tokenizer, limits)

    before = made_by(plain)
    others: dict[str, Any] = {
        "unicode_form": "NFKC", "collapse_whitespace": False, "length": LengthConfig(min_words=2),
        "near_duplicates": NearDuplicateConfig(), "language_filter": "mm_ldlm.data.corpus.filters:keep_ascii",
        "splits": SplitConfig(key="other"), "max_row_bytes": 5, "images": ImageLimits(max_pixels=9), "shard_rows": 3,
    }  # fmt: skip
    free = {"progress": False, "max_bad_fraction": 0.5, "replace": True, "engine": RayEngineConfig()}
    names = {field.name for field in dataclasses.fields(plain)}
    assert names == {*others, *free, "sources", "path", "text_column"}, "a new parameter changes rows, or it does not"
    for name, value in others.items():
        changed = made_by(dataclasses.replace(plain, **{name: value}))
        assert changed["parameters"] != before["parameters"], name
    assert made_by(dataclasses.replace(plain, **free)) == before  # type: ignore[arg-type]
    other: Any = [SimpleNamespace(describe=lambda: "other content")] * 2
    assert made_by(plain, sources=other)["sources"] != before["sources"]
    for name, value in (("max_length", 8), ("min_length", 2), ("too_long", "split")):
        assert (
            made_by(plain, limits=dataclasses.replace(limits, **{name: value}))["token_limits"]
            != (before["token_limits"])
        ), name
    assert made_by(plain, tokenizer=SimpleNamespace(base_fingerprint="u"))["token_limits"] != before["token_limits"]


def test_the_statistics_of_tokens_and_the_sentence_of_conservation() -> None:
    preparation = {
        "rows_in": 110, "rows_from_splitting": 10, "accepted": 100, "duplicates": 6, "quarantined": 4,
        "fingerprint": "f",
        "duplicates_by_kind": {"exact": 6}, "quarantined_by_reason": {"nul": 4},
    }  # fmt: skip
    lengths = {"2": 4, "3": 1, "5": 45, "7": 45, "11": 5}
    meta = {
        "lengths": lengths, "vocab_size": 30, "base_vocab_size": 300, "max_length": 12,
        "splits": {"train": {"rows": 9}},
    }  # fmt: skip
    tokens: Any = SimpleNamespace(rows=100, fingerprints={"records": "f"}, meta=meta)
    found = ingestion_report(preparation, tokens)
    words = "100 rows read + 10 from splitting = 100 accepted + 6 duplicates (6 exact) + 4 quarantined (4 nul)"
    assert found["conservation"] == conservation(preparation) == words
    assert found["tokens"] == {
        "vocab_size": 30, "base_vocab_size": 300, "max_length": 12, "splits": {"train": {"rows": 9}},
        "lengths": {"mean": 6.06, "p5": 3, "p50": 5, "p95": 7, "p100": 11}, "length_histogram": lengths,
    }  # fmt: skip
    for name, message in (("accepted", "rows were lost"), ("rows_in", "rows were lost")):
        with pytest.raises(ValidationError, match=message):
            ingestion_report({**preparation, name: 109}, tokens)
    tokens.rows = 99
    with pytest.raises(ValidationError, match="has 99 rows"):
        ingestion_report(preparation, tokens)
    tokens.rows, tokens.fingerprints = 100, {"records": "g"}
    with pytest.raises(ValidationError, match="made from other records"):
        ingestion_report(preparation, tokens)
    assert re.match(r"5 rows read = 5 accepted \+ 0 duplicates \+ 0 quarantined$", conservation(
        {"rows_in": 5, "accepted": 5, "duplicates": 0, "quarantined": 0}
    ))  # fmt: skip
