"""Every noise schedule of both registries, against derivatives, inverses and closed forms."""

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import ConfigurationError, Kinds, parse_kind
from mm_ldlm.diffusion.registry import GAUSSIAN_SCHEDULES, MASK_SCHEDULES
from mm_ldlm.diffusion.schedules import CosineLatents, Flow, Geometric, LinearLatents, LogLinear

t64 = torch.linspace(1e-3, 1, 2000, dtype=torch.float64)
every_mask_schedule = pytest.mark.parametrize("kind", MASK_SCHEDULES.known)
every_gaussian_schedule = pytest.mark.parametrize("kind", GAUSSIAN_SCHEDULES.known)


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


def test_the_log_linear_weight_is_one_over_t_and_the_geometric_ends_are_the_papers() -> None:
    assert torch.allclose(LogLinear().weight(t64), 1 / t64, rtol=1e-12)
    sigma = -Geometric().alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).log()
    assert sigma.tolist() == pytest.approx([1e-4, 20.0], rel=1e-5)


@every_gaussian_schedule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pitfall_19_schedules_preserve_variance(kind: str, dtype: torch.dtype) -> None:
    schedule, t = schedule_of(GAUSSIAN_SCHEDULES, kind), torch.linspace(0, 1, 1001, dtype=dtype)
    signal, noise = schedule.scales(t)
    total = signal.square() + noise.square()
    assert torch.allclose(total, torch.ones_like(t), atol=1e-6) == schedule.variance_preserving
    assert float(torch.stack([signal, noise]).amin()) >= 0
    assert float(torch.stack([signal, noise]).amax()) <= 1
    assert [float(x) for x in (signal[0], noise[-1])] == pytest.approx([1, 1], abs=1e-3)
    assert max(float(x) for x in (noise[0], signal[-1])) < 0.02
    assert bool((schedule.scales(t[1:]).snr_B.diff() < 0).all())


@given(kind=st.sampled_from([*GAUSSIAN_SCHEDULES.known]), times=st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_pitfall_05_the_noise_of_a_row_does_not_depend_on_its_neighbours(kind: str, times: list[float]) -> None:
    schedule = schedule_of(GAUSSIAN_SCHEDULES, kind)
    together = torch.stack(schedule.scales(torch.tensor(times)))
    alone = torch.cat([torch.stack(schedule.scales(torch.tensor([t]))) for t in times], dim=1)
    torch.testing.assert_close(together, alone)


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
