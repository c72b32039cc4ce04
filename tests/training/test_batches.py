from __future__ import annotations

import itertools
import threading
from typing import Any

import helpers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.training.batches import BatchPlan, Loader, deal
from mm_ldlm.training.config import BatchConfig


def plan(count: int = 200, *, seed: int = 0, **settings: Any) -> BatchPlan:
    lengths = np.random.default_rng(1).integers(1, 31, count)
    return BatchPlan(lengths, parse(BatchConfig, settings or {"tokens": 256}, at="batch"), seed=seed, max_length=30)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=200),
    tokens=st.integers(32, 600),
    rows=st.booleans(),
    multiple=st.integers(1, 9),
)
def test_an_epoch_has_every_example_once_and_every_example_fits(
    lengths: list[int], tokens: int, rows: bool, multiple: int
) -> None:
    found = {"examples": max(tokens // 30, 1)} if rows else {"tokens": tokens}
    config = parse(BatchConfig, {**found, "length_multiple": multiple, "example_multiple": 4}, at="batch")
    made = BatchPlan(np.array(lengths), config, seed=3, max_length=30)
    batches = made.epoch(2)
    assert sorted(np.concatenate([rows for rows, _ in batches]).tolist()) == list(range(len(lengths)))
    for rows_, length in batches:
        assert np.array(lengths)[rows_].max() <= length <= 30
        assert len(rows_) <= made.size_of(length)


def test_full_batches_have_few_shapes_and_keep_to_the_budget() -> None:
    made = plan(4000, tokens=512, length_multiple=8)
    batches = made.epoch(0)
    shapes = {(len(rows), length) for rows, length in batches[:-1]}
    assert shapes <= set(made.shapes())
    assert len(shapes) <= 4
    assert all(len(rows) * length <= 512 for rows, length in batches)


def test_the_plan_is_a_function_of_seed_and_epoch() -> None:
    def flat(made: BatchPlan, epoch: int) -> list[int]:
        return np.concatenate([rows for rows, _ in made.epoch(epoch)]).tolist()

    assert flat(plan(), 3) == flat(plan(), 3)
    assert flat(plan(), 3) != flat(plan(), 4)
    assert flat(plan(), 3) != flat(plan(seed=1), 3)


def test_starting_in_the_middle_continues_the_same_batches() -> None:
    made = plan()
    count = len(made.epoch(0))
    whole = list(itertools.islice(made.from_(0, 0), count + 5))
    rest = list(itertools.islice(plan().from_(0, 7), count - 2))
    for a, b in zip(whole[7:], rest, strict=True):
        assert (a.epoch, a.index, a.tokens) == (b.epoch, b.index, b.tokens)
        assert np.array_equal(a.examples, b.examples)
    after = next(plan().from_(0, count))  # a checkpoint at the very end of an epoch
    assert (after.epoch, after.index) == (1, 0)


@pytest.mark.parametrize(("world", "accumulation"), [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (3, 1)])
def test_any_number_of_processes_sees_the_same_global_batch(world: int, accumulation: int) -> None:
    source = helpers.Rows(100)
    config = parse(BatchConfig, {"examples": 12, "accumulation": accumulation}, at="batch")
    planned = next(BatchPlan(source.lengths, config, seed=0, max_length=helpers.LONGEST).from_(0, 0))
    seen: dict[int, int] = {}
    shapes, tokens = set(), 0
    for rank in range(world):
        for batch in deal(
            planned, source, fields=("latents",), rank=rank, world=world, accumulation=accumulation, fill=False
        ):
            shapes.add(tuple(batch.tokens_BL.shape))
            real = batch.examples_B >= 0
            assert np.array_equal(batch.valid_BL.any(1).numpy(), real.numpy())
            tokens += int(batch.valid_BL.sum())
            assert batch.global_size == 12
            assert batch.global_tokens == planned.tokens
            seen |= dict(zip(batch.position_B[real].tolist(), batch.examples_B[real].tolist(), strict=True))
    assert len(shapes) == 1
    assert [seen[i] for i in range(12)] == planned.examples.tolist()
    assert tokens == planned.tokens


def test_fill_keeps_the_shape_of_a_last_small_batch() -> None:
    source = helpers.Rows(21)
    config = parse(BatchConfig, {"examples": 8, "length_multiple": 12}, at="batch")
    made = BatchPlan(source.lengths, config, seed=0, max_length=12)
    last = list(itertools.islice(made.from_(0, 0), 3))[-1]
    assert len(last.examples) == 5
    assert deal(last, source, fields=("latents",), rank=0, world=1, accumulation=1, fill=True)[0].tokens_BL.shape == (
        8,
        12,
    )
    assert deal(last, source, fields=("latents",), rank=0, world=1, accumulation=1, fill=False)[0].tokens_BL.shape == (
        5,
        12,
    )


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_loader_gives_the_plan_and_brings_errors_back(prefetch: int) -> None:
    source = helpers.Rows(40)
    config = parse(BatchConfig, {"examples": 8, "prefetch": prefetch}, at="batch")
    made = BatchPlan(source.lengths, config, seed=0, max_length=12)
    loader = Loader(made, source, fields=("latents",), rank=0, world=1, fill=False)
    batches = loader.from_(0, 2)
    planned, micros = next(batches)
    assert (planned.epoch, planned.index) == (0, 2)
    assert 0 < loader.waited < 60, "the first batch is always waited for"
    assert micros[0].examples_B.tolist() == planned.examples.tolist()
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"], "it prepares nothing more"

    class Broken(helpers.Rows):
        def field(self, name: str, rows: Any) -> Any:
            raise OSError("the disk is gone")

    broken = Loader(made, Broken(40), fields=("latents",), rank=0, world=1, fill=False).from_(0, 0)
    with pytest.raises(OSError, match="the disk is gone"):
        next(broken)


def test_tokens_or_examples_but_not_both() -> None:
    for settings_ in ({}, {"tokens": 10, "examples": 2}):
        with pytest.raises(ConfigurationError, match="set exactly one of tokens, examples"):
            parse(BatchConfig, settings_, at="training.batch")


def test_only_the_fields_that_the_objective_reads_are_read() -> None:
    class WithoutFields(helpers.Rows):
        def field(self, name: str, rows: Any) -> Any:
            raise AssertionError("a text-only run read a field")

    source = WithoutFields(20)
    made = BatchPlan(source.lengths, parse(BatchConfig, {"examples": 8}, at="batch"), seed=0, max_length=12)
    (micro,) = deal(next(made.from_(0, 0)), source, fields=(), rank=0, world=1, accumulation=1, fill=False)
    assert micro.fields == {}


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60), budget=st.integers(1, 3000), seed=st.integers(0, 3)
)
def test_the_step_that_reaches_a_number_of_tokens(lengths: list[int], budget: int, seed: int) -> None:
    config = parse(BatchConfig, {"tokens": 64, "length_multiple": 4, "example_multiple": 2}, at="batch")
    made = BatchPlan(np.array(lengths), config, seed=seed, max_length=30)
    seen = itertools.accumulate(planned.tokens for planned in made.from_(0, 0))
    assert made.steps_until(budget) == next(step for step, total in enumerate(seen, start=1) if total >= budget)


