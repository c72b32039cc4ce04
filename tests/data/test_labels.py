"""Labels: what is read from the records, what is refused with a reason, and the stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.errors import ConfigurationError, ValidationError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, complete_specials
from mm_ldlm.data.latents.checks import Outcome
from mm_ldlm.data.latents.findings import enforce
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.families.classification import labels
from mm_ldlm.families.classification.text_labels import num_words

ANSWERS = ("first", "second", "similar")


def records_of(root: Path, *rows: tuple[str, Any]) -> ShardStore:
    """A record store of (split, meta); meta is a dictionary or None."""
    texts = [f"text {number}" for number in range(len(rows))]
    writer = StoreWriter(root / "records", kind="records", schema=RECORD_SCHEMA, shard_rows=3)
    writer.append({
        "id": [record_id(text) for text in texts], "text": texts, "source": ["s"] * len(rows),
        "split": [split for split, _ in rows],
        "meta": [None if meta is None else json.dumps(meta) for _, meta in rows],
    })  # fmt: skip
    writer.finish()
    return ShardStore.open(root / "records")


def test_classes_are_the_sorted_labels_of_the_training_split(tmp_path: Path) -> None:
    records = records_of(
        tmp_path, ("train", {"topic": "b"}), ("train", {"topic": "a"}), ("test", {"topic": "a"}),
        ("test", {"topic": "c"}), ("train", None), ("train", {"topic": None}), ("train", {"topic": 1.5}),
        ("train", {"topic": 7}), ("validation", {"topic": " 7 "}),
    )  # fmt: skip
    found = labels.read_labels(records, key="topic")
    assert found.names == ("7", "a", "b")
    assert found.number_n.tolist() == [2, 1, 1, -1, -1, -1, -1, 0, 0]
    assert {reason: rows.tolist() for reason, rows in found.failing.items()} == {
        "no_label": [4, 5, 6], "unknown_label": [3]
    }  # fmt: skip


def test_the_number_of_words_is_a_class_up_to_99() -> None:
    assert [num_words("a " * count) for count in (0, 7, 98, 99, 100, 500)] == ["00", "07", "98", "99", "99", "99"]


def test_zero_and_false_are_labels(tmp_path: Path) -> None:
    records = records_of(tmp_path, *[("train", {"label": value}) for value in (0, False, 1, "0", "", "  ")])
    found = labels.read_labels(records, key="label")
    assert (found.names, found.number_n.tolist()) == (("0", "1", "false"), [0, 2, 1, 0, -1, -1])
    assert {reason: rows.tolist() for reason, rows in found.failing.items()} == {"no_label": [4, 5]}


def test_a_label_can_be_a_function_of_the_text(tmp_path: Path) -> None:
    records = records_of(tmp_path, ("train", None), ("train", {"label": "a"}), ("test", None))
    key = "mm_ldlm.families.classification.text_labels:num_words"
    found = labels.read_labels(records, key=key)
    assert (found.names, found.number_n.tolist(), found.failing) == (("02",), [0, 0, 0], {})
    manifest = labels.write_labels(records, records, found, tmp_path / "labels", key=key)
    assert manifest.meta["key"]["name"] == key
    labels.refuse_other_labels(ShardStore.open(tmp_path / "labels"), key=key)
    with pytest.raises(ConfigurationError, match=r"'objective\.label' is 'shape'.* those of '.*:num_words'\. Run"):
        labels.refuse_other_labels(ShardStore.open(tmp_path / "labels"), key="shape")
    with pytest.raises(ConfigurationError, match=r"'objective\.label'.*no callable 'colour'"):
        labels.read_labels(records, key="mm_ldlm.families.classification.text_labels:colour")


def test_a_comparison_needs_an_answer_and_a_second_text(tmp_path: Path) -> None:
    records = records_of(
        tmp_path, ("train", {"label": "first", "pair": "x"}), ("train", {"label": "better", "pair": "x"}),
        ("train", {"label": "similar"}), ("train", {"label": "first", "pair": 7}), ("test", {"pair": "x"}),
    )  # fmt: skip
    found = labels.read_labels(records, key="label", answers=ANSWERS)
    assert found.names == ("first", "similar")
    assert {reason: rows.tolist() for reason, rows in found.failing.items()} == {
        "unknown_label": [1], "no_pair": [2, 3], "no_label": [4]
    }  # fmt: skip
    assert "no_pair" not in labels.read_labels(records, key="label").failing


def test_the_report_counts_the_rows_that_fail_once(tmp_path: Path) -> None:
    records = records_of(tmp_path, ("train", {"label": "a"}), ("train", None), ("train", {"label": "b"}))
    report = {"rows": 3, "passed": True, "valid": 2, "quarantined": 1, "findings": [], "quarantine": {"empty": 1}}
    outcome = Outcome(report, {"empty": np.array([1])}, None)
    found = labels.with_labels(outcome, labels.read_labels(records, key="label"), key="label")
    assert found.report["quarantine"] == {"empty": 1, "no_label": 1}
    assert (found.report["valid"], found.report["quarantined"], found.report["passed"]) == (2, 1, True)
    assert found.report["classes"] == {"a": 1, "b": 1}
    assert [finding["check"] for finding in found.report["findings"]] == ["no_label"]
    none = labels.with_labels(outcome, labels.read_labels(records, key="topic"), key="topic")
    with pytest.raises(ValidationError, match=r"at least two classes in the training split, found \[\]"):
        enforce(none.report)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_stores_hold_classes_names_and_second_texts(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "_ROWS", at_once)
    records = records_of(
        tmp_path, ("train", {"label": "é", "pair": "w1 w2 w1 w1 w2"}), ("train", {"label": "b"}), ("test", None),
        ("train", {"label": "b", "pair": "w2"}),
    )  # fmt: skip
    read = labels.read_labels(records, key="label")
    manifest = labels.write_labels(records, records, read, tmp_path / "labels", key="label")
    assert (manifest.meta["classes"], manifest.meta["key"]) == (["b", "é"], "label")
    assert manifest.fingerprints == dict.fromkeys(("records", "index"), records.manifest.fingerprint)
    assert ShardStore.open(tmp_path / "labels").fixed("value").take(slice(None))[:, 0].tolist() == [1, 0, -1, 0]
    labels.write_label_names(read, tmp_path / "label_names")
    names = ShardStore.open(tmp_path / "label_names").fixed("value").take(slice(None))
    assert [bytes(row).rstrip(b"\0").decode() for row in names] == ["b", "é"]
    base = Tokenizer(models.WordLevel({"w1": 0, "w2": 1, "[UNK]": 2}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = TextTokenizer(complete_specials(base), max_length=3)
    labels.write_pair_tokens(records, tokenizer, tmp_path / "pairs")
    ids = ShardStore.open(tmp_path / "pairs").fixed("value").take(slice(None))
    pad = tokenizer.pad_id
    assert ids.tolist() == [[0, 1, 0], [pad] * 3, [pad] * 3, [1, pad, pad]]


def test_a_dataset_without_classes_has_a_store_of_no_names(tmp_path: Path) -> None:
    read = labels.read_labels(records_of(tmp_path, ("train", None)), key="label")
    assert labels.write_label_names(read, tmp_path / "names").rows == 0
    assert ShardStore.open(tmp_path / "names").schema.names == ["id", "value"]
