"""Orders of unmasking: by count, threshold, entropy and block."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mm_ldlm.sampling.threshold import entropy_prefix

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.orders import masks_left

MASK, PAD = 8, 9
BY_COUNT = ["confidence", "margin", "entropy", "random"]


def fixed(*distributions):
    """A distribution for each position, whatever the tokens."""
    logits = torch.tensor(distributions, dtype=torch.float64).log().float()
    return TextDenoiser.dense(
        lambda tokens, t: logits[: tokens.shape[1]].expand(len(tokens), -1, -1),
        mask_id=MASK,
        pad_id=PAD,
        vocab_size=logits.shape[1],
    )


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from(["linear", "cosine"]))
@settings(max_examples=150, deadline=None)
def test_masks_left_falls_to_zero_and_starts_below_all(masks, steps, counts):
    left = [masks] + [
        int(masks_left(torch.tensor([masks]), step=step, steps=steps, counts=counts)) for step in range(steps)
    ]
    assert left[-1] == 0
    assert all(a >= b for a, b in itertools.pairwise(left))
    if counts == "linear":
        assert left[1] < masks or steps == 0
        fractions = [a - b for a, b in itertools.pairwise(left)]
        assert max(fractions) - min(fractions) <= 1


@pytest.mark.parametrize("kind", BY_COUNT)
@pytest.mark.parametrize("counts", ["linear", "cosine"])
def test_pitfall_11_counts_follow_the_count_schedule(kind, counts, context_denoiser, canvas, rows, write):
    lengths, steps = (24, 10, 3), 6
    sample = write(kind, context_denoiser(), canvas(*lengths), rows(3), steps=steps, counts=counts)
    for row, length in enumerate(lengths):
        found = torch.bincount(sample.steps[row][sample.steps[row] >= 0], minlength=steps)
        left = [length] + [
            int(masks_left(torch.tensor([length]), step=step, steps=steps, counts=counts)) for step in range(steps)
        ]
        assert found.tolist() == [a - b for a, b in itertools.pairwise(left)]
        assert int(sample.calls_per_row[row]) == int((found > 0).sum())  # idle steps cost nothing


def test_orders_rank_by_their_own_measure(rows, write):
    # position 0: best token most confident; 1: best margin; 2: least entropy. (0.5 leads by 0; 0.46 leads by 0.32.)
    distributions = (
        [0.50, 0.499, 0.0005, 0.0003, 0.0001, 0.0001],
        [0.46, 0.14, 0.10, 0.10, 0.10, 0.10],
        [0.495, 0.4949, 0.0101, 0.0, 0.0, 0.0],
    )
    denoise = fixed(*distributions)

    def first(kind):
        return int(write(kind, denoise, torch.full((1, 3), MASK), rows(1), steps=3, temperature=0.0).steps[0].argmin())

    assert first("confidence") == 0
    assert first("margin") == 1
    entropies = [-sum(p * math.log(p) for p in distribution if p) for distribution in distributions]
    assert first("entropy") == entropies.index(min(entropies))


def test_random_order_is_uniform_over_positions(constant_denoiser, canvas, rows, write):
    sample = write("random", constant_denoiser([0.9, 0.1]), canvas(*[5] * 20_000), rows(20_000), steps=5)
    fraction = (sample.steps == 0).double().mean(0)
    assert (fraction - 0.2).abs().max() < 5 * math.sqrt(0.16 / 20_000)


def test_threshold_unmasks_all_above_it_and_at_least_one(rows, write):
    denoise = fixed([0.95, 0.05], [0.6, 0.4], [0.92, 0.08], [0.55, 0.45])

    def run(threshold, steps=10):
        masks = torch.full((1, 4), MASK)
        return write("threshold", denoise, masks, rows(1), steps=steps, temperature=0.0, threshold=threshold)

    assert run(0.9).steps[0].tolist() == [0, 1, 0, 2]
    assert run(0.5).steps[0].tolist() == [0, 0, 0, 0]
    assert run(0.99).steps[0].tolist() == [0, 2, 1, 3]
    assert run(0.99, steps=2).steps[0].tolist() == [0, 1, 1, 1]  # the last step keeps everything
    assert run(0.9).model_calls == 3


@given(st.lists(st.floats(0, 3), min_size=1, max_size=12), st.floats(0, 4))
@settings(max_examples=200, deadline=None)
def test_entropy_prefix_is_the_largest_that_fits(values, bound):
    found = entropy_prefix(torch.tensor([[*values, math.inf]], dtype=torch.float64), bound=bound)[0]
    assert not found[-1]
    ranked = sorted(range(len(values)), key=lambda i: (values[i], i))
    largest = max(
        size
        for size in range(1, len(values) + 1)
        if sum(values[i] for i in ranked[:size]) - max(values[i] for i in ranked[:size]) <= bound or size == 1
    )
    sums = [sum(values[i] for i in ranked[: s - 1]) for s in range(1, len(values) + 1)]
    if all(abs(x - bound) > 1e-9 for x in sums):
        assert found.nonzero().flatten().tolist() == sorted(ranked[:largest])


def test_entropy_bound_has_its_effect(context_denoiser, canvas, rows, write):
    def calls(bound):
        denoise = context_denoiser(sharpness=4.0)
        return write("entropy_bounded", denoise, canvas(20), rows(1), steps=40, entropy_bound=bound).model_calls

    assert calls(0.0) >= calls(0.5) > calls(5.0) > calls(1000.0) == 1


def test_blocks_go_left_to_right_and_read_no_more_than_the_window(rows, canvas, write):
    lengths = []

    def logits(tokens, t):
        lengths.append(tokens.shape[1])
        return torch.zeros(*tokens.shape, 10)

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=4)
    inner = {"kind": "confidence", "steps": 2}
    sample = write("blocks", denoise, canvas(30, 7), rows(2), window=10, block_length=4, inner=inner)
    assert max(lengths) <= 10
    last = [int(block.max()) for block in sample.steps[0].split(4)]
    first = [int(block.min()) for block in sample.steps[0].split(4)]
    assert all(a < b for a, b in zip(last, first[1:], strict=False))
    with pytest.raises(SamplingError, match="block_length 12 exceeds the 10 positions"):
        write("blocks", denoise, canvas(30), rows(1), window=10, block_length=12, inner=inner)


def test_blocks_read_what_the_blocks_before_wrote(rows, canvas, write):
    """Each position repeats its left neighbour plus one, which only a loop that reads its own output gets right."""

    def logits(tokens, t):
        left = torch.cat([torch.full_like(tokens[:, :1], -1), tokens[:, :-1]], 1)
        want = torch.where(left < 6, left + 1, 0).clamp_min(0) % 6
        return torch.nn.functional.one_hot(want, 10).float() * 30

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=6)
    inner = {"kind": "confidence", "steps": 1}
    sample = write("blocks", denoise, canvas(20), rows(1), window=5, block_length=1, inner=inner)
    tail = sample.tokens[0].tolist()
    assert all((a + 1) % 6 == b for a, b in itertools.pairwise(tail))


@pytest.mark.parametrize(
    "changes",
    [{"inner": {"kind": "ancestral", "steps": 4}}, {"block_length": 3}, {"inner": {"kind": "confidence", "steps": 1}}],
)
def test_block_options_have_their_effect(changes, context_denoiser, rows, canvas, write):
    def run(**more):
        settings = {"inner": {"kind": "confidence", "steps": 4}} | more
        return write("blocks", context_denoiser(), canvas(24), rows(1), **settings).steps

    assert not torch.equal(run(), run(**changes))
