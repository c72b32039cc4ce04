"""Adaptive masks (probabilities that keep the schedule's share, weights with which the loss stays a likelihood), and the curriculum."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, MaskSchedule
from mm_ldlm.families.atat.curriculum import (
    EASY,
    EMPHASIS,
    HARD,
    Curriculum,
    CurriculumConfig,
    Pace,
    factors,
    plateau_after,
    plateau_start,
)
from mm_ldlm.families.atat.masking_policies import MaskRates, mask_rates

POLICIES = ["uniform", "importance", "inverse", "balanced"]
SCHEDULE: MaskSchedule = parse_kind(MASK_SCHEDULES, {"kind": "log_linear"}, at="schedule").build()
each_policy = pytest.mark.parametrize("policy", POLICIES)
texts = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=1, max_size=4)


def rates(policy: Any, importance: Tensor, t: float | Tensor, **options: Any) -> MaskRates:
    valid_BL = ~importance.isnan()
    t_B = torch.as_tensor(t, dtype=torch.float64).expand(len(importance))
    return mask_rates(policy, importance.nan_to_num(), valid_BL, t_B, schedule=SCHEDULE, **options)


def padded(rows: list[list[float]]) -> Tensor:
    """Importance (B, L) of texts of different lengths; NaN where there is no token."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=torch.float64) for row in rows], batch_first=True, padding_value=torch.nan
    )


@each_policy
@settings(max_examples=60)
@given(rows=texts, t=st.floats(1e-4, 1))
def test_masks_are_probabilities_of_tokens_and_of_nothing_else(policy: str, rows: list[list[float]], t: float) -> None:
    importance_BL = padded(rows)
    found = rates(policy, importance_BL, t)
    assert bool(((found.probability_BL >= 0) & (found.probability_BL <= 1)).all())
    assert bool(found.weight_BL.isfinite().all())
    for each in found:
        assert not each[importance_BL.isnan()].any()


