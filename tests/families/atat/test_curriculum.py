"""The curriculum: a course from easy to hard tokens that changes what counts, and nothing else."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.families.atat.curriculum import (
    EASY,
    HARD,
    Curriculum,
    CurriculumConfig,
    Pace,
    factors,
    plateau_after,
    plateau_start,
)

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
    assert all(before <= after for before, after in itertools.pairwise(places))


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
    importance_BL, valid_BL = torch.tensor([[EASY / 2, (EASY + HARD) / 2, (HARD + 1) / 2]]), torch.ones(1, 3).bool()
    for stage in range(3):
        fractions = tuple(float(number == stage) for number in range(3))
        assert factors(importance_BL, valid_BL, fractions).argmax().item() == stage
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
