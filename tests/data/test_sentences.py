"""Held-out sentences: from one split, the same for the same seed, with the fields of the dataset."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data import Dataset
from mm_ldlm.data.sentences import held_out, images_of, labels_of, rows_of_ids, texts_of_split

TEXTS = [f"w{i} w{(i * 7) % 20}" for i in range(20)] + [f"w{i} w{(i * 3) % 20} w5" for i in range(20)]
SPLITS = ["test" if i % 4 == 0 else "train" for i in range(40)]
LATENTS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def dataset(write_dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made: Dataset = write_dataset(tmp_path_factory.mktemp("heldout"), TEXTS, SPLITS, latents=LATENTS, shard_rows=16)
    return made


def test_sentences_carry_their_texts_tokens_and_latents(dataset: Dataset) -> None:
    found = held_out(dataset, count=6, seed=0)
    assert len(found) == 6
    rows = [TEXTS.index(text) for text in found.texts]
    assert all(SPLITS[row] == "test" for row in rows)
    assert found.latents_nd is not None
    np.testing.assert_array_equal(found.latents_nd, LATENTS[rows])
    assert [list(row) for row in found.tokens] == dataset.tokenizer.encode(list(found.texts))
    assert rows_of_ids(dataset, found.ids).tolist() == rows
    part = found.some(3, seed=1)
    assert set(part.ids) < set(found.ids)
    np.testing.assert_array_equal(part.latents_nd, found.latents_nd[[found.ids.index(i) for i in part.ids]])


def test_the_same_seed_draws_the_same_sentences(dataset: Dataset) -> None:
    draws = [held_out(dataset, count=5, seed=seed).ids for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert len(held_out(dataset, count=99, seed=0)) == 10


def test_without_latents_sentences_have_none(write_dataset: Any, tmp_path: Path) -> None:
    found = held_out(write_dataset(tmp_path, TEXTS, SPLITS), count=4, seed=0)
    assert found.latents_nd is None
    with pytest.raises(StoreError, match="found a dataset without latents"):
        _ = found.latents
    assert found.some(2, seed=0).latents_nd is None


def test_an_empty_split_is_refused_with_what_there_is(dataset: Dataset) -> None:
    with pytest.raises(StoreError, match=r"'dev', found \{'train': 30, 'test': 10\} in the index.*sampling.split"):
        held_out(dataset, count=4, seed=0, split="dev")


def test_ids_of_another_dataset_are_refused(dataset: Dataset) -> None:
    with pytest.raises(StoreError, match=r"1 of 1 samples have ids that the index does not contain \(first: alien\)"):
        rows_of_ids(dataset, ["alien"])


def test_records_and_tokens_of_other_rows_are_refused(write_dataset: Any, tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "a", TEXTS, SPLITS)
    other = write_dataset(tmp_path / "b", TEXTS[::-1], SPLITS)
    made.require("index")
    shutil.rmtree(made.folder("tokens"))
    shutil.copytree(other.folder("tokens"), made.folder("tokens"))
    made._stores["tokens"]["fingerprint"] = other.fingerprints["tokens"]  # past the check of the fingerprint
    with pytest.raises(StoreError, match="ids of the tokens differ from those of the records"):
        held_out(made, count=4, seed=0)


def test_images_and_labels_of_rows_are_in_the_order_of_the_rows() -> None:
    pixels = np.arange(48.0).reshape(4, 12).astype(np.float32)
    metas = ['{"label": "a"}', None, '{"label": 7, "other": 1}', "{}"]
    store = SimpleNamespace(take=lambda rows: pixels[rows], manifest=SimpleNamespace(meta={"image_size": [2, 3, 2]}))
    records = SimpleNamespace(take=lambda rows: pa.table({"meta": pa.array([metas[row] for row in rows], pa.string())}))
    data: Any = SimpleNamespace(require=lambda name: {"images": store}[name], records=records)
    rows = np.array([3, 0, 2])
    np.testing.assert_array_equal(images_of(data, rows), pixels[rows].reshape(3, 2, 3, 2))
    assert labels_of(data, rows) == [None, "a", "7"]
    assert labels_of(data, np.array([1])) == [None]
    metas[:] = ['{"label": 0}', '{"label": "0"}', '{"label": null}', '{"label": false}']
    assert labels_of(data, np.arange(4)) == ["0", "0", None, "False"]


def test_texts_of_a_split_are_streamed(dataset: Dataset) -> None:
    found = list(texts_of_split(dataset, "test"))
    assert found == [text for text, split in zip(TEXTS, SPLITS, strict=True) if split == "test"]
