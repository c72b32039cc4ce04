"""Ancestral sampling against enumerated distributions, `ddpm_cache`, and the times of the denoising loop."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import (
    MASK,
    PROCESSES,
    Exact,
    agrees,
    build,
    canvas,
    constant,
    context,
    on,
    rows,
    sample,
)

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES
from mm_ldlm.sampling.ancestral import chosen_log_probs, reverse_process
from mm_ldlm.sampling.denoising import Grid, State
from mm_ldlm.sampling.registry import text_sampler

EXACT = Exact(torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64))
SCHEDULES = ["log_linear", "cosine", "geometric"]


def unmasked_by(schedule: str, steps: int) -> torch.Tensor:
    """The probability that each step unmasks a mask that is left."""
    alpha = parse_kind(MASK_SCHEDULES, {"kind": schedule}, at="").alpha(torch.linspace(1, 0, steps + 1).double())
    alpha[-1] = 1.0
    return alpha.diff() / (1 - alpha[:-1])


def compare_with_enumeration(kind: str, schedule: str, steps: int, count: int, **settings: Any) -> None:
    chance = unmasked_by(schedule, steps).tolist()
    expected = EXACT.after(steps, unmask=lambda step: chance[step], remask=lambda step: 0.0)
    made = sample(kind, EXACT.denoiser(), canvas(*[2] * count), steps=steps, schedule=schedule, **settings)
    agrees(EXACT.frequencies(made.tokens), expected, count=count)
    assert (expected - EXACT.p_S).abs().max() > 0.005, "few steps are not exact, so that the comparison means something"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("settings", [{}, {"skip_idle": True}, {"timestep": "mask_ratio"}])
def test_samples_have_the_enumerated_distribution(settings: dict[str, Any], schedule: str) -> None:
    compare_with_enumeration("ancestral", schedule, steps=3, count=20_000, **settings)


def test_one_token_a_step_is_the_chain_rule() -> None:
    made = sample("random", EXACT.denoiser(), canvas(*[2] * 40_000), steps=2)
    agrees(EXACT.frequencies(made.tokens), EXACT.p_S, count=40_000)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pitfall_11_unmask_counts_follow_the_schedule(schedule: str) -> None:
    steps, count, length = 8, 2000, 25
    made = sample("ancestral", constant([0.5, 0.5]), canvas(*[length] * count), steps=steps, schedule=schedule)
    chance = unmasked_by(schedule, steps)
    left = torch.cat([torch.ones(1).double(), (1 - chance).cumprod(0)])
    found = torch.bincount(made.steps.flatten(), minlength=steps) / made.steps.numel()
    agrees(found, left[:-1] * chance, count=count * length)


def test_pitfall_11_mask_and_pad_are_never_sampled() -> None:
    """[MASK], [PAD] and ids beyond the vocabulary have a logit of 50 against at most 0 for the words."""
    for process in map(build, PROCESSES):
        made = reverse_process(
            on(constant([0.6, 0.4]), canvas(*[50] * 20), process), text_sampler("ancestral", steps=3)
        )
        if process.traits.predicts_scores:  # scores of two words, so that words without noise of another one stay
            assert made.tokens.max() < MASK
        else:
            assert set(made.tokens.unique().tolist()) == {0, 1}


@pytest.mark.parametrize(("kind", "skip"), [("ancestral", {"skip_idle": True}), ("ddpm_cache", {})])
def test_skipped_calls_change_no_sample(kind: str, skip: dict[str, bool]) -> None:
    tokens_BL = canvas(9, 3, 12, 5, 1, 7)
    plain = sample("ancestral", context(timed=True), tokens_BL, steps=64)
    lazy = sample(kind, context(timed=True), tokens_BL, steps=64, **skip)
    for name in ("tokens", "steps", "log_probs"):
        assert torch.equal(getattr(plain, name), getattr(lazy, name))
    assert (lazy.calls_per_row <= (tokens_BL == MASK).sum(1)).all()
    assert torch.equal(plain.calls_per_row, plain.steps.amax(1) + 1), "until the last mask of the text has gone"


def test_temperature_and_filters_apply_to_the_estimate_of_the_text_and_guidance_before_them() -> None:
    denoise = dataclasses.replace(context(), unconditional=context().logits)
    for process in PROCESSES:
        certain, few, guided, plain = (
            reverse_process(on(denoise, canvas(*[9] * 5), process), text_sampler("ancestral", steps=4, **settings))
            for settings in ({"temperature": 0.0}, {"top_k": 1}, {"guidance": 2.0}, {})
        )
        assert torch.equal(certain.tokens, few.tokens)
        assert torch.equal(guided.tokens, plain.tokens), "guidance by a condition without effect has none"
        assert not torch.equal(certain.tokens, plain.tokens)


def test_the_log_probability_of_a_token_is_that_of_its_word_and_0_for_noise() -> None:
    log_x0_MV = torch.randn(4, 3).log_softmax(1)
    found = chosen_log_probs(log_x0_MV, torch.tensor([0, 2, 3, MASK]))
    assert found.tolist() == pytest.approx([float(log_x0_MV[0, 0]), float(log_x0_MV[1, 2]), 0.0, 0.0])


# -- times of the denoising loop ---------------------------------------------------------------------------------------


def state(tokens_BL: torch.Tensor, *, step: int, grid: Grid) -> State:
    masked_BL = tokens_BL == MASK
    return State(step, grid, tokens_BL, masked_BL, ~masked_BL, torch.zeros(tokens_BL.shape), rows(len(tokens_BL)))


@given(st.sampled_from(SCHEDULES), st.integers(1, 20), st.integers(0, 12), st.integers(0, 12))
def test_a_grid_runs_from_the_mask_ratio_of_a_text_to_that_of_its_closed_masks(
    schedule: str, steps: int, given_tokens: int, closed: int
) -> None:
    process, tokens_BL = build(schedule=schedule), canvas(12, 5)
    tokens_BL[0, :given_tokens] = 1
    open_BL = torch.arange(12)[None].repeat(2, 1) >= closed
    grid = Grid.of(on(None, tokens_BL, process, open=open_BL), steps=steps)
    times = torch.stack([grid.at(step) for step in range(steps + 1)])
    assert (times.diff(dim=0) <= 1e-12).all()
    masks = (tokens_BL == MASK).sum(1)
    left = ((tokens_BL == MASK) & ~open_BL).sum(1)
    for at, count in ((times[0], masks), (times[-1], left)):
        ratio = 1 - process.mask_schedule.alpha(at)
        assert torch.allclose(ratio, count.double() / torch.tensor([12, 5]), atol=2e-3)
    # the masks follow the schedule, and what the steps unmask together is all of the open masks
    survives, length = torch.ones(2).double(), torch.tensor([12, 5])
    for step in range(steps):
        chance = grid.unmask_fraction(step)
        assert ((chance >= 0) & (chance <= 1)).all()
        survives = survives * (1 - chance)
        expected = ((masks - left) * survives + left) / length
        if step < steps - 1:
            assert torch.allclose(1 - process.mask_schedule.alpha(times[step + 1]), expected, atol=4e-3)
    assert (survives == 0).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_model_receives_the_time_of_the_grid_or_of_the_mask_ratio(schedule: str) -> None:
    process, tokens_BL = build(schedule=schedule), canvas(20, 20)
    grid = Grid.of(on(None, tokens_BL, process), steps=4)
    half_BL = tokens_BL.clone()
    half_BL[1, :10] = 1
    now = state(half_BL, step=1, grid=grid)
    assert now.time("schedule").tolist() == pytest.approx([0.75, 0.75], abs=1e-6)
    ratio_B = 1 - process.mask_schedule.alpha(now.time("mask_ratio"))
    assert ratio_B.tolist() == pytest.approx([1.0, 0.5], abs=2e-3)
