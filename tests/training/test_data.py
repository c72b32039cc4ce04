"""The data of a run: ranks without an example, ids behind the vocabulary, and what a run does not have."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch

from mm_ldlm.core.config import to_dict
from mm_ldlm.data.dataset import commit
from mm_ldlm.families.atat.objective import frequency_prior
from mm_ldlm.training.build import untrained_root
from mm_ldlm.training.data import StoreSource, open_data, stores_of_fields, token_counts
from mm_ldlm.training.plan import plan

FIELDS = ("latents", "images", "labels", "token_states", "pair_tokens")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("stores")
    helpers.write_stores(found)
    (found / "runs").mkdir()
    return found


def test_the_stores_of_vectors_come_with_their_normaliser() -> None:
    assert stores_of_fields(("labels", "latents", "images", "token_states", "pair_tokens")) == (
        "labels", "latents", "normaliser", "images", "image_normaliser", "token_states", "state_normaliser",
        "pair_tokens",
    )  # fmt: skip
    assert stores_of_fields(()) == ()


def test_a_rank_without_an_example_reads_arrays_without_rows(root: Path) -> None:
    """As the last batch of an epoch gives it, if it has fewer examples than there are ranks."""
    source = StoreSource(helpers.commit_dataset(root), "train", fields=FIELDS)
    none = np.empty(0, np.int64)
    assert source.tokens(none, length=12).shape == (0, 12)
    for name in FIELDS:
        some, empty = source.field(name, np.array([0, 3])), source.field(name, none)
        assert len(empty) == 0, name
        assert (empty.dtype, empty.ndim, empty.shape[2:]) == (some.dtype, some.ndim, some.shape[2:]), name


class Ids:
    """Texts of given ids."""

    def __init__(self, *texts: list[int]) -> None:
        self.texts, self.lengths, self.pad_id = texts, np.array([len(text) for text in texts]), 0

    def tokens(self, rows: Any, *, length: int) -> Any:
        return np.array([(self.texts[row] + [self.pad_id] * length)[:length] for row in rows])

    def field(self, name: str, rows: Any) -> Any:
        raise AssertionError("only tokens are counted")


@pytest.mark.parametrize(
    ("pad", "mask", "size"), [(0, 1, 6), (6, 1, 7), (1, 8, 9), (9, 8, 10)], ids=["inside", "pad", "mask", "both"]
)
def test_every_id_is_counted_also_behind_the_vocabulary_and_pads_are_none(pad: int, mask: int, size: int) -> None:
    """Six words; pad and mask may lie behind them."""
    source = Ids([2, 3, 3], [5, 3], [2])
    source.pad_id = pad
    shape = dataclasses.replace(helpers.SHAPE, vocab_size=6, pad_id=pad, mask_id=mask, max_length=4)
    assert token_counts(source, shape).tolist() == [0, 0, 2, 3, 0, 1] + [0] * (size - 6)


def test_a_run_without_held_out_examples_has_no_validation(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path, 16, splits=("train",))
    (tmp_path / "runs").mkdir()
    found = open_data(helpers.planned(tmp_path), tmp_path / "runs")
    assert found.validation is None
    assert len(found.train.lengths) == 16


def test_token_vectors_are_read_only_by_models_that_start_from_them(root: Path) -> None:
    names = (*helpers.STORES, "token_vectors")
    dataset = commit(root / "with_vectors", stores={name: root / name for name in ("records", *names)})
    for kind in ("encoder", "random"):
        base = helpers.spec(model={"depth": 1, "token_vectors": kind}, run_name=None)
        spec = plan(
            dataset, runs=root / "runs", model=to_dict(base.model), objective=to_dict(base.objective),
            training=to_dict(base.training), encoder={"name": "none"}, seed=7, tracking={},
        )  # fmt: skip
        found = open_data(spec, root / "runs")
        assert found.shape == spec.shape
        assert ("token_vectors" in spec.fingerprints) is (kind == "encoder")
        if kind == "random":
            assert found.token_vectors is None
            continue
        expected = np.random.default_rng(5).standard_normal((helpers.VOCAB, helpers.DIM)).astype(np.float32)
        assert found.token_vectors is not None
        np.testing.assert_allclose(found.token_vectors, expected, rtol=1e-6)
        assert found.folders.keys() == {"tokenizer", "normaliser"}, "the model has learned them"


def test_the_frequencies_of_words_and_the_length_of_a_curriculum_are_those_of_the_training() -> None:
    """The training texts have other words than those that are held out."""
    spec = helpers.spec(
        model={"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, max_steps=77,
        objective={"kind": "adaptive_masking", "importance": "full", "curriculum": {"pace": "step"}},
    )  # fmt: skip
    data = dataclasses.replace(helpers.data(), validation=helpers.Rows(16, seed=9))  # type: ignore[arg-type]
    objective: Any = untrained_root(spec, data).objective
    rows = helpers.Rows(64)
    ids = rows.tokens(np.arange(64), length=helpers.LONGEST)
    counts = torch.from_numpy(np.bincount(ids[ids != 0], minlength=helpers.VOCAB))
    assert torch.equal(objective.prior_V, frequency_prior(counts, mask_id=helpers.SHAPE.mask_id))
    assert objective.curriculum.steps == 77
