"""Sentences of a split: those of the dataset with their own tokens and latents, and the same ones for the same seed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core import StoreError
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.held_out import held_out, rows_of_ids, texts_of_split

TEXTS = [f"w{i} w{(i * 7) % 20}" for i in range(20)] + [f"w{i} w{(i * 3) % 20} w5" for i in range(20)]
SPLITS = ["test" if i % 4 == 0 else "train" for i in range(40)]
LATENTS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def dataset(write_dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made: Dataset = write_dataset(tmp_path_factory.mktemp("heldout"), TEXTS, SPLITS, latents=LATENTS, shard_rows=16)
    return made


@settings(max_examples=20)
@given(count=st.none() | st.integers(0, 15), some=st.integers(0, 12), seed=st.integers(0, 9))
def test_sentences_have_their_own_texts_tokens_and_latents(
    dataset: Dataset, count: int | None, some: int, seed: int
) -> None:
    found = held_out(dataset, count=count, seed=seed, split="test")
    again = held_out(dataset, count=count, seed=seed, split="test")
    assert found.ids == again.ids
    assert len(found) == min(10, 10 if count is None else count)
    for each in (found, found.some(some, seed=seed)):
        rows = [TEXTS.index(text) for text in each.texts]
        assert rows == sorted({*rows})
        assert all(SPLITS[row] == "test" for row in rows)
        np.testing.assert_array_equal(each.latents, LATENTS[rows])
        assert [*each.sources] == [f"source {row % 3}" for row in rows]
        assert [list(ids) for ids in each.tokens] == dataset.tokenizer.encode(list(each.texts))
        assert rows_of_ids(dataset, each.ids[::-1]).tolist() == rows[::-1]
    assert len(found.some(some, seed=seed)) == min(some, len(found))


def test_other_seeds_draw_other_sentences(dataset: Dataset) -> None:
    assert len({held_out(dataset, count=5, seed=seed, split="test").ids for seed in range(5)}) > 1
    assert len({held_out(dataset, count=9, seed=0, split="test").some(5, seed=seed).ids for seed in range(5)}) > 1


def test_all_texts_of_a_split_are_streamed_in_order(dataset: Dataset) -> None:
    assert list(texts_of_split(dataset, "test")) == TEXTS[::4]
    assert list(texts_of_split(dataset, "validation")) == []


def test_what_a_dataset_does_not_have_is_refused(
    dataset: Dataset, write_dataset: Any, tmp_path: Path, refuses: Any
) -> None:
    with refuses(StoreError, "'validation'", "train", "30"):
        held_out(dataset, count=4, seed=0, split="validation")
    with refuses(StoreError, "1 of 2", "alien"):
        rows_of_ids(dataset, [held_out(dataset, count=1, seed=0, split="test").ids[0], "alien"])
    bare = held_out(write_dataset(tmp_path, TEXTS, SPLITS), count=4, seed=0, split="test")
    assert bare.some(2, seed=0).latents_nd is None
    with refuses(StoreError, "embedding,validation"):
        _ = bare.latents
