"""Equal content in two splits, ids of other rows, and evaluation sentences in training, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from mm_ldlm.data.latents.alignment import check_ids, check_texts, check_tokens
from mm_ldlm.data.latents.findings import Findings

from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.latents import alignment
from mm_ldlm.data.store import ShardStore, StoreWriter

Row = tuple[str, str, str | None]
"""Text, split, and the digest of the image"""


def records_of(folder: Path, rows: list[Row], **columns: Any) -> ShardStore:
    table = {
        "id": [record_id(text, None, image) for text, _, image in rows],
        "text": [text for text, *_ in rows],
        "source": ["s"] * len(rows),
        "split": [split for _, split, _ in rows],
        "meta": [None if image is None else json.dumps({"image": {"file": f"{number}.png", "digest": image}})
                 for number, (*_, image) in enumerate(rows)],
    }  # fmt: skip
    writer = StoreWriter(folder, kind="records", schema=RECORD_SCHEMA, shard_rows=2)
    writer.append(table | columns)
    writer.finish()
    return ShardStore.open(folder, "records")


def checked(records: ShardStore, *, sets: Any = None, on_leakage: str = "remove") -> dict[str, Any]:
    found = Findings()
    check_texts(found, records, evaluation_sets=sets or {}, on_leakage=on_leakage)
    assert len({entry.check for entry in found.findings}) == len(found.findings)
    return {entry.check: entry for entry in found.findings} | {"rows": found.rows}


A, B = "a" * 32, "b" * 32


@pytest.mark.parametrize("at_once", [1, 2, 100])
@pytest.mark.parametrize(
    ("rows", "across", "within"),
    [
        # The image alone decides the split: captions may occur with different images in two splits.
        ([("a cat", "train", A), ("a cat", "test", B)], 0, 0),
        ([("a cat", "train", A), ("a dog", "test", A)], 1, 0),
        ([("a cat", "train", A), ("a cat", "test", A)], 1, 0),
        ([("a cat", "train", A), ("a dog", "train", A), ("x", "test", B)], 0, 1),
        ([("a cat", "train", A), ("a cat", "train", B), ("x", "test", None)], 0, 0),
        ([("a cat", "train", None), ("a cat", "test", A)], 0, 0),
        ([("a cat", "train", None), (" A  CAT", "test", None)], 1, 0),
        ([("a cat", "train", None), ("a Cat", "train", None), ("A cat", "validation", None), ("x", "test", None)],
         1, 1),
        ([("a cat", "train", None), ("A cat", "test", None), ("a Cat", "train", None)], 1, 1),
        ([("a cat", "validation", None), ("A cat", "test", None), ("a Cat", "train", None)], 2, 0),
        ([("a cat", "train", A), ("a dog", "test", A), ("a dog", "train", B), ("a cat", "test", B)], 2, 0),
    ],
)  # fmt: skip
def test_images_are_compared_in_place_of_their_captions(
    rows: list[Row], across: int, within: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "_ROWS", at_once)
    found = checked(records_of(tmp_path, rows))
    counts = [found[check].count if check in found else 0 for check in ("split leakage", "duplicate texts")]
    assert counts == [across, within]
    assert found.keys() <= {"split leakage", "duplicate texts", "rows"}, "an image is part of the id"
    if across:
        assert (found["split leakage"].severity, found["rows"]) == ("error", {})
        assert set(found["split leakage"].examples) <= {text for text, *_ in rows}
    if within:
        assert found["duplicate texts"].severity == "info"


def test_an_id_that_leaves_out_the_image_or_the_second_text_is_another_id(tmp_path: Path) -> None:
    rows: list[Row] = [("a cat", "train", A), ("a dog", "test", None), ("a bird", "test", None)]
    pair = json.dumps({"pair": "second"})
    ids = [record_id("a cat"), record_id("a dog"), record_id("a bird", "second", None)]
    meta = [json.dumps({"image": {"file": "0.png", "digest": A}}), pair, pair]
    found = checked(records_of(tmp_path, rows, id=ids, meta=meta))
    assert found["rows"]["ids"].tolist() == [0, 1]
    assert found["ids"].examples == (ids[0], ids[1])


@pytest.mark.parametrize("on_leakage", ["remove", "report"])
def test_each_evaluation_set_reports_its_own_training_texts(on_leakage: str, tmp_path: Path) -> None:
    rows: list[Row] = [("one", "train", None), ("two", "test", None), ("three", "train", None), ("four", "train", None)]
    records, found = records_of(tmp_path, rows), Findings()
    sets = {"first": ["THREE", "two"], "none": ["five"], "empty": [], "second": ["four", " One ", "four"]}
    check_texts(found, records, evaluation_sets=sets, on_leakage=on_leakage)
    entries = [entry for entry in found.findings if entry.check == "evaluation leakage"]
    words = "They are in quarantine." if on_leakage == "remove" else "They remain in the training split."
    assert [(entry.message, entry.count, entry.examples) for entry in entries] == [
        (f"1 training texts occur in the evaluation set 'first'. {words}", 1, ("three",)),
        (f"2 training texts occur in the evaluation set 'second'. {words}", 2, ("one", "four")),
    ]
    failing = {check: rows.tolist() for check, rows in found.rows.items()}
    assert failing == ({"evaluation leakage": [0, 2, 3]} if on_leakage == "remove" else {})


@pytest.mark.parametrize(
    ("ids", "wrong", "how"),
    [
        (["r0", "r1", "r2", "r3"], [], None),
        (["r1", "r0", "r2", "r3"], [0, 1], "2 of them belong to other records nearby: rows were swapped or shifted"),
        (["r0", "x", "r2", "y"], [1, 3], "ids that no record nearby has"),
        (["r0", None, "r2", "r3"], [1], "ids that no record nearby has"),
        (["r1", "x", "r2", "r3"], [0, 1], "1 of them belong to other records nearby"),
    ],
)
def test_ids_of_other_rows_are_found_one_by_one(
    ids: list[str | None], wrong: list[int], how: str | None, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.string())])
    stores = []
    for kind, names in (("records", ["r0", "r1", "r2", "r3"]), ("images", ["r0", "r1", "r2", "r3"]), ("tokens", ids)):
        writer = StoreWriter(tmp_path / kind, kind=kind, schema=schema, shard_rows=3)
        writer.append({"id": names})
        writer.finish()
        stores.append(ShardStore.open(tmp_path / kind))
    found = Findings()
    check_ids(found, *stores)
    if how is None:
        assert (found.findings, found.rows) == ([], {})
        return
    (entry,) = found.findings
    assert found.rows["alignment"].tolist() == wrong
    assert entry.message.startswith(
        f"{len(wrong)} rows of tokens have another id than the record in the same row ({how}"
    )
    assert entry.examples == tuple(f"row {row}: record r{row}, tokens {ids[row]}" for row in wrong)
    assert str(tmp_path / "tokens") in entry.remedy
    assert "run the ingestion pipeline again" in entry.remedy


@pytest.mark.parametrize("long", range(5))
def test_the_longest_text_is_that_of_all_windows(long: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_ROWS", 2)
    lengths = [6 if row == long else 1 + row % 3 for row in range(5)]
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("length", pa.int32())])
    writer = StoreWriter(tmp_path, kind="tokens", schema=schema, shard_rows=3)
    writer.append({"id": [f"r{row}" for row in range(5)], "input_ids": [[1] * n for n in lengths], "length": lengths})
    writer.finish(meta={"splits": {"train": {"tokens": 100, "unknown": 1}, "test": {"tokens": 10, "unknown": 2}}})
    found = Findings()
    tokenizer: Any = SimpleNamespace(max_length=3, vocab_size=9, pad_id=7, mask_id=8)
    check_tokens(found, ShardStore.open(tmp_path), tokenizer=tokenizer)
    length, unknown = found.findings
    assert length.message == "1 rows have more tokens than tokenizer.max_length = 3 (longest 6)."
    assert length.examples == (f"r{long}",)
    assert (unknown.count, unknown.message) == (2, "20.00 % of the tokens of split 'test' are unknown.")
