"""Times of the denoising loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import MASK, build, canvas, on, rows

from mm_ldlm.sampling.denoising import Grid, State

SCHEDULES = ["log_linear", "cosine", "geometric"]


def state(tokens_BL: torch.Tensor, *, step: int, steps: int) -> State:
    masked_BL = tokens_BL == MASK
    return State(step, steps, tokens_BL, masked_BL, ~masked_BL, torch.zeros(tokens_BL.shape), rows(len(tokens_BL)))


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
    now = state(half_BL, step=1, steps=4)
    assert grid.timestep("schedule")(now).tolist() == pytest.approx([0.75, 0.75], abs=1e-6)
    ratio_B = 1 - process.mask_schedule.alpha(grid.timestep("mask_ratio")(now))
    assert ratio_B.tolist() == pytest.approx([1.0, 0.5], abs=2e-3)
