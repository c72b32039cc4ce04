"""Schedules against closed forms, derivatives by autograd, end points and monotonicity."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule

MASK = ["log_linear", "cosine", "geometric"]
GAUSSIAN = ["cosine", "linear", "sigmoid", "flow"]
t64 = torch.linspace(1e-3, 1, 2000, dtype=torch.float64)


@pytest.mark.parametrize("name", MASK)
def test_mask_schedule_is_consistent(name):
    schedule = MaskSchedule(name=name)
    t = t64.clone().requires_grad_()
    alpha = schedule.alpha(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    assert torch.allclose(schedule.alpha_prime(t64), slope, rtol=1e-9)
    assert torch.allclose(schedule.mask_probability(t64), 1 - alpha, rtol=1e-6)
    assert torch.allclose(schedule.weight(t64), -slope / (1 - alpha), rtol=1e-6)
    assert torch.allclose(schedule.inverse(alpha), t64, atol=1e-6)
    assert (alpha.diff() < 0).all()
    assert (alpha >= 0).all()
    assert (alpha <= 1).all()


def test_log_linear_weight_is_one_over_t():
    schedule = MaskSchedule()
    assert torch.allclose(schedule.weight(t64), 1 / t64, rtol=1e-12)
    assert float(schedule.alpha(torch.tensor(1.0))) == pytest.approx(1e-3)
    assert float(schedule.alpha(torch.tensor(0.0))) == 1


def test_geometric_ends_are_the_papers():
    schedule = MaskSchedule(name="geometric")
    for t, sigma in ((0.0, 1e-4), (1.0, 20.0)):
        alpha = schedule.alpha(torch.tensor(t, dtype=torch.float64))
        assert -float(alpha.log()) == pytest.approx(sigma, rel=1e-5)


@pytest.mark.parametrize("name", ["cosine", "linear", "sigmoid"])
def test_pitfall_19_schedules_preserve_variance(name):
    schedule = GaussianSchedule(name=name)
    for t in (t64, torch.linspace(0, 1, 1001)):
        total = schedule.signal(t).square() + schedule.noise(t).square()
        assert torch.allclose(total, torch.ones_like(total), atol=1e-6)
    assert schedule.variance_preserving
    assert not GaussianSchedule(name="flow").variance_preserving


def test_gaussian_schedules_closed_forms():
    cosine = GaussianSchedule().alpha_bar(t64)
    assert torch.allclose(cosine, torch.cos((t64 + 0.008) / 1.008 * math.pi / 2) ** 2, atol=1e-12)
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    ddpm = torch.cumprod(1 - betas, 0)
    linear = GaussianSchedule(name="linear").alpha_bar(torch.arange(1, 1001, dtype=torch.float64) / 1000)
    assert (linear - ddpm).abs().max() < 2e-3
    flow = GaussianSchedule(name="flow")
    assert torch.equal(flow.signal(t64), 1 - t64)
    assert torch.equal(flow.noise(t64), t64)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_the_variance_of_the_signal_and_the_snr_are_those_of_the_two_factors(name):
    """Also under flow, where the variances of signal and noise do not sum to 1."""
    schedule, t = GaussianSchedule(name=name), torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    signal, noise = schedule.signal(t), schedule.noise(t)
    torch.testing.assert_close(schedule.alpha_bar(t), signal**2)
    torch.testing.assert_close(schedule.snr(t), signal**2 / noise**2)
    assert torch.allclose(signal**2 + noise**2, torch.ones_like(t)) is schedule.variance_preserving is (name != "flow")


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_ends_and_order(name):
    schedule = GaussianSchedule(name=name)
    ends = torch.tensor([0.0, 1.0])
    signal, noise = schedule.signal(ends), schedule.noise(ends)
    assert signal[0] > 0.999
    assert noise[0] < 0.02
    assert signal[1] < 0.01
    assert noise[1] > 0.999
    assert torch.isfinite(signal).all()
    assert torch.isfinite(noise).all()
    assert (schedule.snr(t64).diff() < 0).all()
    assert torch.allclose(schedule.snr(t64), (schedule.signal(t64) / schedule.noise(t64)) ** 2)


@given(
    name=st.sampled_from(GAUSSIAN),
    times=st.lists(st.floats(0, 1), min_size=2, max_size=8),
)
def test_pitfall_05_a_rows_noise_does_not_depend_on_its_neighbours(name, times):
    schedule = GaussianSchedule(name=name)
    together = schedule.signal(torch.tensor(times)), schedule.noise(torch.tensor(times))
    for i, t in enumerate(times):
        alone = torch.tensor([t])
        assert schedule.signal(alone)[0] == pytest.approx(float(together[0][i]), abs=1e-6)
        assert schedule.noise(alone)[0] == pytest.approx(float(together[1][i]), abs=1e-6)


def test_each_parameter_has_an_effect():
    t = torch.tensor([0.3, 0.9])
    assert not torch.equal(MaskSchedule(epsilon=0.1).alpha(t), MaskSchedule().alpha(t))
    assert not torch.equal(MaskSchedule(name="cosine", epsilon=0.1).alpha(t), MaskSchedule(name="cosine").alpha(t))
    for key, value in {"sigma_min": 1e-2, "sigma_max": 5.0}.items():
        changed = MaskSchedule(name="geometric", **{key: value})
        assert not torch.equal(changed.alpha(t), MaskSchedule(name="geometric").alpha(t))
    changes = [("cosine", "offset", 0.1), ("linear", "beta_min", 1e-3), ("linear", "beta_max", 0.03)]
    changes += [("sigmoid", "sigmoid_start", -1.0), ("sigmoid", "sigmoid_end", 1.0)]
    for name, key, value in changes:
        assert not torch.equal(
            GaussianSchedule(name=name, **{key: value}).signal(t), GaussianSchedule(name=name).signal(t)
        )


@pytest.mark.parametrize(
    ("cls", "bad"),
    [
        (MaskSchedule, {"name": "loglinear"}),
        (MaskSchedule, {"epsilon": 1.0}),
        (MaskSchedule, {"sigma_min": 30.0}),
        (GaussianSchedule, {"name": "cosin"}),
        (GaussianSchedule, {"beta_min": 0.5}),
        (GaussianSchedule, {"sigmoid_start": 4.0}),
    ],
)
def test_bad_parameters_are_refused(cls, bad):
    with pytest.raises(ConfigurationError, match=r"objective\.schedule"):
        parse(cls, bad, at="objective.schedule")


@pytest.mark.parametrize("name", MASK)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_time_of_a_mask_ratio_is_a_float64_time_also_where_the_schedule_does_not_reach_it(name, dtype):
    schedule = MaskSchedule(name=name, epsilon=0.05, sigma_max=3.0)
    reached = schedule.mask_probability(torch.tensor([0.2, 0.7], dtype=torch.float64))
    found = schedule.time_of_mask_ratio(torch.cat([torch.tensor([0.0, 1.0]).double(), reached]).to(dtype))
    assert found.dtype == torch.float64
    assert found[:2].tolist() == [0.0, 1.0], "a ratio of 1 is beyond 1 − α_1"
    assert found[2:].tolist() == pytest.approx([0.2, 0.7], abs=1e-9 if dtype == torch.float64 else 1e-5)
    tiny = torch.tensor([3e-5], dtype=dtype)
    if name != "geometric":
        assert float(schedule.mask_probability(schedule.time_of_mask_ratio(tiny))) == pytest.approx(3e-5, rel=1e-6)


@pytest.mark.parametrize("name", GAUSSIAN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_factors_of_signal_and_noise_lie_between_0_and_1_at_every_time(name, dtype):
    for schedule in (GaussianSchedule(name=name), GaussianSchedule(name=name, offset=0.3)):
        t = torch.linspace(0, 1, 1001, dtype=dtype)
        for factor in (schedule.signal(t), schedule.noise(t)):
            assert bool(((factor >= 0) & (factor <= 1)).all())
