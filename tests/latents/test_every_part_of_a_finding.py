"""Findings with more rows than examples: counts are those of all rows, examples the first five, remedies fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.alignment import check_ids, check_texts, check_tokens
from mm_ldlm.data.latents.checks import check_vectors, validate
from mm_ldlm.data.latents.findings import Finding, Findings
from mm_ldlm.data.latents.statistics import Statistics

from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.data.latents import alignment
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.store import ShardStore, StoreWriter

TOKENIZER: Any = SimpleNamespace(max_length=3, vocab_size=9, pad_id=7, mask_id=8, fingerprint="t")


def stored(folder: Path, kind: str, schema: pa.Schema, columns: dict[str, Any], **about: Any) -> ShardStore:
    writer = StoreWriter(folder, kind=kind, schema=schema, shard_rows=4)
    writer.append(columns)
    writer.finish(**about)
    return ShardStore.open(folder, kind)


def records_of(folder: Path, rows: list[tuple[str, str]], *, forged: int = 0) -> ShardStore:
    """Records of (text, split); the last `forged` of them have the ids of other texts."""
    ids = [record_id(text if row < len(rows) - forged else f"not {text}") for row, (text, _) in enumerate(rows)]
    columns = {"id": ids, "text": [text for text, _ in rows], "source": ["s"] * len(rows),
               "split": [split for _, split in rows], "meta": [None] * len(rows)}  # fmt: skip
    return stored(folder, "records", RECORD_SCHEMA, columns)


def tokens_of(folder: Path, rows: list[list[int]], *, lengths: list[int] | None = None, **about: Any) -> ShardStore:
    lengths = [len(row) for row in rows] if lengths is None else lengths
    columns = {"id": [f"r{row}" for row in range(len(rows))], "input_ids": rows, "length": lengths}
    return stored(folder, "tokens", TOKEN_SCHEMA, columns, **about)


# -- texts and tokens --------------------------------------------------------------------------------------------------


def test_findings_of_texts_count_all_rows_and_show_five(tmp_path: Path) -> None:
    """Six texts are in two splits, two repeat one, six rows are in no split, and seven have the ids of other texts."""
    rows = [(f"same {n}", "train") for n in range(6)] + [(f"SAME {n}", "validation") for n in range(6)]
    rows += [("twin", "train"), ("Twin", "train"), ("tWin", "train")] + [(f"lost {n}", "dev") for n in range(6)]
    rows += [(f"forged {n}", "validation") for n in range(7)]
    records, found = records_of(tmp_path, rows, forged=7), Findings()
    sets = {"the set": [f"same {n}" for n in range(6)] + ["SAME 1"]}
    check_texts(found, records, evaluation_sets=sets, on_leakage="report")
    ids = records.strings("id").take(slice(None))
    leak = found.findings[3]
    assert len(set(leak.examples)) == 5
    assert set(leak.examples) < {f"SAME {n}" for n in range(6)}
    again = "Run the ingestion pipeline again."
    assert found.findings == [
        Finding(severity="error", check="ids", message="7 records have an id that is not the digest of their text.",
                count=7, examples=tuple(ids[21:26]), remedy=again),
        Finding(severity="error", check="splits", message="6 records are in no split (train, validation, test).",
                count=6, examples=tuple(ids[15:20]), remedy=again),
        Finding(severity="warning", check="held-out rows", message="none of 28 records is in the split 'test': "
                "sampling and evaluation will have no examples.",
                remedy="Set ingestion.splits.test, or the split of a source."),
        Finding(severity="error", check="split leakage", message="6 texts or images are in more than one split (texts "
                "are compared without case and spacing, images by their pixels).", count=6, examples=leak.examples,
                remedy="Run the ingestion pipeline again; sources with their own splits must not repeat texts between "
                "splits."),
        Finding(severity="info", check="duplicate texts", message="2 records repeat a text of the same split, apart "
                "from case and spacing, or an image.", count=2,
                remedy="Near-duplicate removal (ingestion.near_duplicates) removes them."),
        Finding(severity="warning", check="evaluation leakage", message="6 training texts occur in the evaluation set "
                "'the set'. They remain in the training split.", count=6,
                examples=tuple(f"same {n}" for n in range(5)),
                remedy="validation.on_leakage decides: remove or report."),
    ]  # fmt: skip
    assert {check: rows.tolist() for check, rows in found.rows.items()} == {"ids": list(range(21, 28))}


def test_findings_of_tokens_count_all_rows_and_show_five(tmp_path: Path) -> None:
    """Six rows with each fault; of the splits, one has no count of unknown tokens and one no tokens."""
    rows = [[9]] * 6 + [[1, 7]] * 6 + [[1, 2]] * 6 + [[]] * 6 + [[1, 2, 3, 4]] * 5 + [[1] * 6]
    lengths = [1] * 6 + [2] * 6 + [3] * 6 + [0] * 6 + [4] * 5 + [6]
    splits = {"train": {"tokens": 200, "unknown": 3}, "validation": {"tokens": 200}, "test": {}}
    found = Findings()
    tokens = tokens_of(tmp_path, rows, lengths=lengths, meta={"splits": splits})
    check_tokens(found, tokens, tokenizer=TOKENIZER)
    again = "Remove the token store and run the ingestion pipeline again."

    def finding(check: str, first: int, message: str, *, severity: Any = "error", remedy: str = again) -> Finding:
        examples = tuple(f"r{row}" for row in range(first, first + 5))
        return Finding(
            severity=severity, check=check, message=f"6 rows {message}", count=6, examples=examples, remedy=remedy
        )

    assert found.findings == [
        finding("token ids", 0, "contain a token id outside 0..8."),
        finding("special tokens", 6, "contain a pad or mask token, which texts must not contain."),
        finding("token lengths", 12, "have a stored length that differs from their number of tokens."),
        finding("empty", 18, "have no tokens.", severity="warning", remedy="They are left out of the index."),
        finding("length", 24, "have more tokens than tokenizer.max_length = 3 (longest 6)."),
        Finding(severity="warning", check="unknown tokens", count=3,
                message="1.50 % of the tokens of split 'train' are unknown.",
                remedy="Choose another tokenizer, or set tokenizer.reduce_vocabulary to false."),
    ]  # fmt: skip
    failing = {check: rows.tolist() for check, rows in found.rows.items()}
    assert failing == {
        "token ids": [*range(6)], "special tokens": [*range(6, 12)], "token lengths": [*range(12, 18)],
        "empty": [*range(18, 24)], "length": [*range(24, 30)],
    }  # fmt: skip


def test_rows_that_are_elsewhere_are_counted_in_all_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_ROWS", 4)
    schema = pa.schema([("id", pa.string())])
    names = [f"r{row}" for row in range(12)]
    swapped = ["r1", "r0", "r3", "r2", "r5", "r4", "x", "r7", *names[8:]]
    stores = [stored(tmp_path / kind, kind, schema, {"id": ids}) for kind, ids in
              (("records", names), ("latents", swapped))]  # fmt: skip
    found = Findings()
    check_ids(found, *stores)
    (entry,) = found.findings
    assert entry.message == (
        "7 rows of latents have another id than the record in the same row (6 of them belong to other records nearby: "
        "rows were swapped or shifted)."
    )
    assert (entry.count, len(entry.examples)) == (7, 5)
    assert found.rows["alignment"].tolist() == [0, 1, 2, 3, 4, 5, 6]


# -- the report --------------------------------------------------------------------------------------------------------


def report_of(records: ShardStore, tokens: ShardStore, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "encoder": None, "extraction": None, "config": ValidationConfig(max_quarantine_fraction=0.1),
        "evaluation_sets": {}, "seed": 0,
    }  # fmt: skip
    return validate(records=records, tokens=tokens, latents=None, tokenizer=TOKENIZER, **given | changes).report


def test_a_corpus_without_a_record_has_a_report(tmp_path: Path) -> None:
    records = records_of(tmp_path / "r", [])
    mark = {"records": records.manifest.fingerprint, "tokenizer": "t"}
    tokens = tokens_of(tmp_path / "t", [], fingerprints=mark)
    assert report_of(records, tokens) == {
        "passed": True, "rows": 0, "valid": 0, "quarantined": 0, "quarantine": {}, "findings": [], "encoder": None,
        "statistics": {}, "fingerprints": {"records": mark["records"], "tokens": tokens.manifest.fingerprint},
    }  # fmt: skip


def test_rows_are_counted_and_left_out_as_those_of_the_records(tmp_path: Path) -> None:
    """Of five records the tokens of one are missing, and one of the others is in the evaluation set."""
    rows = [(text, "train") for text in "abcd"] + [("e", "test")]
    records = records_of(tmp_path / "r", rows)
    columns = {"id": [record_id(text) for text in "abcd"], "input_ids": [[1]] * 4, "length": [1] * 4}
    mark = {"records": records.manifest.fingerprint, "tokenizer": "t"}
    tokens = stored(tmp_path / "t", "tokens", TOKEN_SCHEMA, columns, fingerprints=mark)
    report = report_of(records, tokens, evaluation_sets={"s": ["B"]})
    assert {name: report[name] for name in ("passed", "rows", "valid", "quarantined", "quarantine")} == {
        "passed": False, "rows": 5, "valid": 4, "quarantined": 1, "quarantine": {"evaluation leakage": 1},
    }  # fmt: skip
    assert [entry["check"] for entry in report["findings"]] == ["alignment", "quarantine", "evaluation leakage"]
    assert report["findings"][1] == {
        "severity": "error", "check": "quarantine", "count": 1, "examples": [],
        "message": "1 of 5 rows (20.00 %) failed; at most 10.00 % may fail.",
        "remedy": "Read the reasons in quarantine_validation. If they are justified, raise "
        "validation.max_quarantine_fraction.",
    }  # fmt: skip


# -- vectors -----------------------------------------------------------------------------------------------------------


def measured(norms: Any, **more: Any) -> Statistics:
    """Statistics of rows with these norms, and of two dimensions."""
    count = len(norms)
    given: dict[str, Any] = {
        "finite_n": np.isfinite(norms), "norm_n": np.array(norms), "digest_n": np.arange(count, dtype=np.uint64),
        "bad_per_dimension_d": np.zeros(2, np.int64), "mean_d": np.zeros(2), "std_d": np.ones(2), "drift": [],
        "spectrum": np.zeros(2), "neighbour_cosine": np.zeros(count),
    }  # fmt: skip
    return Statistics(**given | more)


def found_in(statistics: Statistics, *, normalised: bool, **limits: Any) -> Findings:
    latents: Any = SimpleNamespace(
        strings=lambda name: SimpleNamespace(take=lambda rows: [f"{name}{row}" for row in rows])
    )
    found = Findings()
    check_vectors(found, latents, statistics, config=ValidationConfig(**limits), normalised=normalised)
    return found


@pytest.mark.parametrize(
    ("norms", "more", "normalised", "check"),
    [
        ([np.nan] * 7 + [1.0] * 3, {}, True, "finite"), ([0.0] * 7 + [1.0] * 3, {}, True, "zero"),
        ([0.5] * 7 + [1.0] * 3, {}, True, "norm"), ([9.0] * 7 + [1.0] * 93, {}, False, "norm"),
        ([1.0] * 8, {"digest_n": np.array([7] * 8, np.uint64)}, True, "duplicate vectors"),
    ],
)  # fmt: skip
def test_of_many_vectors_five_are_shown_and_all_are_counted(
    norms: list[float], more: dict[str, Any], normalised: bool, check: str
) -> None:
    policy = {"on_norm_outlier": "quarantine", "on_duplicate_vector": "quarantine"}
    found = found_in(measured(norms, **more), normalised=normalised, **policy)
    (entry,) = found.findings
    first = 1 if check == "duplicate vectors" else 0
    assert entry.check == check
    assert entry.count == (8 if check == "duplicate vectors" else 7)
    assert entry.examples == tuple(f"id{row}" for row in range(first, first + 5))
    assert {name: rows.tolist() for name, rows in found.rows.items()} == {check: [*range(first, first + 7)]}


def test_vectors_that_are_zero_or_not_finite_have_no_unusual_norm() -> None:
    """Neither do they take part in the quartiles of the others."""
    norms = [0.0, np.nan, 0.0, *[10.0 + n / 10 for n in range(8)]]
    found = found_in(measured(norms), normalised=False, on_norm_outlier="quarantine", norm_outlier_iqrs=1.0)
    assert {name: rows.tolist() for name, rows in found.rows.items()} == {"finite": [1], "zero": [0, 2]}


def test_every_finding_of_vectors_says_what_to_do() -> None:
    """By check, a part of the remedy that names the parameter or the action."""
    bad = np.array([0, 1])
    statistics = measured([np.nan, 0.0, 5.0, 1.0, 1.0], bad_per_dimension_d=bad, std_d=np.zeros(2),
                          digest_n=np.array([1, 2, 3, 4, 4], np.uint64), drift=[("s", 9.0)])  # fmt: skip
    left_out = "They are left out of the index. Embed these texts separately to find the cause."
    expected = {
        "finite": left_out, "finite dimensions": "overflow in its last layer (dtype)", "zero": left_out,
        "norm": left_out, "duplicate vectors": "validation.on_duplicate_vector: quarantine keeps the first row of each",
        "collapsed dimensions": "check its pooling and truncation. The normaliser maps them to 0",
        "drift": "The spot check distinguishes the two",
    }  # fmt: skip
    remedies = {entry.check: entry.remedy for entry in found_in(statistics, normalised=True).findings}
    assert remedies.keys() == expected.keys()
    assert {check: words in remedies[check] for check, words in expected.items()} == dict.fromkeys(expected, True)
    (norm,) = found_in(dataclasses.replace(measured([1.0] * 9 + [50.0])), normalised=False).findings
    assert norm.remedy == "Read these texts; validation.on_norm_outlier decides what happens to them."
