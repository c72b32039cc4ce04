"""The texts of a trial, the batches of its steps, and the random numbers that stand for latents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
from parts import ALONE

from mm_ldlm.models.base import DataShape
from mm_ldlm.training import trial

SHAPE = DataShape(vocab_size=7, pad_id=6, mask_id=1, max_length=4, latent_dim=3)


class Column:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def column(self, name: str) -> Any:
        assert name == "text"
        return SimpleNamespace(to_pylist=lambda: self.texts)


class Records:
    """Ten texts, of which the first shard has nine; text r is the word r."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def __len__(self) -> int:
        return 10

    def bounds(self, shard: int) -> tuple[int, int]:
        return {0: (0, 9), 1: (9, 10)}[shard]

    def take(self, rows: Any) -> Column:
        self.taken = rows.tolist()
        return Column([str(row) for row in self.taken])


class Tokenizer:
    """Each text has its word twice and the word 0; base ids are 100 more than those of a reduced vocabulary."""

    pad_id, mask_id, unk_id, vocab_size = 6, 1, 2, 50

    def __init__(self) -> None:
        self.kept: list[int] = []

    def encode_base(self, texts: list[str]) -> Any:
        ids = [value for text in texts for value in (100 + int(text), 100 + int(text), 100)]
        return np.array(ids), np.arange(0, len(ids) + 1, 3)

    def with_vocabulary(self, values: Any) -> Any:
        self.kept = values.tolist()
        return SimpleNamespace(vocab_size=8, pad_id=16, mask_id=11, from_base=self.from_base)

    @staticmethod
    def from_base(values: Any) -> Any:
        return values - 100


@pytest.mark.parametrize(("most", "rows"), [(3, [0, 4, 8]), (2, [0, 8]), (9, list(range(9))), (4096, list(range(9)))])
def test_texts_are_taken_at_equal_distances_from_the_first_shard(
    most: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    records: Any = Records()
    monkeypatch.setattr(trial, "TEXTS", most)
    monkeypatch.setattr(trial, "load_tokenizer", lambda config: Tokenizer())
    config: Any = SimpleNamespace(reduce_vocabulary=False, max_length=2)
    texts, shape = trial.sample_of(records, config, latent_dim=5)
    assert records.taken == rows
    assert [ids.tolist() for ids in texts] == [[row, row] for row in rows], "cut at the longest text"
    assert shape == DataShape(vocab_size=50, pad_id=6, mask_id=1, max_length=2, latent_dim=5)


def test_a_reduced_vocabulary_is_that_of_the_sample_and_its_size_that_of_the_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, tokenizer = Records(), Tokenizer()
    asked: list[tuple[int, float]] = []
    monkeypatch.setattr(trial, "TEXTS", 5)
    monkeypatch.setattr(trial, "load_tokenizer", lambda config: tokenizer)
    config: Any = SimpleNamespace(reduce_vocabulary=True, max_length=9)
    for estimate, size in ((33, 33), (4, 8), (99, 50)):

        def extrapolated(values: Any, *, factor: float, estimate: int = estimate) -> int:
            asked.append((len(values), factor))
            return estimate

        monkeypatch.setattr(trial, "extrapolated", extrapolated)
        texts, shape = trial.sample_of(records, config, latent_dim=5)  # type: ignore[arg-type]
        assert (shape.vocab_size, shape.pad_id, shape.mask_id) == (size, 16, 11)
    assert asked == [(15, 10 / 5)] * 3
    assert tokenizer.kept == [100, 102, 104, 106, 108]
    assert [ids.tolist() for ids in texts] == [[row, row, 0] for row in (0, 2, 4, 6, 8)]


def test_the_sample_is_repeated_with_pads_and_latents_of_its_texts() -> None:
    source = trial.Sample([np.array([3]), np.array([4, 5])], shape=SHAPE, rows=5)
    rows = np.array([4, 1, 3])
    assert source.lengths.tolist() == [1, 2, 1, 2, 1]
    assert source.tokens(rows, length=3).tolist() == [[3, 6, 6], [4, 5, 6], [4, 5, 6]]
    latents = source.field("latents", rows)
    assert (latents.shape, latents.dtype) == ((3, 3), np.float32)
    assert latents[1].tolist() == latents[2].tolist() != latents[0].tolist()


@pytest.mark.parametrize(
    ("given", "draws"),
    [({"a": [5, 6], "b": [9]}, (5, 9)), ({"a": list(range(60)), "b": [60, 61, 62, 63]}, (0, 1))],
    ids=["few of each", "one is rare"],
)
def test_the_first_step_is_small_and_the_others_are_whole_batches(
    given: dict[str, list[int]], draws: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight examples for each process: it creates the kernels, and is not counted."""
    batches = [(np.arange(50), 8), (np.arange(30), 4)]
    steps: list[tuple[int, int, int]] = []

    class Rank:
        def __init__(self, *_: Any) -> None:
            self.loader = SimpleNamespace(plan=SimpleNamespace(epoch=lambda number: batches))

        def draws_by_kind(self, batch: Any) -> dict[str, list[int]]:
            assert batch is batches[0]
            return given

        def step(self, batch: Any, *, draw: int) -> None:
            steps.append((len(batch[0]), batch[1], draw))

    monkeypatch.setattr(trial, "_Rank", Rank)
    for world, small in ((1, 8), (3, 24), (9, 50)):
        steps.clear()
        found = trial.trial_steps(None, None, SimpleNamespace(world=world))  # type: ignore[arg-type]
        assert steps[0] == (small, 8, 0)
        assert [step[:2] for step in steps[1:]] == [(50, 8), (30, 4)]
        assert found["measured"] == 2
        assert tuple(draw for *_, draw in steps[1:]) == draws, "rare kinds are left out, unless all of them are"


def test_the_kinds_of_a_trial_are_those_of_its_steps_the_most_frequent_first() -> None:
    rank = trial._Rank(
        helpers.spec(model={"depth": 1}, objective={"mode": "sequential", "sequential_steps": 3}, max_steps=600),
        helpers.data(), ALONE,
    )  # fmt: skip
    found = rank.draws_by_kind(rank.loader.plan.epoch(0)[0])
    counts = [len(draws) for draws in found.values()]
    assert sum(counts) == trial.DRAWS == 64
    assert counts == sorted(counts, reverse=True)
    planned = rank._planned((np.array([3, 8]), 12))
    lengths = helpers.data().train.lengths
    assert (planned.examples.tolist(), planned.length, planned.full_size) == ([3, 8], 12, 2)
    assert planned.tokens == lengths[3] + lengths[8]
