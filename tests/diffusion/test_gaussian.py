"""Gaussian diffusion: moments, conversions between all parameterisations, end points."""

import itertools
import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.gaussian import Parameterisation, add_noise, convert, target, to_x0_and_eps
from mm_ldlm.diffusion.min_snr import loss_weight
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import GAUSSIAN_SCHEDULES
from mm_ldlm.diffusion.schedules import CosineLatents, Scales

KINDS: tuple[Any, ...] = get_args(Parameterisation)
every_schedule = pytest.mark.parametrize("schedule", GAUSSIAN_SCHEDULES.known)


def scales(schedule: str, t: torch.Tensor) -> Scales:
    return parse_kind(GAUSSIAN_SCHEDULES, {"kind": schedule}, at="schedule").build().scales(t)


@every_schedule
@pytest.mark.parametrize("time", [0.0, 0.3, 1.0])
def test_pitfall_19_forward_moments_match_their_closed_form(schedule: str, time: float) -> None:
    """x_0 with mean μ and variance 1: x_t has mean s·μ and variance s² + n²."""
    B, d, mean = 20_000, 4, 0.7
    generator, at = RowGenerator(0, torch.arange(B)), scales(schedule, torch.full((B,), time, dtype=torch.float64))
    x0, eps = generator.normal(d, dtype=torch.float64) + mean, generator.normal(d, dtype=torch.float64)
    x_t, s, n = add_noise(x0, eps, at), float(at.signal_B[0]), float(at.noise_B[0])
    assert float(x_t.mean()) == pytest.approx(s * mean, abs=5 * math.sqrt((s**2 + n**2) / (B * d)))
    assert float(x_t.var()) == pytest.approx(s**2 + n**2, rel=5 * math.sqrt(2 / (B * d)))


def test_pitfall_05_the_noise_of_a_row_uses_its_own_time() -> None:
    t, x0, eps = torch.tensor([0.1, 0.9, 0.4]), torch.randn(3, 5), torch.randn(3, 5)
    whole = add_noise(x0, eps, scales("cosine", t))
    for one in torch.arange(3).split(1):
        torch.testing.assert_close(add_noise(x0[one], eps[one], scales("cosine", t[one])), whole[one])


@given(
    schedule=st.sampled_from([*GAUSSIAN_SCHEDULES.known]), time=st.floats(0.02, 0.98),
    pair=st.sampled_from(list(itertools.product(KINDS, KINDS))), seed=st.integers(0, 1000),
)  # fmt: skip
def test_pitfall_12_conversions_are_exact_for_all_pairs(schedule: str, time: float, pair: Any, seed: int) -> None:
    draw, (first, second) = torch.Generator().manual_seed(seed), pair
    x0, eps, any_ = (torch.randn(3, 6, generator=draw, dtype=torch.float64) for _ in range(3))
    at = scales(schedule, torch.full((3,), time, dtype=torch.float64))
    x_t = add_noise(x0, eps, at)
    converted = convert(target(first, x0, eps, at), first, second, x_t, at)
    assert torch.allclose(converted, target(second, x0, eps, at), atol=1e-6), "targets convert to targets"
    there = convert(any_, first, second, x_t, at)
    assert torch.allclose(convert(there, second, first, x_t, at), any_, atol=1e-6), "predictions survive the way back"
    x0, eps = to_x0_and_eps(any_, first, x_t, at)
    assert torch.allclose(add_noise(x0, eps, at), x_t)


@every_schedule
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [0.0, 1.0])
def test_pitfall_12_everything_is_finite_at_both_ends(schedule: str, kind: Any, time: float) -> None:
    at, x0, eps = scales(schedule, torch.full((2,), time)), torch.randn(2, 4), torch.randn(2, 4)
    x_t = add_noise(x0, eps, at)
    weight = loss_weight("min_snr", at.snr_B, parameterisation=kind)
    found = [weight, *to_x0_and_eps(target(kind, x0, eps, at), kind, x_t, at)]
    assert all(bool(x.isfinite().all()) for x in found)
    assert bool((weight >= 0).all())
    assert torch.equal(convert(x0, kind, kind, x_t, at), x0), "a way through x_0 and ε would lose it"


def test_pitfall_12_eps_is_not_x0() -> None:
    at, x0, eps = CosineLatents().scales(torch.tensor([0.5])), torch.randn(1, 8), torch.randn(1, 8)
    x_t = add_noise(x0, eps, at)
    assert torch.allclose(to_x0_and_eps(eps, "eps", x_t, at)[0], x0, atol=1e-5)
    assert not torch.allclose(to_x0_and_eps(eps, "x0", x_t, at)[0], x0, atol=0.1)
