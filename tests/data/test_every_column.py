"""Every column, count and size of the stores of validation, with stores whose numbers all differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.checks import Outcome

from mm_ldlm.data import index as module
from mm_ldlm.data.index import split_column, splits_of, write_index, write_quarantine
from mm_ldlm.data.sentences import sample_rows, texts_of_split
from mm_ldlm.data.store import ShardStore
from mm_ldlm.families.ccdd.token_identity import Classifier, identity_bits
from mm_ldlm.families.classification import labels

TEXTS = [f"w{i} w{(i * 3) % 20}" + " w1" * (i % 4) for i in range(12)]
SPLITS = ["test" if i % 5 == 0 else "validation" if i % 5 == 1 else "train" for i in range(12)]


@pytest.mark.parametrize("rows_at_once", [5, 100])
def test_quarantine_and_index(
    rows_at_once: int, write_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS", rows_at_once)
    data = write_dataset(tmp_path / "data", TEXTS, SPLITS, latents=np.ones((12, 4)))
    ids = data.records.strings("id").take(slice(None))
    failing = {"zero": np.array([7, 3, 11]), "empty": np.array([3, 12])}  # a store may have more rows than the records
    manifest = write_quarantine(data.records, failing, tmp_path / "q")
    quarantine = ShardStore.open(tmp_path / "q")
    assert quarantine.table(slice(None)).to_pylist() == [
        {"row": row, "id": ids[row], "split": SPLITS[row], "reason": reason, "text": TEXTS[row]}
        for row, reason in ((3, "empty"), (3, "zero"), (7, "zero"), (11, "zero"))
    ]
    assert manifest.meta["reasons"] == {"empty": 2, "zero": 3}
    assert manifest.fingerprints == {"records": data.records.manifest.fingerprint}
    manifest = write_index(data.records, data.tokens, data.latents, quarantine, tmp_path / "i")
    index = ShardStore.open(tmp_path / "i", "index")
    valid = [row for row in range(12) if row not in (3, 7, 11)]
    assert index.table(slice(None)).to_pylist() == [
        {"id": ids[row], "row": row, "split": SPLITS[row], "length": len(TEXTS[row].split())} for row in valid
    ]
    assert manifest.meta == {**manifest.meta, "splits": {"train": 4, "validation": 2, "test": 3}, "quarantined": 3}
    stores = {"records": data.records, "tokens": data.tokens, "latents": data.latents, "quarantine": quarantine}
    assert manifest.fingerprints == {name: store.manifest.fingerprint for name, store in stores.items()}
    for split in ("train", "validation", "test"):
        rows = [row for row in valid if SPLITS[row] == split]
        assert split_column(index, split, "row").tolist() == rows
        assert split_column(index, split, "length").tolist() == [len(TEXTS[row].split()) for row in rows]
    assert list(splits_of(index).items()) == [("train", 4), ("test", 3), ("validation", 2)]
    assert list(texts_of_split(data, "train")) == [t for t, s in zip(TEXTS, SPLITS, strict=True) if s == "train"]


def test_rows_are_drawn_without_replacement_and_ascend() -> None:
    rows = np.array([40, 10, 30, 20, 50])
    found = sample_rows(rows, 3, seed=1)
    assert found.tolist() == sorted(set(found.tolist()))
    assert set(found.tolist()) < set(rows.tolist())
    assert sample_rows(rows, 5, seed=1).tolist() == sample_rows(rows, 9, seed=2).tolist() == sorted(rows.tolist())
    assert len({tuple(sample_rows(rows, 3, seed=seed)) for seed in range(20)}) > 4
    drawn = np.concatenate([sample_rows(np.arange(10), 3, seed=seed) for seed in range(2000)])
    np.testing.assert_allclose(np.bincount(drawn) / 2000, 0.3, atol=0.04)


def test_labels_join_the_report_with_their_counts_and_policy() -> None:
    """Rows without a label do not fail the contract, one class does, and no row is counted twice."""
    report = {
        "rows": 20, "passed": True, "valid": 18, "quarantined": 2, "quarantine": {"zero": 2},
        "findings": [{"severity": "warning", "check": "zero"}, {"severity": "info", "check": "note"}],
    }  # fmt: skip
    outcome = Outcome(report, {"zero": np.array([4, 9])}, None)
    number_n = np.array([0, 1, 1, -1, -1, 1])
    read = labels.Labels(("a", "b"), number_n, {"no_label": np.array([3, 4]), "unknown_label": np.array([9])})
    found = labels.with_labels(outcome, read, key="k")
    assert found.failing.keys() == {"zero", "no_label", "unknown_label"}
    assert (found.report["passed"], found.report["valid"], found.report["quarantined"]) == (True, 17, 3)
    assert found.report["quarantine"] == {"no_label": 2, "unknown_label": 1, "zero": 2}
    assert found.report["classes"] == {"a": 1, "b": 3}
    listed = [(entry["severity"], entry["check"]) for entry in found.report["findings"]]
    assert listed == [("warning", "zero"), ("warning", "no_label"), ("warning", "unknown_label"), ("info", "note")]
    for names, passed in ((("a",), False), ((), False)):
        one = labels.with_labels(outcome, labels.Labels(names, np.full(6, len(names) - 1), {}), key="k")
        assert one.report["passed"] == passed
        assert one.report["findings"][0]["check"] == "classes"
    failed = Outcome({**report, "passed": False}, {}, None)
    assert not labels.with_labels(failed, read, key="k").report["passed"]


def test_every_size_of_the_data(write_dataset: Any, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "a", TEXTS, SPLITS, latents=np.ones((12, 4)), max_length=7)
    shape, tokenizer = data.shape, data.tokenizer
    assert (shape.vocab_size, shape.pad_id, shape.mask_id) == (23, tokenizer.pad_id, tokenizer.mask_id)
    assert (shape.max_length, shape.latent_dim, shape.state_dim, shape.image_size) == (7, 4, None, None)
    assert shape.pad_id != shape.mask_id
    assert data.rows("test").tolist() == [0, 5, 10]
    assert data.lengths("test").tolist() == [len(TEXTS[row].split()) for row in (0, 5, 10)]
    assert write_dataset(tmp_path / "b", TEXTS, SPLITS).shape.latent_dim is None


@pytest.mark.parametrize(("noise", "signal"), [(0.3, 1.0), (1.5, 0.7)])
def test_the_bits_of_a_state_about_its_token_are_those_of_two_gaussians(noise: float, signal: float) -> None:
    """Tokens 0 and 1 have the states −1 and 1 with variance 0.25, and 0 is three times as frequent."""
    draw = np.random.default_rng(0)

    def states(count: int) -> tuple[Any, Any]:
        ids = (draw.random(count) < 0.25).astype(np.int64)
        return np.stack([2.0 * ids - 1, np.zeros(count)], 1) + 0.5 * draw.standard_normal((count, 2)), ids

    found = identity_bits(Classifier(*states(20_000), vocab_size=2), *states(40_000), signal=signal, noise=noise)
    z = np.linspace(-9, 9, 20_001)
    spread = signal**2 * 0.25 + noise**2
    density = [p * np.exp(-((z - m) ** 2) / (2 * spread)) / np.sqrt(2 * np.pi * spread)
               for p, m in ((0.75, -signal), (0.25, signal))]  # fmt: skip
    step = z[1] - z[0]
    posterior = [d / sum(density) for d in density]
    remaining = -sum((d * np.log2(np.maximum(p, 1e-300))).sum() for d, p in zip(density, posterior, strict=True)) * step
    entropy = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25))
    assert found.entropy_bits == pytest.approx(entropy, abs=0.02)
    assert found.bits == pytest.approx(entropy - remaining, abs=0.03)
    assert found.accuracy == pytest.approx(np.maximum(*density).sum() * step, abs=0.02)
    assert (found.signal, found.noise) == (signal, noise)


def test_a_dataset_names_its_folder_and_stores(write_dataset: Any, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", TEXTS, SPLITS)
    assert repr(data) == f"Dataset({str(data.directory)!r}, {', '.join(data.names)})"
    assert {"records", "tokens", "index", "tokenizer"} <= set(data.names)