@pytest.mark.parametrize(
    ("tokens", "multiple", "length", "size"),
    [
        (100, 8, 12, 8),
        (96, 8, 12, 8),
        (95, 8, 12, 8),
        (192, 8, 12, 16),
        (191, 8, 12, 8),
        (10, 8, 12, 8),
        (100, 1, 12, 8),
    ],
)
def test_the_examples_of_a_budget_of_tokens(tokens: int, multiple: int, length: int, size: int) -> None:
    config = BatchConfig(tokens=tokens, example_multiple=multiple)
    assert BatchPlan(np.array([5]), config, seed=0, max_length=12).size_of(length) == size


@pytest.mark.parametrize(("length", "padded"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, 10), (10, 10)])
def test_lengths_are_padded_to_a_multiple_within_the_model(length: int, padded: int) -> None:
    plan = BatchPlan(np.array([length]), BatchConfig(examples=1, length_multiple=4), seed=0, max_length=10)
    assert [length for _, length in plan.epoch(0)] == [padded]
    assert plan.shapes() == [(1, padded)]


def test_every_epoch_of_a_plan_has_an_order_of_its_own() -> None:
    """Also one that goes back to an earlier epoch after a later one, as a roll-back does."""
    made = plan(60)
    counts = [len(made.epoch(number)) for number in range(3)]
    found = list(itertools.islice(made.from_(0, 0), sum(counts)))
    for number in (2, 0, 1):
        batches = [each.examples.tolist() for each in found if each.epoch == number]
        assert batches == [rows.tolist() for rows, _ in plan(60).epoch(number)]
        assert batches == [rows.tolist() for rows, _ in made.epoch(number)]
    orders = [np.concatenate([each.examples for each in found if each.epoch == n]).tolist() for n in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_batches_come_as_their_buckets_fill_and_not_by_length() -> None:
    """Sorted by length, an epoch would be a course from short texts to long ones."""
    made = plan(4000, tokens=512, length_multiple=8)
    lengths = [length for _, length in made.epoch(0)]
    assert set(lengths[:20]) == set(lengths) == {8, 16, 24, 30}
    changes = sum(a != b for a, b in itertools.pairwise(lengths))
    assert changes > len(lengths) / 3
    order = np.random.default_rng([0, 0]).permutation(4000)
    place = np.empty(4000, np.int64)
    place[order] = np.arange(4000)
    filled = [int(place[rows].max()) for rows, _ in made.epoch(0)[:-1]]
    assert filled == sorted(filled), "a batch is next when its last example is reached"


def test_a_closed_loader_ends_its_thread() -> None:
    source = helpers.Rows(40)
    config = parse(BatchConfig, {"examples": 8, "prefetch": 1}, at="batch")
    loader = Loader(
        BatchPlan(source.lengths, config, seed=0, max_length=12), source, fields=(), rank=0, world=1, fill=False
    )  # fmt: skip
    before = set(threading.enumerate())
    batches = loader.from_(0, 0)
    next(batches)
    (thread,) = set(threading.enumerate()) - before
    batches.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