@pytest.mark.parametrize("sharpening", [True, False])
@given(rows=texts, t=st.floats(1e-4, 1))
def test_pitfall_21_the_expected_share_of_masks_is_that_of_the_schedule(
    sharpening: bool, rows: list[list[float]], t: float
) -> None:
    importance_BL = padded(rows)
    found = rates("balanced", importance_BL, t, time_sharpening=sharpening)
    share_B = found.probability_BL.sum(dim=1) / (~importance_BL.isnan()).sum(dim=1)
    torch.testing.assert_close(share_B, SCHEDULE.mask_probability(torch.full_like(share_B, t)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_importance_is_sharpened_by_time_and_smoothed_by_temperature(temperature: float) -> None:
    importance_BL = torch.tensor([[0.2, 0.9]], dtype=torch.float64)
    sharp_BL, ratio = importance_BL ** (1 / 0.6), float(SCHEDULE.mask_probability(torch.tensor(0.5).double()))
    for policy, base_BL in (("importance", sharp_BL), ("inverse", 1 - sharp_BL)):
        found_BL = rates(policy, importance_BL, 0.5, temperature=temperature).probability_BL
        torch.testing.assert_close(found_BL, ratio * base_BL ** (1 / temperature))


@each_policy
@pytest.mark.parametrize("sharpening", [True, False])
@pytest.mark.parametrize("t", [0.05, 0.4, 0.9])
def test_the_weight_is_the_derivative_of_the_logarithm_of_the_probability(
    policy: str, sharpening: bool, t: float
) -> None:
    importance_BL, h = torch.tensor([[0.05, 0.3, 0.6, 0.97]], dtype=torch.float64), 1e-6
    before, at, after = (
        rates(policy, importance_BL, each, time_sharpening=sharpening, temperature=1.5) for each in (t - h, t, t + h)
    )
    expected_BL = (after.probability_BL.log() - before.probability_BL.log()) / (2 * h)
    torch.testing.assert_close(at.weight_BL, expected_BL, rtol=1e-5, atol=1e-5)


@each_policy
def test_the_loss_of_the_best_model_is_the_expected_cost_of_what_is_masked_at_the_end(policy: str) -> None:
    """A text of two dependent tokens: Σ ∫ ρ' · E[−log p, masked] dt = F(ρ(1)), which is −log p where ρ(1) = 1."""
    joint = torch.tensor([[0.5, 0.1], [0.1, 0.3]], dtype=torch.float64)
    alone_2 = -torch.stack([joint.sum(1)[0], joint.sum(0)[1]]).log()  # the text (0, 1)
    given_2 = -torch.stack([joint[0, 1] / joint.sum(0)[1], joint[0, 1] / joint.sum(1)[0]]).log()
    t_B = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    importance_BL = torch.tensor([[0.3, 0.8]], dtype=torch.float64).expand(len(t_B), 2)
    found = rates(policy, importance_BL, t_B)
    other_BL = found.probability_BL.flip(1)
    cost_BL = found.probability_BL * (other_BL * alone_2 + (1 - other_BL) * given_2)
    end_2 = rates(policy, importance_BL[:1], 1.0).probability_BL[0]
    both, first, second = end_2.prod(), end_2[0] * (1 - end_2[1]), end_2[1] * (1 - end_2[0])
    expected = both * -joint[0, 1].log() + first * given_2[0] + second * given_2[1]
    torch.testing.assert_close((found.weight_BL * cost_BL).sum(1).mean(), expected, rtol=2e-3, atol=2e-3)
    if policy in ("uniform", "balanced"):
        torch.testing.assert_close(expected, -joint[0, 1].log(), rtol=1e-2, atol=0)


each_pace = pytest.mark.parametrize("pace", ["step", "linear", "exponential", "dynamic"])
WARMUP, STEPS = 10, 310


def course(pace: Pace, **options: float) -> Curriculum:
    return Curriculum(CurriculumConfig(pace=pace, **options), WARMUP, STEPS)


@each_pace
def test_a_course_leads_from_easy_to_hard_and_emphasises_once_in_all(pace: Pace) -> None:
    found = [course(pace).fractions(step) for step in range(STEPS + 50)]
    assert not any(map(any, found[:WARMUP]))
    assert all(sum(fractions) == pytest.approx(1) for fractions in found[WARMUP:])
    places = [sum(number * fraction for number, fraction in enumerate(each)) for each in found[WARMUP:]]
    assert (places[0], places[-1]) == (0, 2)
    rises = [after - before for before, after in itertools.pairwise(places)]
    assert (min(rises), max(rises) < 1) == (0, pace in ("linear", "exponential"))
    stages = [course(pace).stage(step) - 1 for step in range(WARMUP, STEPS + 50)]
    assert places == pytest.approx(stages, abs=0.5), "the stage has the largest part"


def test_half_of_the_exponential_course_is_spent_on_hard_tokens_and_a_third_of_the_others() -> None:
    shares = {pace: sum(course(pace).stage(step) == 3 for step in range(WARMUP, STEPS)) / (STEPS - WARMUP)
              for pace in ("step", "linear", "exponential")}  # fmt: skip
    assert shares["step"] == shares["linear"] == pytest.approx(1 / 3, abs=0.01)
    assert shares["exponential"] > 0.5


@given(
    rows=st.lists(st.lists(st.floats(0, 1), min_size=6, max_size=6), min_size=1, max_size=4),
    length=st.integers(0, 6),
    place=st.floats(0, 2),
)
def test_the_factors_of_a_text_have_mean_1(rows: list[list[float]], length: int, place: float) -> None:
    fractions = tuple(max(0.0, 1 - abs(place - number)) for number in range(3))
    importance_BL = torch.tensor(rows)
    valid_BL = (torch.arange(6) < length).expand(importance_BL.shape)
    factor_BL = factors(importance_BL, valid_BL, fractions)
    assert not factor_BL[~valid_BL].any()
    torch.testing.assert_close(factor_BL.sum(1), torch.full((len(rows),), float(length)), rtol=1e-5, atol=1e-5)


def test_a_stage_emphasises_its_own_tokens_and_the_warm_up_none() -> None:
    importance_BL, valid_BL = torch.tensor([[EASY, (EASY + HARD) / 2, HARD]]), torch.ones(1, 3).bool()
    for stage, emphasis in enumerate(EMPHASIS):
        found_BL = factors(importance_BL, valid_BL, tuple(float(number == stage) for number in range(3)))
        expected_BL = torch.ones(1, 3).index_fill(1, torch.tensor(stage), emphasis)
        torch.testing.assert_close(found_BL / found_BL.min(), expected_BL)
    torch.testing.assert_close(factors(importance_BL, valid_BL, (0.0, 0.0, 0.0)), torch.ones(1, 3))


@pytest.mark.parametrize(("falls", "stage"), [(0.2, 1), (0.0, 3)])
def test_the_dynamic_course_leaves_a_stage_when_the_loss_stops_falling(falls: float, stage: int) -> None:
    curriculum, state_4 = course("dynamic", window=5, plateau=0.02), plateau_start()
    for step in range(WARMUP + 60):
        state_4 = plateau_after(state_4, curriculum, 5 * (1 - falls / 5) ** step, step=step)
        assert step >= WARMUP or torch.equal(state_4, plateau_start())
    assert int(state_4[0]) == stage
    assert curriculum.stage(WARMUP + 60, reached=int(state_4[0])) == stage


def test_the_dynamic_course_ends_with_hard_tokens_whatever_the_loss() -> None:
    curriculum, state_4 = course("dynamic", window=5), plateau_start()
    for step in range(STEPS):
        state_4 = plateau_after(state_4, curriculum, 2.0**-step, step=step)
    assert curriculum.fractions(STEPS - 1, reached=int(state_4[0])) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("falls", "begins"), [(0.96, 100), (1.0, 10)])
def test_the_loss_of_a_new_stage_is_not_compared_with_that_of_the_stage_before(falls: float, begins: int) -> None:
    """The second stage begins after a third of the course, or when the loss of two windows is equal."""
    curriculum, state_4 = course("dynamic", window=5), plateau_start()
    for step in range(150):
        loss = 5.0 * falls**step if step < WARMUP + begins else 500.0 * 0.96**step
        state_4 = plateau_after(state_4, curriculum, loss, step=step)
    assert int(state_4[0]) == 2
