"""Batches are a function of seed and epoch: each example once, for any number of ranks, processes and resumes."""

import itertools
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training import task

from mm_ldlm.distributed.process import Process
from mm_ldlm.training.batches import BatchPlan, Loader
from mm_ldlm.training.config import BatchConfig

SIZES = st.one_of(
    st.builds(BatchConfig, examples=st.integers(1, 9), length_multiple=st.integers(1, 6)),
    st.builds(BatchConfig, tokens=st.integers(8, 90), length_multiple=st.integers(1, 6),
              example_multiple=st.integers(1, 4)),
)  # fmt: skip
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=60).map(np.array)
EXAMPLES = task.Examples(task.SHAPE, task.Example(), 40)


def plan(lengths: Any, config: BatchConfig, seed: int = 0) -> BatchPlan:
    return BatchPlan(lengths, config, seed=seed, max_length=12)


@given(lengths=LENGTHS, config=SIZES, epoch=st.integers(0, 3), seed=st.integers(0, 9))
def test_an_epoch_has_each_example_once_in_batches_of_known_shapes(
    lengths: Any, config: BatchConfig, epoch: int, seed: int
) -> None:
    made = plan(lengths, config, seed)
    batches = made.epoch(epoch)
    assert sorted(np.concatenate([examples for examples, _ in batches])) == list(range(len(lengths)))
    for examples, length in batches:
        assert lengths[examples].max() <= length <= 12
        size, step = made.size_of(length), config.example_multiple
        assert (size, length) in made.shapes() or len(examples) < size
        if config.tokens is not None:
            assert size == max(step, next(n for n in range(0, 999, step) if (n + step) * length > config.tokens))
    short = [examples for examples, length in batches if len(examples) < made.size_of(length)]
    assert len(short) <= 1
    assert len(made.epoch(epoch + 1)) == len(batches)


@given(lengths=LENGTHS, config=SIZES, at=st.integers(0, 20))
def test_batches_continue_at_any_place(lengths: Any, config: BatchConfig, at: int) -> None:
    first = list(plan(lengths, config).first(at + 3))
    epoch, index = first[at].epoch, first[at].index
    again = list(itertools.islice(plan(lengths, config).from_(epoch, index), 3))
    assert [each.examples.tolist() for each in again] == [each.examples.tolist() for each in first[at:]]


@given(lengths=LENGTHS, config=SIZES, tokens=st.integers(1, 2000))
def test_the_step_of_a_number_of_tokens_is_the_first_that_reaches_it(
    lengths: Any, config: BatchConfig, tokens: int
) -> None:
    made = plan(lengths, config)
    step = made.steps_until(tokens)
    seen = np.cumsum([planned.tokens for planned in made.first(step)])
    assert seen[-1] >= tokens
    assert step == 1 or seen[-2] < tokens
    assert made.steps_until(int(seen[-1])) == step, "which reaches it exactly"


def test_epochs_and_seeds_have_other_orders() -> None:
    lengths = np.arange(50) % 2 * 8 + 1
    orders = [[each.tolist() for each, _ in plan(lengths, BatchConfig(examples=5), seed).epoch(epoch)]
              for seed in range(3) for epoch in range(3)]  # fmt: skip
    assert len({str(order) for order in orders}) == 9
    assert len({str(lengths[[each[0] for each in order]]) for order in orders}) > 5, "also of the lengths"


@given(
    world=st.integers(1, 5), accumulation=st.integers(1, 4), size=st.integers(1, 30), fill=st.booleans(),
    number=st.sampled_from([0, -1]),
)  # fmt: skip
def test_ranks_and_micro_batches_share_a_batch_without_loss(
    world: int, accumulation: int, size: int, fill: bool, number: int
) -> None:
    made = plan(EXAMPLES.lengths, BatchConfig(examples=size, length_multiple=4, accumulation=accumulation))
    planned = [*made.first(len(made.epoch(0)))][number]  # the last one is smaller
    ranks = [Process(rank=rank, world=world) for rank in range(world)]
    loaders = [Loader(made, EXAMPLES, ("latents",), process, fill=fill) for process in ranks]
    micros = [micro for loader in loaders for micro in loader.make(planned)]
    assert len({len(micro.examples_B) for micro in micros}) == 1
    real = torch.cat([micro.examples_B[micro.real_B] for micro in micros])
    place = torch.cat([micro.position_B[micro.real_B] for micro in micros])
    assert real[place.argsort()].tolist() == planned.examples.tolist()
    assert sum(int(micro.valid_BL.sum()) for micro in micros) == planned.tokens
    for micro in micros:
        assert (micro.global_size, micro.global_tokens) == (len(planned.examples), planned.tokens)
        assert torch.equal(micro.tokens_BL == EXAMPLES.pad_id, ~micro.valid_BL)
        for row, example in zip(micro.fields["latents"], micro.examples_B, strict=True):
            want = EXAMPLES.fields["latents"][example] if example >= 0 else np.zeros(8)
            assert np.array_equal(row.numpy(), want)


def loader(source: Any, *, prefetch: int) -> Loader:
    made = plan(source.lengths, BatchConfig(examples=7, prefetch=prefetch))
    return Loader(made, source, ("latents",), Process(), fill=False)


def test_batches_that_a_thread_prepares_are_those_of_the_loop() -> None:
    found = []
    for prefetch in (0, 1, 5):
        batches = loader(EXAMPLES, prefetch=prefetch).from_(1, 2)
        taken = list(itertools.islice(batches, 12))
        batches.close()
        found.append([(planned.epoch, planned.index, micro.tokens_BL.tolist()) for planned, (micro,) in taken])
    assert found[0] == found[1] == found[2]


def test_sizes_per_device_become_those_of_the_global_batch() -> None:
    assert BatchConfig(examples_per_device=3, accumulation=2).of_processes(4).examples == 24
    found = BatchConfig(tokens_per_device=100, accumulation=3, example_multiple=4).of_processes(2)
    assert (found.tokens, found.example_multiple) == (600, 12)
    kept = BatchConfig(examples=5)
    assert kept.of_processes(4) == kept
