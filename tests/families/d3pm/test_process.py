"""D3PM: its grid of times and the weights of its steps; its bound and samples are in the conformance suites."""

import pytest
import torch
from tests.diffusion.enumeration import MASK, VOCABULARY

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES
from mm_ldlm.families.d3pm.process import D3pm, D3pmConfig


def process(steps: int, schedule: str = "log_linear", **options: float) -> D3pm:
    made = parse_kind(MASK_SCHEDULES, {"kind": schedule, **options}, at="schedule")
    return D3pmConfig(steps=steps, schedule=made).build(VOCABULARY)


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_training_times_are_grid_points_each_as_often_as_the_others(steps: int) -> None:
    times = process(steps).times(0.3701, torch.arange(3 * steps), 3 * steps).double() * steps
    assert torch.allclose(times, times.round(), atol=1e-6 * steps)
    assert torch.bincount(times.round().long(), minlength=steps + 1).tolist() == [0] + [3] * steps
    for u in (0.0, 1.0 - 2**-53):
        ends = process(steps).times(u, torch.arange(5), 5)
        assert bool(((ends > 0) & (ends <= 1)).all())


@pytest.mark.parametrize("schedule", MASK_SCHEDULES.known)
def test_the_chain_begins_at_the_text_and_ends_in_masks(schedule: str) -> None:
    """With α_0 = 1 and α_1 = 0 the bound has no further terms at its ends."""
    d3pm, tokens_BL = process(5, schedule), torch.full((200, 3), 3)
    assert d3pm.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [1, 0]
    rows = RowGenerator(0, torch.arange(200))
    assert bool((d3pm.corrupt(tokens_BL, tokens_BL > 0, torch.ones(200), rows) == MASK).all())


@pytest.mark.parametrize("steps", [11, 1000])
@pytest.mark.parametrize("schedule", MASK_SCHEDULES.known)
def test_the_weight_of_a_time_of_training_is_that_of_its_grid_point(schedule: str, steps: int) -> None:
    """Times are float32, in which many of the i/T lie below the grid point."""
    d3pm, grid = process(steps, schedule), torch.arange(1, steps + 1).double() / steps
    torch.testing.assert_close(d3pm.weight(grid.float()), d3pm.weight(grid), rtol=1e-12, atol=0)
    earlier = torch.where(grid > 1 / steps, d3pm.alpha(grid - 1 / steps), 1.0)
    expected = (earlier - d3pm.alpha(grid)) / (1 - d3pm.alpha(grid))
    torch.testing.assert_close(d3pm.weight(grid) / steps, expected, rtol=1e-6, atol=1e-9)
