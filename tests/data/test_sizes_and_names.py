"""Numbers of validation in closed form: frequencies, means and draws of tokens, names in bytes, one shard of index."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.checks import Outcome

from mm_ldlm.data import Dataset
from mm_ldlm.data.index import splits_of, write_index, write_quarantine
from mm_ldlm.data.sentences import sample_rows
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.families.ccdd.token_identity import Classifier, identity_bits
from mm_ldlm.families.classification import labels
from mm_ldlm.families.classification.labels import Labels, write_label_names


def test_frequencies_and_means_of_few_tokens_are_shrunk_by_half_a_token() -> None:
    states_nd = np.array([[4.0, 1.0], [8.0, 3.0], [6.0, -1.0], [2.0, 5.0]])
    found = Classifier(states_nd, np.array([0, 0, 0, 1]), vocab_size=3)
    np.testing.assert_allclose(np.exp(found.log_prior_V), np.array([3.5, 1.5, 0.5]) / 5.5)
    np.testing.assert_allclose(
        found.mean_Vd @ found.axes_dd.T, [[18 / 3.5, 3 / 3.5], [2 / 1.5, 5 / 1.5], [0, 0]], atol=1e-12
    )
    assert found.mean_Vd.shape == (3, 2)


def test_states_that_mislead_cost_nothing_where_the_frequencies_are_better() -> None:
    """The means of the fit are those of the other token; a sharpness of 0 leaves the frequencies."""
    draw = np.random.default_rng(0)
    ids = draw.integers(0, 2, 4000)
    states_nd = np.where(ids == 0, -1.0, 1.0)[:, None] + 0.1 * draw.standard_normal((4000, 1))
    classifier = Classifier(states_nd, ids, vocab_size=2)
    found = identity_bits(classifier, -states_nd, ids, signal=1.0, noise=0.1)
    assert found.bits == pytest.approx(0.0, abs=1e-12)
    assert found.accuracy < 0.01


def test_the_prediction_weighs_frequencies_and_states() -> None:
    """A state that is a little nearer to the mean of the rare token belongs to the frequent one."""
    draw = np.random.default_rng(0)
    ids = (draw.random(6000) < 0.1).astype(np.int64)
    states_nd = np.where(ids == 0, -1.0, 1.0)[:, None] + draw.standard_normal((6000, 1))
    found = identity_bits(Classifier(states_nd, ids, vocab_size=2), np.full((400, 1), 0.3), np.zeros(400, np.int64),
                          signal=1.0, noise=0.0)  # fmt: skip
    assert found.accuracy == 1.0


def test_the_noise_follows_the_seed() -> None:
    draw = np.random.default_rng(0)
    ids = draw.integers(0, 2, 300)
    states_nd = np.where(ids == 0, -1.0, 1.0)[:, None] + draw.standard_normal((300, 1))
    classifier = Classifier(states_nd, ids, vocab_size=2)
    found = [identity_bits(classifier, states_nd, ids, signal=0.8, noise=0.6, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert identity_bits(classifier, states_nd, ids, signal=0.8, noise=0.6) == found[0]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_rows_of_a_seed_are_those_that_earlier_versions_drew(seed: int) -> None:
    """Results of earlier versions stay comparable; a number of its own keeps them apart from other draws."""
    rows = np.arange(100, 160)
    expected = np.random.default_rng([seed, 19997]).choice(rows, size=9, replace=False)
    assert sample_rows(rows, 9, seed=seed).tolist() == sorted(expected.tolist())


def test_names_of_classes_are_as_wide_as_the_longest_in_bytes(tmp_path: Path) -> None:
    names = ("ab", "é€", "z")
    manifest = write_label_names(Labels(names, np.zeros(0, np.int64), {}), tmp_path)
    store = ShardStore.open(tmp_path, "label_names")
    found = store.fixed("value").take(slice(None))
    assert (found.shape, found.dtype) == ((3, 5), np.uint8)
    assert [bytes(row) for row in found] == [name.encode().ljust(5, b"\0") for name in names]
    assert (manifest.meta["classes"], manifest.rows, store.strings("id").take([2, 0])) == (list(names), 3, ["z", "ab"])


def test_labels_of_the_training_split_alone_make_classes_and_every_split_has_them() -> None:
    metas = ['{"k": "b"}', '{"k": "a"}', None, '{"k": "c"}', '{"k": "b", "pair": "x"}', '{"k": "z", "pair": 5}']
    splits = ["train", "train", "train", "test", "validation", "train"]
    table = {"text": list("uvwxyz"), "split": splits, "meta": metas}

    def tables(rows: int, *, columns: list[str]) -> Any:
        yield {name: SimpleNamespace(to_pylist=lambda name=name: table[name]) for name in columns}

    class Table(dict[str, Any]):
        def column(self, name: str) -> Any:
            return self[name]

    records: Any = SimpleNamespace(iter_tables=lambda rows, *, columns: map(Table, tables(rows, columns=columns)))
    found = labels.read_labels(records, key="k")
    assert (found.names, found.number_n.tolist(), found.number_n.dtype) == (
        ("a", "b", "z"), [1, 0, -1, -1, 1, 2], np.int64
    )  # fmt: skip
    assert {reason: rows.tolist() for reason, rows in found.failing.items()} == {
        "no_label": [2], "unknown_label": [3]
    }  # fmt: skip
    paired = labels.read_labels(records, key="k", answers=("a", "b", "q"))
    assert (paired.names, paired.number_n.tolist()) == (("a", "b"), [1, 0, -1, -1, 1, -1])
    assert {reason: rows.tolist() for reason, rows in paired.failing.items()} == {
        "no_label": [2], "unknown_label": [3, 5], "no_pair": [0, 1, 2, 3, 5]
    }  # fmt: skip


def test_the_index_of_a_small_corpus_is_one_shard(write_dataset: Any, tmp_path: Path) -> None:
    """A shard of the index is larger than those of other stores, because its rows are small."""
    count = 1300
    ids = [f"id{number}" for number in range(count)]
    splits = ["train" if number % 3 else "test" for number in range(count)]
    data = write_dataset(tmp_path / "data", ["w1 w2"] * count, splits, ids=ids, shard_rows=2000)
    write_quarantine(data.records, {"zero": np.array([5, 6])}, tmp_path / "q")
    manifest = write_index(data.records, data.tokens, None, ShardStore.open(tmp_path / "q"), tmp_path / "i")
    assert [shard.rows for shard in manifest.shards] == [count - 2]
    assert manifest.kind == "index"
    index = ShardStore.open(tmp_path / "i")
    assert list(splits_of(index).items()) == [("train", splits.count("train") - 1), ("test", splits.count("test") - 1)]
    assert index.strings("id").take([4, 5, count - 3]) == ["id4", "id7", f"id{count - 1}"]


def test_the_manifest_of_a_dataset_as_a_whole(write_dataset: Any, tmp_path: Path) -> None:
    latents = np.random.default_rng(0).normal(size=(3, 4))
    made = write_dataset(tmp_path, ["w1", "w2 w3", "w4"], ["train", "test", "train"], latents=latents,
                         token_vectors=np.ones((23, 4)))  # fmt: skip
    kinds = {"records": "records", "tokens": "tokens", "index": "index", "latents": "latents",
             "token_vectors": "latents", "tokenizer": "tokenizer", "normaliser": "normaliser"}  # fmt: skip
    marks = {name: made.require(name).fingerprint if name in ("tokenizer", "normaliser")
             else Manifest.read(tmp_path / name).fingerprint for name in kinds}  # fmt: skip
    assert json.loads((tmp_path / "dataset" / "dataset.json").read_text()) == {
        "format_version": 1, "fingerprint": fingerprint({**marks, "encoder": "0" * 32}), "encoder": "0" * 32,
        "stores": {name: {"path": f"../{name}", "kind": kind, "fingerprint": marks[name]}
                   for name, kind in kinds.items()},
    }  # fmt: skip
    found = Dataset.open(tmp_path / "dataset")
    assert found.fingerprints == {**marks, "encoder": "0" * 32}
    assert len({*marks.values()}) == len(marks)
    assert set(found.names) == set(kinds)
    assert {name: found.folder(name) for name in kinds} == {name: tmp_path / name for name in kinds}


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_classes_are_an_error_that_counts_them(count: int) -> None:
    report = {"rows": 4, "passed": True, "findings": [], "quarantine": {}, "valid": 4, "quarantined": 0}
    read = Labels(("a",)[:count], np.full(4, count - 1), {})
    (finding,) = labels.with_labels(Outcome(report, {}, None), read, key="k").report["findings"]
    assert finding == {
        "severity": "error", "check": "classes", "count": count, "examples": [],
        "message": f"expected at least two classes in the training split, found {['a'][:count]}.",
        "remedy": "Set objective.label to a key of the records' meta, or label_column of the sources.",
    }  # fmt: skip


def test_the_encoder_of_a_dataset_is_that_of_its_latents(write_dataset: Any, tmp_path: Path) -> None:
    """Vectors of tokens may be those of another one."""
    made = write_dataset(tmp_path, ["w1", "w2"], ["train", "test"], token_vectors=np.ones((23, 4)))
    assert Manifest.read(tmp_path / "token_vectors").fingerprints["encoder"] == "0" * 32
    assert "encoder" not in made.fingerprints
    assert json.loads((tmp_path / "dataset" / "dataset.json").read_text())["encoder"] is None
