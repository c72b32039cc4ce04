"""The curriculum of adaptive masking: loss factors of mean 1, three stages, and the state of the dynamic pace."""

from __future__ import annotations

import math

import pytest
import torch

from mm_ldlm.families.atat.curriculum import Curriculum, CurriculumConfig, plateau_after, plateau_start

IMPORTANCE = torch.tensor([[0.1, 0.3, 0.5, 0.7, 0.9, 0.2], [0.8, 0.9, 0.1, 0.0, 0.0, 0.0]])
VALID = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()


def curriculum(pace="step", **keys):
    return Curriculum(CurriculumConfig(pace=pace, **keys), warmup_steps=100, steps=400)


@pytest.mark.parametrize("pace", ["step", "linear", "exponential", "dynamic"])
def test_the_factors_have_mean_1_over_each_text_at_every_step(pace):
    for step in range(0, 401, 20):
        factor_BL = curriculum(pace).factors(IMPORTANCE, VALID, step=step)
        torch.testing.assert_close(factor_BL.sum(1), VALID.sum(1).float())
        assert bool((factor_BL[VALID] > 0).all())
        assert not factor_BL[~VALID].any()


def test_the_stages_begin_after_the_warm_up_and_switch_at_a_third_and_two_thirds():
    made = curriculum()
    switches = [step for step in range(1, 400) if made.stage(step) != made.stage(step - 1)]
    assert switches == [100, 200, 300]
    assert [made.stage(step) for step in (0, 100, 200, 300, 400)] == [0, 1, 2, 3, 3]


def test_each_stage_emphasises_its_own_tokens():
    def factors(step):
        return curriculum().factors(IMPORTANCE, VALID, step=step)[0]

    assert factors(50).tolist() == [1.0] * 6
    easy, medium, hard = (factors(step) for step in (150, 250, 350))
    torch.testing.assert_close(easy, torch.tensor([2, 2, 1, 1, 1, 2.0]) * 6 / 9)
    torch.testing.assert_close(medium, torch.tensor([1, 1, 1.5, 1, 1, 1]) * 6 / 6.5)
    torch.testing.assert_close(hard, torch.tensor([1, 1, 1, 2, 2, 1.0]) * 6 / 8)


def test_linear_moves_from_the_middle_of_a_stage_to_the_middle_of_the_next():
    made = curriculum("linear")
    assert made.fractions(150) == pytest.approx((1, 0, 0))
    assert made.fractions(200) == pytest.approx((0.5, 0.5, 0))
    assert made.fractions(275) == pytest.approx((0, 0.75, 0.25))
    assert made.fractions(400) == pytest.approx((0, 0, 1))
    assert made.fractions(99) == (0, 0, 0)


def test_exponential_gives_hard_tokens_most_of_the_steps():
    fast, even = curriculum("exponential"), curriculum("step")
    assert sum(fast.stage(step) == 3 for step in range(400)) > 1.5 * sum(even.stage(step) == 3 for step in range(400))
    middle = (1 - math.exp(-1.5)) / (1 - math.exp(-3))
    assert fast.difficulty(250) == pytest.approx(middle)
    assert fast.difficulty(400) == 1.0


# -- dynamic -----------------------------------------------------------------------------------------------------------


def stages(losses, **keys):
    made, state = curriculum("dynamic", window=10, **keys), plateau_start()
    found = []
    for step, loss in enumerate(losses):
        found.append(made.stage(step, reached=int(state[0])))
        state = plateau_after(state, made, loss, step=step)
    return found


def first(stages, stage):
    return next(step for step, found in enumerate(stages) if found >= stage)


def test_dynamic_ends_a_stage_where_the_loss_stops_falling():
    falling = stages([1000 * 0.99**step for step in range(400)])
    assert [first(falling, stage) for stage in (1, 2, 3)] == [100, 200, 300]  # as `step`
    flat = stages([1.0] * 400)
    assert [first(flat, stage) for stage in (1, 2, 3)] == [100, 120, 140]  # two windows each
    stops = stages([max(1000 * 0.99**step, 1000 * 0.99**145) for step in range(400)])
    assert [first(stops, stage) for stage in (1, 2, 3)] == [100, 160, 180]
    demanding = stages([1000 * 0.99**step for step in range(400)], plateau=0.2)
    assert first(demanding, 2) == 120


def test_every_window_begins_with_no_steps_and_no_loss():
    """Stage, steps and sum of the window, and the mean of the window before, after each of ten steps."""
    made, state, found = curriculum("dynamic", window=3, plateau=0.1), plateau_start(), []
    for step, loss in enumerate((3.0, 5.0, 4.0, 2.0, 1.0, 0.0, 1.0, 1.0, 1.0, 7.0), start=100):
        state = plateau_after(state, made, loss, step=step)
        found.append(state.tolist())
    assert found == [
        [1, 1, 3, math.inf], [1, 2, 8, math.inf], [1, 0, 0, 4], [1, 1, 2, 4], [1, 2, 3, 4], [1, 0, 0, 1], [1, 1, 1, 1],
        [1, 2, 2, 1], [2, 0, 0, math.inf], [2, 1, 7, math.inf],
    ]  # fmt: skip


def test_dynamic_never_goes_back_and_leaves_the_warm_up_alone():
    found = stages([1.0] * 150 + [0.5] * 250)
    assert found == sorted(found)
    state = plateau_start()
    assert torch.equal(plateau_after(state, curriculum("dynamic"), 3.0, step=99), state)
