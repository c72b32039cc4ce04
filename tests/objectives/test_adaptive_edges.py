"""Adaptive masking at its edges: steps without masks, other paces, exact thresholds, empty texts, initial values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from test_adaptive_masking import SHAPE, losses_of, objective
from test_text_diffusion import TEXTS, batch, rows

from mm_ldlm.families.atat.curriculum import Curriculum, CurriculumConfig, plateau_after, plateau_start
from mm_ldlm.families.atat.importance import ImportanceConfig
from mm_ldlm.families.atat.objective import AdaptiveMaskingConfig, frequency_prior
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.training_times import text_times

FINE = (8.0, 8.0)
"""(sum, count) of an importance that has not collapsed"""


@pytest.mark.parametrize("pace", ["step", "linear", "exponential", "dynamic"])
def test_a_loss_is_observed_under_every_pace_and_moves_the_dynamic_one_alone(pace: Any) -> None:
    made = objective(curriculum={"steps": 90, "pace": pace, "window": 2}, warmup_steps=0)
    assert ("plateau_4" in made.state_dict()) is (pace == "dynamic")
    assert made.observe({"text_nll": (12.0, 4.0), "importance_std": FINE}, step=0) is None
    assert made._reached == (1 if pace == "dynamic" else 0)
    if pace == "dynamic":
        assert made.plateau_4.tolist() == [1.0, 1.0, 3.0, math.inf], "the loss per masked token"


def test_a_step_without_a_mask_leaves_the_curriculum_as_it_is() -> None:
    made = objective(curriculum={"steps": 90, "pace": "dynamic", "window": 2}, warmup_steps=0)
    before = made.plateau_4.clone()
    assert made.observe({"text_nll": (0.0, 0.0), "importance_std": FINE}, step=0) is None
    assert torch.equal(made.plateau_4, before)


def test_a_collapse_is_a_standard_deviation_below_a_tenth() -> None:
    for std, warns in ((0.1, False), (0.0999, True)):
        made = objective(importance="learned_only", warmup_steps=0)
        found = made.observe({"text_nll": (1.0, 1.0), "importance_std": (8 * std, 8.0)}, step=3)
        assert (found is not None) is warns
    assert found == (
        "expected importance of tokens to have a standard deviation of at least 0.1, found 0.100 after 4 steps: all "
        "tokens are masked nearly alike. Check importance_loss, and whether some tokens of this corpus are harder than "
        "others."
    )


def test_the_frequency_prior_of_nothing_is_that_of_unseen_ids() -> None:
    assert frequency_prior(torch.zeros(5, dtype=torch.long), mask_id=4).tolist() == [1, 1, 1, 1, 0]


def test_counts_of_the_mask_itself_are_part_of_the_corpus() -> None:
    found = frequency_prior(torch.tensor([2, 0, 0, 0, 2]), mask_id=4)
    assert found.tolist() == [0.5, 1, 1, 1, 0.5], "all seen ids are alike"


def test_the_estimator_has_initial_values_before_those_of_the_run() -> None:
    shape = DataShape(vocab_size=400, pad_id=0, mask_id=1, max_length=9)
    config = AdaptiveMaskingConfig(estimator=ImportanceConfig(dim=32, depth=1, heads=2))
    first, second = (config.build(shape).state_dict() for _ in range(2))
    assert float(first["estimator.tokens.weight"].std()) == pytest.approx(0.02, rel=0.05)
    for name, value in first.items():
        assert torch.equal(value.nan_to_num(), second[name].nan_to_num()), name


def test_the_losses_of_adaptive_masking_are_float32() -> None:
    found = losses_of(objective(curriculum={"steps": 9}, warmup_steps=0), batch(TEXTS))
    assert {name: found[name][0].dtype for name in ("text_loss", "importance_loss")} == dict.fromkeys(
        ("text_loss", "importance_loss"), torch.float32
    )
    assert SHAPE.mask_id not in batch(TEXTS).tokens_BL


def test_the_noise_level_is_the_time_of_the_examples_and_the_stage_is_that_of_their_tokens() -> None:
    """Examples that fill the batch have neither."""
    made, data = objective(curriculum={"steps": 9, "pace": "step"}, warmup_steps=0), batch(TEXTS)
    count = len(data.examples_B)
    examples_B = torch.where(torch.arange(count) < 3, data.examples_B, -1)
    valid_BL = data.valid_BL & (examples_B >= 0)[:, None]
    data = dataclasses.replace(data, examples_B=examples_B, valid_BL=valid_BL)
    found = losses_of(made, data, step=4)
    t_B = text_times(made.process, data, rows(count, seed=0).fork("text_time"))
    assert [float(x) for x in found["noise_level"]] == pytest.approx([float(t_B[:3].sum()), 3])
    tokens = int(valid_BL.sum())
    assert [int(x) for x in found["curriculum_stage"]] == [2 * tokens, tokens]


@pytest.mark.parametrize("reached", [1, 2, 3])
def test_the_stage_that_a_falling_loss_has_reached_decides_the_loss(reached: int) -> None:
    """At the first step: as under the pace `step` in that stage, of steps in which nothing else changes."""
    keys: dict[str, Any] = {"importance": "frequency_only", "warmup_steps": 0}
    made = objective(curriculum={"steps": 90, "pace": "dynamic"}, **keys)
    made.plateau_4[0] = reached
    plain = objective(curriculum={"steps": 90, "pace": "step"}, **keys)
    found, expected = losses_of(made, batch(TEXTS), step=0), losses_of(plain, batch(TEXTS), step=30 * reached - 15)
    for name in ("text_loss", "curriculum_stage"):
        torch.testing.assert_close(found[name], expected[name])
    others = [losses_of(plain, batch(TEXTS), step=step)["text_loss"][0] for step in (15, 45, 75)]
    assert len({round(float(value), 4) for value in others}) == 3, "the stages differ"


# -- the curriculum ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [400, 500])
def test_a_warm_up_as_long_as_the_training_leaves_the_first_stage(warmup: int) -> None:
    made = Curriculum(CurriculumConfig(pace="step"), warmup_steps=warmup, steps=400)
    assert [made.stage(step) for step in (0, 399, warmup - 1, warmup)] == [0, 0, 0, 1]
    assert [made.difficulty(step) for step in (0, warmup, warmup + 1)] == [0, 0, 1]


@pytest.mark.parametrize("pace", ["step", "linear", "exponential", "dynamic"])
@pytest.mark.parametrize("step", [0, 150, 250, 350])
def test_a_text_without_tokens_has_the_factor_0_and_changes_no_other(pace: Any, step: int) -> None:
    made = Curriculum(CurriculumConfig(pace=pace), warmup_steps=100, steps=400)
    importance = torch.tensor([[0.1, 0.8, 0.5], [0.2, 0.9, 0.4]])
    valid = torch.tensor([[True, True, False], [False] * 3])
    found = made.factors(importance, valid, step=step)
    assert found[1].tolist() == [0, 0, 0]
    torch.testing.assert_close(found[:1], made.factors(importance[:1], valid[:1], step=step))
    torch.testing.assert_close(found[0].sum(), torch.tensor(2.0))


def after(losses: list[float], **keys: Any) -> list[float]:
    made = Curriculum(CurriculumConfig(pace="dynamic", **keys), warmup_steps=0, steps=10**6)
    state = plateau_start()
    for step, loss in enumerate(losses):
        state = plateau_after(state, made, loss, step=step)
    assert state.dtype == torch.float64
    found: list[float] = state.tolist()
    return found


def test_the_last_stage_never_ends() -> None:
    found = after([1.0] * 40, window=2)
    assert found[:3] == [3, 0, 0]
    made = Curriculum(CurriculumConfig(pace="dynamic", window=2), warmup_steps=0, steps=10**6)
    assert made.fractions(40, reached=3) == (0, 0, 1)


@pytest.mark.parametrize(("second", "stage"), [(2.01, 2), (2.0, 1), (1.99, 1)])
def test_a_loss_that_fell_by_just_the_fraction_has_not_stopped_to_fall(second: float, stage: int) -> None:
    assert after([4.0, second], window=1, plateau=0.5)[0] == stage
