"""Sentences, ids, labels and sizes row by row: in the order that is asked for, from the stores that have them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.checks import Outcome

from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.data import Dataset, commit
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.dataset import values
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.sentences import held_out, latents_of, read_sentences, rows_of_ids, texts_of_split
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.families.classification import labels

TEXTS = [f"w{i} w{(i * 7) % 20}" + " w3" * (i % 4) for i in range(20)]
SPLITS = ["test" if i % 4 == 0 else "validation" if i % 4 == 1 else "train" for i in range(20)]
LATENTS = np.arange(80.0, dtype=np.float32).reshape(20, 4)


@pytest.fixture(scope="module")
def dataset(write_dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made: Dataset = write_dataset(tmp_path_factory.mktemp("rows"), TEXTS, SPLITS, latents=LATENTS, shard_rows=6)
    return made


# -- sentences ---------------------------------------------------------------------------------------------------------

ROWS = np.array([17, 3, 8, 0, 3, 11])


def test_sentences_and_latents_are_in_the_order_of_their_rows(dataset: Dataset) -> None:
    found = read_sentences(dataset, ROWS)
    assert found.texts == tuple(TEXTS[row] for row in ROWS)
    assert found.ids == tuple(record_id(TEXTS[row]) for row in ROWS)
    assert [list(row) for row in found.tokens] == dataset.tokenizer.encode([TEXTS[row] for row in ROWS])
    np.testing.assert_array_equal(found.latents, LATENTS[ROWS])
    np.testing.assert_array_equal(latents_of(dataset, ROWS), LATENTS[ROWS])


def test_rows_are_those_of_the_ids_also_where_one_occurs_twice(dataset: Dataset) -> None:
    ids = [record_id(TEXTS[row]) for row in ROWS]
    assert rows_of_ids(dataset, ids).tolist() == ROWS.tolist()
    assert rows_of_ids(dataset, []).tolist() == []
    with pytest.raises(StoreError, match=r"2 of 8 samples have ids .* \(first: x\)"):
        rows_of_ids(dataset, [*ids[:3], "x", *ids[3:], "y"])


@pytest.mark.parametrize("seed", range(4))
def test_a_part_of_the_sentences_keeps_what_belongs_together(seed: int, dataset: Dataset) -> None:
    whole = read_sentences(dataset, ROWS[[0, 2, 3, 5]])
    part = whole.some(2, seed=seed)
    places = [whole.ids.index(name) for name in part.ids]
    assert (len(part), places) == (2, sorted(places))
    assert part.texts == tuple(whole.texts[place] for place in places)
    assert part.tokens == tuple(whole.tokens[place] for place in places)
    np.testing.assert_array_equal(part.latents, whole.latents[places])
    assert whole.some(9, seed=seed).ids == whole.ids


def test_held_out_sentences_are_those_of_the_split_all_of_them_without_a_number(dataset: Dataset) -> None:
    for split in ("test", "validation", "train"):
        expected = tuple(text for text, own in zip(TEXTS, SPLITS, strict=True) if own == split)
        assert held_out(dataset, count=None, seed=0, split=split).texts == expected
        assert set(held_out(dataset, count=3, seed=0, split=split).texts) < set(expected)
        assert tuple(texts_of_split(dataset, split)) == expected
    assert held_out(dataset, count=None, seed=0).ids == held_out(dataset, count=None, seed=1, split="test").ids


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_each_size_of_the_data_is_that_of_its_own_store(write_dataset: Any, tmp_path: Path) -> None:
    """Latents of 4, states of 5, images of 3 · 2 · 1 numbers; the vectors of tokens are those of another encoder."""
    made = write_dataset(tmp_path, TEXTS, SPLITS, latents=LATENTS, token_vectors=np.ones((23, 4)))
    stores = {name: made.folder(name) for name in made.names}

    def store(name: str, dim: int, **meta: Any) -> None:
        column = "latent" if name == "images" else "value"
        schema = pa.schema([("id", pa.string()), (column, pa.list_(pa.float32(), dim))])
        writer = StoreWriter(tmp_path / name, kind="latents" if name == "images" else name, schema=schema)
        writer.append({"id": [str(i) for i in range(20)], column: [[float(i)] * dim for i in range(20)]})
        writer.finish(meta={"dim": dim, **meta}, fingerprints={"records": made.fingerprints["records"]})
        stores[name] = tmp_path / name

    store("token_states", 5)
    store("images", 6, image_size=[3, 2, 1])
    for name, dim in (("state_normaliser", 5), ("image_normaliser", 6)):
        Normaliser("standard", np.zeros(dim), np.ones(dim), unit_norm=False).save(tmp_path / name)
        stores[name] = tmp_path / name
    writer = StoreWriter(tmp_path / "vectors", kind="latents", schema=latent_store.schema(4, "float32"))
    writer.append(latent_store.table([str(i) for i in range(23)], np.ones((23, 4)), dtype="float32"))
    writer.finish(fingerprints={"tokenizer": made.fingerprints["tokenizer"], "encoder": "other"})
    stores["token_vectors"] = tmp_path / "vectors"

    committed = commit(tmp_path / "target", stores=stores)
    again = Dataset.open(tmp_path / "target")
    for found in (committed, again):
        assert found.fingerprints == committed.fingerprints
        assert found.fingerprints["encoder"] == "0" * 32, "that of the latents"
        shape = found.shape
        assert (shape.latent_dim, shape.state_dim, shape.image_size) == (4, 5, (3, 2, 1))
        assert [found.require(name).dim for name in ("normaliser", "state_normaliser", "image_normaliser")] == [4, 5, 6]
        assert (found.latents.dim, found.images.dim, found.token_vectors.dim) == (4, 6, 4)
        assert len(found.token_vectors) == 23
    assert values(again.images)[7].tolist() == [7.0] * 6
    assert values(again.require("token_states"))[7].tolist() == [7.0] * 5
    for swapped in ("state_normaliser", "image_normaliser", "normaliser"):
        other = stores["image_normaliser" if swapped != "image_normaliser" else "state_normaliser"]
        with pytest.raises(StoreError, match="expected a normaliser of dim"):
            commit(tmp_path / "other", stores=stores | {swapped: other})


def test_a_store_that_was_opened_is_opened_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns keep their mappings; a store that was opened before is checked no more."""
    first = dataset.tokens
    monkeypatch.setattr(ShardStore, "open", lambda *_: pytest.fail("opened again"))
    assert dataset.tokens is first


