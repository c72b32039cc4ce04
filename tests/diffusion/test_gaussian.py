"""Gaussian diffusion: moments, conversions between all pairs, loss weights, end points."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.diffusion.gaussian import add_noise, convert, loss_weight, target, to_x0, to_x0_and_eps
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule

KINDS = ["eps", "x0", "v", "flow"]
SCHEDULES = [GaussianSchedule(name=name) for name in ("cosine", "linear", "sigmoid", "flow")]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("time", [0.0, 0.3, 1.0])
def test_pitfall_19_forward_moments_match_their_closed_form(schedule, time):
    """x_0 with mean μ and variance 1: x_t has mean s·μ and variance s² + n²; 1 where variance preserving."""
    B, d, mean = 20_000, 4, 0.7
    generator = RowGenerator(0, torch.arange(B))
    x0 = generator.normal(d, dtype=torch.float64) + mean
    t = torch.full((B,), time, dtype=torch.float64)
    s, n = schedule.signal(t), schedule.noise(t)
    x_t = add_noise(x0, generator.normal(d, dtype=torch.float64), signal_B=s, noise_scale_B=n)
    expected = float(s[0] ** 2 + n[0] ** 2)
    assert float(x_t.mean()) == pytest.approx(float(s[0]) * mean, abs=5 * math.sqrt(expected / (B * d)))
    assert float(x_t.var()) == pytest.approx(expected, rel=5 * math.sqrt(2 / (B * d)))
    if schedule.variance_preserving:
        assert expected == pytest.approx(1, abs=1e-9)


def test_pitfall_05_a_rows_noise_uses_its_own_time():
    schedule = GaussianSchedule()
    t = torch.tensor([0.1, 0.9, 0.4])
    x0, eps = torch.randn(3, 5), torch.randn(3, 5)
    whole = add_noise(x0, eps, signal_B=schedule.signal(t), noise_scale_B=schedule.noise(t))
    for i in range(3):
        one = t[i : i + 1]
        alone = add_noise(
            x0[i : i + 1], eps[i : i + 1], signal_B=schedule.signal(one), noise_scale_B=schedule.noise(one)
        )
        assert torch.allclose(alone[0], whole[i], atol=1e-6)


@settings(deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.floats(0.02, 0.98),
    st.sampled_from(list(itertools.product(KINDS, KINDS))),
    st.integers(0, 1000),
)
def test_pitfall_12_conversions_are_exact_for_all_pairs(schedule, time, pair, seed):
    g = torch.Generator().manual_seed(seed)
    x0, eps, any_ = (torch.randn(3, 6, generator=g, dtype=torch.float64) for _ in range(3))
    t = torch.full((3,), time, dtype=torch.float64)
    factors = {"signal_B": schedule.signal(t), "noise_scale_B": schedule.noise(t)}
    x_t = add_noise(x0, eps, **factors)
    first, second = pair
    # The true target of one kind converts to the true target of the other …
    converted = convert(target(first, x0, eps, **factors), first, second, x_t_Bd=x_t, **factors)
    assert torch.allclose(converted, target(second, x0, eps, **factors), atol=1e-6)
    # … and any prediction at all survives the way there and back.
    there = convert(any_, first, second, x_t_Bd=x_t, **factors)
    assert torch.allclose(convert(there, second, first, x_t_Bd=x_t, **factors), any_, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [0.0, 1.0])
def test_pitfall_12_finite_at_both_ends(schedule, kind, time):
    t = torch.full((2,), time)
    factors = {"signal_B": schedule.signal(t), "noise_scale_B": schedule.noise(t)}
    x0, eps = torch.randn(2, 4), torch.randn(2, 4)
    x_t = add_noise(x0, eps, **factors)
    for x in to_x0_and_eps(target(kind, x0, eps, **factors), kind, x_t_Bd=x_t, **factors):
        assert torch.isfinite(x).all()
    weight = loss_weight("min_snr", schedule.snr(t), parameterisation=kind)
    assert torch.isfinite(weight).all()
    assert (weight >= 0).all()


def test_pitfall_12_eps_is_not_x0():
    schedule = GaussianSchedule()
    t = torch.tensor([0.5])
    factors = {"signal_B": schedule.signal(t), "noise_scale_B": schedule.noise(t)}
    x0, eps = torch.randn(1, 8), torch.randn(1, 8)
    x_t = add_noise(x0, eps, **factors)
    assert torch.allclose(to_x0(eps, "eps", x_t_Bd=x_t, **factors), x0, atol=1e-5)
    assert not torch.allclose(to_x0(eps, "x0", x_t_Bd=x_t, **factors), x0, atol=0.1)


def test_unknown_kinds_are_refused():
    one = torch.ones(1)
    with pytest.raises(ValueError, match="'epsilon'"):
        target("epsilon", one[None], one[None], signal_B=one, noise_scale_B=one)
    with pytest.raises(ValueError, match="'epsilon'"):
        to_x0(one[None], "epsilon", x_t_Bd=one[None], signal_B=one, noise_scale_B=one)
    with pytest.raises(ValueError, match="'minsnr'"):
        loss_weight("minsnr", one, parameterisation="v")
    with pytest.raises(ValueError, match="'w'"):
        loss_weight("min_snr", one, parameterisation="w")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("kind", KINDS)
def test_min_snr_weighs_the_same_error_in_x0_alike(schedule, kind):
    """weight(kind)·‖Δ prediction‖² = min(SNR, γ)·‖Δ x_0‖² for every kind (v: where variance preserving)."""
    if kind == "v" and not schedule.variance_preserving:
        pytest.skip("v's weight assumes a variance preserving schedule")
    t = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    factors = {"signal_B": schedule.signal(t), "noise_scale_B": schedule.noise(t)}
    g = torch.Generator().manual_seed(0)
    x_t, p, delta = (torch.randn(19, 5, generator=g, dtype=torch.float64) for _ in range(3))
    moved = to_x0(p + delta, kind, x_t_Bd=x_t, **factors) - to_x0(p, kind, x_t_Bd=x_t, **factors)
    snr = schedule.snr(t)
    weighted = loss_weight("min_snr", snr, parameterisation=kind, gamma=3.0) * delta.square().sum(1)
    assert torch.allclose(weighted, snr.clamp(max=3.0) * moved.square().sum(1), rtol=1e-6)


def test_weight_formulas_and_uniform():
    snr = torch.tensor([0.0, 1.0, 5.0, 50.0, torch.inf])
    assert loss_weight("min_snr", snr, parameterisation="x0").tolist() == [0, 1, 5, 5, 5]
    assert torch.allclose(loss_weight("min_snr", snr, parameterisation="eps"), torch.tensor([1.0, 1.0, 1.0, 0.1, 0.0]))
    assert torch.allclose(
        loss_weight("min_snr", snr, parameterisation="v"), torch.tensor([0.0, 0.5, 5 / 6, 5 / 51, 0.0])
    )
    assert (loss_weight("uniform", snr, parameterisation="v") == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_of_the_kind_that_is_asked_for_is_left_as_it_is(kind):
    """Also at pure noise and without noise, where a way through x_0 and ε would lose it."""
    draw = torch.Generator().manual_seed(0)
    prediction, x_t = torch.randn(3, 4, generator=draw), torch.randn(3, 4, generator=draw)
    ends = {"signal_B": torch.tensor([0.0, 0.6, 1.0]), "noise_scale_B": torch.tensor([1.0, 0.8, 0.0])}
    assert torch.equal(convert(prediction, kind, kind, x_t_Bd=x_t, **ends), prediction)
