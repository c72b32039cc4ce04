"""Samplers that keep the most certain tokens: how many, and which."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import WORDS, canvas, constant, context, denoiser, sample

from mm_ldlm.sampling.orders import masks_left, top_by_row

FIXED = ["confidence", "entropy", "random"]


@pytest.mark.parametrize("counts", ["linear", "cosine"])
@pytest.mark.parametrize("kind", FIXED)
def test_pitfall_11_counts_follow_the_count_schedule(kind: str, counts: Any) -> None:
    steps, lengths = 5, [13, 4, 1, 20]
    made = sample(kind, context(), canvas(*lengths), steps=steps, counts=counts)
    for row, length in enumerate(lengths):
        left = [int(masks_left(torch.tensor([length]), step=step, steps=steps, counts=counts)) for step in range(steps)]
        found = torch.bincount(made.steps[row, :length], minlength=steps).tolist()
        assert found == [before - after for before, after in zip([length, *left], left, strict=False)]
        assert int(made.calls_per_row[row]) == sum(count > 0 for count in found)


@given(st.integers(1, 40), st.integers(1, 30), st.sampled_from(["linear", "cosine"]))
def test_masks_decrease_to_none(count: int, steps: int, counts: Any) -> None:
    left = [int(masks_left(torch.tensor([count]), step=step, steps=steps, counts=counts)) for step in range(steps)]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    done = [(step + 1) / steps for step in range(steps)]
    exact = [count * (math.cos(part * math.pi / 2) if counts == "cosine" else 1 - part) for part in done]
    assert all(now - 1e-6 < value < now + 1 + 1e-6 for now, value in zip(left, exact, strict=True)), "rounded down"
    even = [int(masks_left(torch.tensor([count * steps]), step=n, steps=steps, counts="linear")) for n in range(steps)]
    assert even == [count * (steps - 1 - n) for n in range(steps)]


def ranked(kind: str, probabilities: list[list[float]], **settings: Any) -> list[int]:
    """The positions of one text in the order in which they are unmasked, by a model of these distributions."""
    table_LV = torch.zeros(len(probabilities), WORDS)
    for place, row in enumerate(probabilities):
        table_LV[place, : len(row)] = torch.tensor(row)
    denoise = denoiser(lambda tokens_AL, t_A, rows_A: table_LV.log().clamp_min(-60).expand(len(tokens_AL), -1, -1))
    made = sample(kind, denoise, canvas(len(probabilities)), steps=len(probabilities), temperature=0.0, **settings)
    return made.steps[0].argsort().tolist()


def test_each_order_ranks_by_its_own_statistic() -> None:
    broad = [0.6] + [0.4 / 7] * 7  # the most probable word, of many words
    twins = [0.55, 0.45]  # the lowest entropy
    three = [0.58, 0.22, 0.2]
    assert ranked("confidence", [three, twins, broad]) == [2, 0, 1]
    assert ranked("entropy", [broad, three, twins]) == [2, 1, 0]
    assert ranked("confidence", [[0.5, 0.45, 0.05], [0.45, 0.2, 0.2, 0.15]]) == [0, 1]


def test_random_orders_are_uniform() -> None:
    made = sample("random", constant([0.5, 0.5]), canvas(*[4] * 4000), steps=4)
    first = torch.bincount((made.steps == 0).int().argmax(dim=1), minlength=4) / 4000
    assert (first - 0.25).abs().max() < 0.035


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9), st.integers(0, 9))
def test_the_highest_scores_are_selected_and_the_earlier_position_wins_a_tie(scores: list[float], count: int) -> None:
    found = top_by_row(torch.tensor([scores], dtype=torch.float64), torch.tensor([count]))[0]
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]
    assert found.nonzero().flatten().tolist() == sorted(expected)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 1.0])
def test_a_threshold_keeps_what_is_above_it_and_at_least_one_token(threshold: float) -> None:
    made = sample("threshold", context(sharpness=2.0), canvas(10, 6), steps=50, threshold=threshold)
    for row, length in enumerate((10, 6)):
        for step in range(int(made.calls_per_row[row]) - 1):
            kept = made.log_probs[row][made.steps[row] == step].exp()
            assert len(kept) == 1 or (kept > threshold).all()
        assert int(made.calls_per_row[row]) <= length
    assert threshold not in (0.0, 1.0) or made.calls_per_row.tolist() == ([10, 6] if threshold else [1, 1])
    two = constant([min(threshold + 0.05, 1.0), max(0.95 - threshold, 0.0)])
    above = sample("threshold", two, canvas(3), threshold=threshold, temperature=0.0)
    assert above.model_calls == (1 if threshold < 1 else 3)
