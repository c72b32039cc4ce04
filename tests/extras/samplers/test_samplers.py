"""Further orders of unmasking, and solvers of a Gaussian's flow against distributions known in closed form."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.test_gaussian import SCHEDULES, error, run, start, toy
from tests.sampling.test_orders import ranked
from tests.sampling.toys import canvas, context, rows, sample

from mm_ldlm.extras.samplers.orders import entropy_prefix
from mm_ldlm.extras.samplers.solvers import fraction
from mm_ldlm.sampling.gaussian import Estimator, Point, grid
from mm_ldlm.sampling.registry import latent_sampler


def test_margins_are_differences_of_probabilities() -> None:
    broad = [0.6] + [0.4 / 7] * 7  # the largest margin
    assert ranked("margin", [[0.58, 0.22, 0.2], [0.55, 0.45], broad]) == [2, 0, 1]
    assert ranked("margin", [[0.5, 0.45, 0.05], [0.45, 0.2, 0.2, 0.15]]) == [1, 0]
    assert ranked("margin", [[0.3] + [0.1] * 7, [0.5, 0.2, 0.2, 0.1]]) == [1, 0], "the first has the larger quotient"


@given(
    st.lists(st.one_of(st.floats(0, 3), st.just(float("inf"))), min_size=1, max_size=8),
    st.floats(0, 4),
)
def test_the_entropy_prefix_is_the_largest_set_within_the_bound(entropies: list[float], bound: float) -> None:
    found = entropy_prefix(torch.tensor([entropies], dtype=torch.float64), bound=bound)[0]
    known = sorted(value for value in entropies if value != float("inf"))
    sizes = [size for size in range(1, len(known) + 1) if sum(known[:size]) - known[size - 1] <= bound + 1e-9]
    tight = [size for size in range(1, len(known) + 1) if sum(known[:size]) - known[size - 1] <= bound - 1e-9]
    assert max(tight, default=min(1, len(known))) <= int(found.sum()) <= max(sizes, default=0)
    assert not found[torch.tensor(entropies, dtype=torch.float64).isinf()].any()


def test_the_bound_on_the_entropy_decides_the_number_of_steps() -> None:
    calls = [sample("entropy_bounded", context(), canvas(6), entropy_bound=bound).model_calls for bound in (0.0, 1e9)]
    assert calls == [6, 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["heun", "dpmpp_2m"])
def test_second_order_solvers_on_a_gaussian(name, schedule):
    """Order 2 where the grid is even in the solver's own time (the flow's); elsewhere their last step, which has no
    slope at t = 0 to look at, sets the error, and they still leave Euler behind."""
    coarse, fine = error(name, schedule, 80), error(name, schedule, 160)
    if schedule == "flow":
        assert math.log2(coarse / fine) > {"heun": 1.95, "dpmpp_2m": 1.6}[name]
    assert coarse < error("euler", schedule, 80) / 1.5


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_euler_on_the_flow_is_ddim(schedule):
    denoise, _ = toy(schedule)
    x = start()
    assert torch.allclose(run("euler", denoise, x, steps=9), run("ddim", denoise, x, steps=9), atol=1e-7)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["euler", "heun"])
def test_solvers_of_the_flow_take_the_same_steps_on_every_schedule(name, schedule):
    """x/(signal + noise) at noise/(signal + noise) is the flow itself."""
    (denoise, _), (flow, _), sampler, x = toy(schedule), toy("flow"), latent_sampler(name), start()
    points = grid(denoise.schedule, steps=5, t_max=0.9)
    same = [Point(at, 1 - at, at) for at in map(fraction, points)]
    found = sampler.solve(x, points, Estimator(denoise, 1.0), rows(len(x)))
    expected = sampler.solve(x / (points[0].signal + points[0].noise), same, Estimator(flow, 1.0), rows(len(x)))
    assert torch.allclose(found, expected, atol=1e-5)
