"""Every noise schedule of both registries, against derivatives, inverses and closed forms, and Gaussian diffusion on them."""

import itertools
import math
from dataclasses import fields
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import ConfigurationError, Kinds, parse_kind
from mm_ldlm.diffusion.gaussian import Parameterisation, add_noise, convert, loss_weight, target, to_x0_and_eps
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import (
    GAUSSIAN_SCHEDULES,
    MASK_SCHEDULES,
    CosineLatents,
    Flow,
    LinearLatents,
    Scales,
)

t64 = torch.linspace(1e-3, 1, 2000, dtype=torch.float64)
every_mask_schedule = pytest.mark.parametrize("kind", MASK_SCHEDULES.known)


def schedule_of(kinds: Kinds, kind: str, **options: float) -> Any:
    return parse_kind(kinds, {"kind": kind, **options}, at="objective.schedule").build()


@every_mask_schedule
def test_the_functions_of_a_mask_schedule_agree(kind: str) -> None:
    schedule, t = schedule_of(MASK_SCHEDULES, kind), t64.clone().requires_grad_()
    alpha = schedule.alpha(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    assert torch.allclose(schedule.alpha_prime(t64), slope, rtol=1e-9)
    assert torch.allclose(schedule.mask_probability(t64), 1 - alpha, rtol=1e-6)
    assert torch.allclose(schedule.weight(t64), -slope / (1 - alpha), rtol=1e-6)
    assert torch.allclose(schedule.inverse(alpha.detach()), t64, atol=1e-6)
    assert bool(((alpha.diff() < 0).all()) & (alpha >= 0).all() & (alpha <= 1).all())


@every_mask_schedule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_mask_ratio_has_a_time(kind: str, dtype: torch.dtype) -> None:
    """In float64, also for ratios that the schedule does not reach."""
    schedule = schedule_of(MASK_SCHEDULES, kind)
    reached = schedule.mask_probability(torch.tensor([0.2, 0.7], dtype=torch.float64))
    found = schedule.time_of_mask_ratio(torch.cat([torch.tensor([0.0, 1.0]).double(), reached]).to(dtype))
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([0.0, 1.0, 0.2, 0.7], abs=1e-9 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        *({"kind": kind} for kind in GAUSSIAN_SCHEDULES.known),
        *({"kind": "sigmoid", "sigmoid_start": start, "sigmoid_end": start + 8} for start in (-6.0, -3.0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pitfall_19_schedules_preserve_variance(options: dict[str, Any], dtype: torch.dtype) -> None:
    schedule, t = schedule_of(GAUSSIAN_SCHEDULES, **options), torch.linspace(0, 1, 1001, dtype=dtype)
    signal, noise = schedule.scales(t)
    total = signal.square() + noise.square()
    assert torch.allclose(total, torch.ones_like(t), atol=1e-6) == schedule.variance_preserving
    assert float(torch.stack([signal, noise]).amin()) >= 0
    assert float(torch.stack([signal, noise]).amax()) <= 1
    assert [float(x) for x in (signal[0], noise[-1])] == pytest.approx([1, 1], abs=1e-3)
    assert max(float(x) for x in (noise[0], signal[-1])) < 0.02
    assert bool((schedule.scales(t[1:]).snr_B.diff() < 0).all())


def test_closed_forms_of_latent_schedules() -> None:
    cosine = CosineLatents().scales(t64).signal_B ** 2
    assert torch.allclose(cosine, torch.cos((t64 + 0.008) / 1.008 * math.pi / 2) ** 2, atol=1e-12)
    ddpm = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
    linear = LinearLatents().scales(torch.arange(1, 1001, dtype=torch.float64) / 1000).signal_B ** 2
    assert float((linear - ddpm).abs().max()) < 2e-3
    assert torch.equal(torch.stack(Flow().scales(t64)), torch.stack([1 - t64, t64]))


@pytest.mark.parametrize("kinds", [MASK_SCHEDULES, GAUSSIAN_SCHEDULES], ids=["mask", "gaussian"])
def test_every_option_of_a_schedule_changes_it(kinds: Kinds) -> None:
    t = torch.tensor([0.3, 0.9])
    for kind in kinds.known:
        plain = schedule_of(kinds, kind)
        for field in fields(plain):
            if field.name == "kind":
                continue
            changed = schedule_of(kinds, kind, **{field.name: getattr(plain, field.name) * 0.5 + 1e-3})
            pair = [x.alpha(t) if kinds is MASK_SCHEDULES else torch.stack(x.scales(t)) for x in (plain, changed)]
            assert not torch.equal(*pair), (kind, field.name)


@pytest.mark.parametrize(
    ("kinds", "options", "named"),
    [
        (MASK_SCHEDULES, {"kind": "loglinear"}, "loglinear"),
        (MASK_SCHEDULES, {"kind": "log_linear", "epsilon": 1.0}, "epsilon"),
        (MASK_SCHEDULES, {"kind": "log_linear", "sigma_min": 0.1}, "sigma_min"),
        (MASK_SCHEDULES, {"kind": "geometric", "sigma_min": 30.0}, "sigma_min"),
        (GAUSSIAN_SCHEDULES, {"kind": "sigmoid", "sigmoid_start": 4.0}, "sigmoid_start"),
    ],
)
def test_schedules_that_are_none_are_refused(kinds: Kinds, options: dict[str, Any], named: str, refuses: Any) -> None:
    with refuses(ConfigurationError, named, "objective.schedule"):
        parse_kind(kinds, options, at="objective.schedule")


# -- Gaussian diffusion ------------------------------------------------------------------------------------------------


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
    assert add_noise(x0.float(), eps.float(), scales("cosine", t.double())).dtype == torch.float32
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


@every_schedule
@pytest.mark.parametrize("kind", KINDS)
def test_min_snr_weighs_the_same_error_in_x0_alike(schedule: str, kind: Any) -> None:
    """weight(kind)·‖Δ prediction‖² = min(SNR, γ)·‖Δ x_0‖² for every kind (v: where variance preserving)."""
    if kind == "v" and schedule == "flow":
        return
    times = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    at = scales(schedule, times)
    x_t, prediction, change = torch.randn(3, 19, 5, dtype=torch.float64)
    moved = to_x0_and_eps(prediction + change, kind, x_t, at)[0] - to_x0_and_eps(prediction, kind, x_t, at)[0]
    weighted = loss_weight("min_snr", at.snr_B, parameterisation=kind, gamma=3.0) * change.square().sum(1)
    assert torch.allclose(weighted, at.snr_B.clamp(max=3.0) * moved.square().sum(1), rtol=1e-6)


def test_loss_weights_by_hand() -> None:
    snr_B = torch.tensor([0.0, 1.0, 5.0, 50.0, torch.inf])
    expected: dict[Any, list[float]] = {
        "x0": [0, 1, 5, 5, 5], "eps": [1, 1, 1, 0.1, 0], "v": [0, 1 / 2, 5 / 6, 5 / 51, 0],
    }  # fmt: skip
    for kind, weights in expected.items():
        assert loss_weight("min_snr", snr_B, parameterisation=kind).tolist() == pytest.approx(weights)
        assert loss_weight("uniform", snr_B, parameterisation=kind).tolist() == [1] * 5