# -- labels ------------------------------------------------------------------------------------------------------------


def labelled(folder: Path, metas: list[dict[str, Any] | None]) -> ShardStore:
    texts = [f"text {number}" for number in range(len(metas))]
    writer = StoreWriter(folder, kind="records", schema=RECORD_SCHEMA, shard_rows=2)
    writer.append({
        "id": [f"id{number}" for number in range(len(metas))], "text": texts, "source": ["s"] * len(metas),
        "split": ["train"] * len(metas), "meta": [None if meta is None else json.dumps(meta) for meta in metas],
    })  # fmt: skip
    writer.finish()
    return ShardStore.open(folder)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_row_i_of_the_stores_of_labels_is_row_i_of_the_records(
    at_once: int, write_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "_ROWS", at_once)
    metas: list[Any] = [
        {"label": "b", "pair": "w1"},
        None,
        {"label": "a"},
        {"label": "b", "pair": "w2 w2"},
        {"label": 7},
    ]
    records = labelled(tmp_path / "records", metas)
    index: Any = SimpleNamespace(manifest=SimpleNamespace(fingerprint="i"))
    read = labels.read_labels(records, key="label")
    tokenizer: TextTokenizer = write_dataset(tmp_path / "data", TEXTS, SPLITS, max_length=3).tokenizer
    made = [
        labels.write_labels(records, index, read, tmp_path / "labels", key="label"),
        labels.write_pair_tokens(records, tokenizer, tmp_path / "pair_tokens"),
        labels.write_label_names(read, tmp_path / "label_names"),
    ]
    assert [manifest.kind for manifest in made] == ["labels", "pair_tokens", "label_names"]
    own = records.manifest.fingerprint
    assert made[0].fingerprints == {"records": own, "index": "i"}
    assert made[1].fingerprints == {"records": own, "tokenizer": tokenizer.fingerprint}
    assert (made[1].meta["max_length"], made[2].meta["classes"]) == (3, ["7", "a", "b"])
    for manifest in made[:2]:
        assert ShardStore.open(tmp_path / manifest.kind).strings("id").take(slice(None)) == [f"id{i}" for i in range(5)]
    assert ShardStore.open(tmp_path / "label_names").strings("id").take(slice(None)) == ["7", "a", "b"]
    assert values(ShardStore.open(tmp_path / "labels"))[:, 0].tolist() == [2, -1, 1, 2, 0]
    pad = tokenizer.pad_id
    expected = [[1, pad, pad], [pad] * 3, [pad] * 3, [2, 2, pad], [pad] * 3]
    assert values(ShardStore.open(tmp_path / "pair_tokens")).tolist() == expected


def test_each_reason_is_reported_in_its_own_words_and_with_its_key() -> None:
    failing = {reason: np.arange(count) for reason, count in (("no_label", 3), ("unknown_label", 2), ("no_pair", 1))}
    report = {"rows": 9, "passed": True, "findings": [], "quarantine": {}, "valid": 9, "quarantined": 0}
    read = labels.Labels(("a", "b"), np.array([0, 1, -1]), failing)
    found = labels.with_labels(Outcome(report, {}, None), read, key="topic").report["findings"]
    assert [(entry["check"], entry["count"], entry["message"], entry["examples"]) for entry in found] == [
        ("no_label", 3, "3 records have no label.", []),
        ("unknown_label", 2,
         "2 records have a label that does not occur in the training split or is not an answer.", []),
        ("no_pair", 1, "1 records have no second text.", []),
    ]  # fmt: skip
    assert all("Labels are read from 'topic' in the records' meta" in entry["remedy"] for entry in found)


@pytest.mark.parametrize(
    ("written", "key", "words"),
    [
        ("topic", "topic", None),
        ({"name": "m:f", "source": "1"}, "m:f", None),
        ("topic", "shape", r"is 'shape'; the labels of the validated dataset are those of 'topic'\. Run"),
        ({"name": "m:f", "source": "0"}, "m:f", r"those of 'm:f', but the code of its module has changed\. Run"),
        ({"name": "m:g", "source": "1"}, "m:f", r"is 'm:f'; .* those of 'm:g'\. Run"),
        ("topic", "m:f", r"is 'm:f'; .* those of 'topic'\. Run"),
        ({"name": "m:f", "source": "1"}, "topic", r"is 'topic'; .* those of 'm:f'\. Run"),
    ],
)
def test_labels_of_another_key_or_of_other_code_are_refused(
    written: Any, key: str, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "describe_function", lambda name: {"name": name, "source": "1"})
    store: Any = SimpleNamespace(manifest=SimpleNamespace(meta={"key": written}))
    if words is None:
        labels.refuse_other_labels(store, key=key)
        return
    with pytest.raises(ConfigurationError, match=words):
        labels.refuse_other_labels(store, key=key)
