"""Latent samplers against distributions known in closed form."""

import dataclasses
import itertools
import math

import pytest
import torch
from tests.sampling.toys import rows

from mm_ldlm.core import SamplingError, parse_kind
from mm_ldlm.diffusion import gaussian as diffusion
from mm_ldlm.diffusion.schedules import GAUSSIAN_SCHEDULES, CosineLatents, Scales
from mm_ldlm.sampling.gaussian import Estimator, LatentDenoiser, grid
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, latent_sampler

SCHEDULES = tuple(GAUSSIAN_SCHEDULES.known)
PARAMETERISATIONS = ("eps", "x0", "v", "flow")
KINDS = tuple(LATENT_SAMPLERS.known)


def scheduled(kind):
    return parse_kind(GAUSSIAN_SCHEDULES, {"kind": kind}, at="").build()


def toy(schedule, mean=0.7, std=0.5, parameterisation="x0"):
    """Data N(mean, std²) in every coordinate: the exact model, and the exact flow from t to 0."""
    schedule = scheduled(schedule)

    def factors(t):
        return tuple(scale.view(-1, 1) for scale in schedule.scales(t.double()))

    def predict(x, t, previous):
        s, n = factors(t)
        x0 = mean + std**2 * s / (s**2 * std**2 + n**2) * (x - s * mean)
        eps = n / (s**2 * std**2 + n**2) * (x - s * mean)
        return diffusion.target(parameterisation, x0, eps, Scales(s.flatten(), n.flatten()))

    def flow_to_data(x, t):
        s, n = factors(torch.tensor([t]))
        return mean + std * (x - s * mean) / (s**2 * std**2 + n**2).sqrt()

    return LatentDenoiser(predict=predict, parameterisation=parameterisation, schedule=schedule), flow_to_data


def start(rows_n=64, dim=3):
    return torch.randn(rows_n, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run(name, denoise, x, *, steps, t_max=0.98, **more):
    points = grid(denoise.schedule, steps=steps, t_max=t_max)
    return latent_sampler(name, **more).solve(x, points, Estimator(denoise, 1.0), rows(len(x)))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("parameterisation", PARAMETERISATIONS)
@pytest.mark.parametrize("steps", [1, 7])
def test_ddim_with_the_true_noise_returns_x0_exactly(schedule, parameterisation, steps):
    x0, eps = start(8), start(8).flip(0) * 1.3
    made = scheduled(schedule)

    def predict(x, t, previous):
        return diffusion.target(parameterisation, x0, eps, made.scales(t.double()))

    t_max = 0.98 if parameterisation == "eps" else 1.0
    at = torch.full((8,), t_max, dtype=torch.float64)
    x = diffusion.add_noise(x0, eps, made.scales(at))
    denoise = LatentDenoiser(predict=predict, parameterisation=parameterisation, schedule=made)
    out = run("ddim", denoise, x, steps=steps, t_max=t_max)
    tolerance = 1e-5 if parameterisation == "eps" else 1e-6  # eps divides by a small signal, at float32 times
    assert torch.allclose(out, x0, atol=tolerance * 10)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("parameterisation", ["x0", "v", "flow"])
def test_pitfall_12_finite_at_both_ends(name, schedule, parameterisation):
    if parameterisation == "v" and schedule == "flow":
        return  # refused by the objective: v needs a variance preserving schedule
    denoise, _ = toy(schedule, parameterisation=parameterisation)
    for steps in (1, 2, 9):
        out = run(name, denoise, start(), steps=steps, t_max=1.0)
        assert torch.isfinite(out).all()
        assert out.abs().max() < 20


def error(name, schedule, steps):
    denoise, exact = toy(schedule)
    x = start()
    return float((run(name, denoise, x, steps=steps, t_max=0.9) - exact(x, 0.9)).abs().max())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ddim_is_of_first_order_on_a_gaussian(schedule):
    coarse, fine = error("ddim", schedule, 40), error("ddim", schedule, 80)
    assert math.log2(coarse / fine) > 0.8
    assert fine < 0.07


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ddpm_takes_the_steps_of_the_posterior_and_is_ddim_at_eta_one(schedule):
    """q(x_s | x_t, x0) of arXiv:2107.00630, appendix A."""
    denoise, _ = toy(schedule)
    x, points, generator = start(), grid(denoise.schedule, steps=9, t_max=0.98), rows(64)
    one = run("ddpm", denoise, x, steps=9)
    assert torch.equal(one, run("ddim", denoise, x, steps=9, eta=1.0))
    for step, (now, then) in enumerate(itertools.pairwise(points)):
        x0, _ = Estimator(denoise, 1.0)(x, now)
        kept = now.signal / then.signal
        added = now.noise**2 - kept**2 * then.noise**2  # variance that the forward process adds from s to t
        x = (kept * then.noise**2 * x + then.signal * added * x0) / now.noise**2
        std = (then.noise**2 * added / (added + kept**2 * then.noise**2)) ** 0.5
        x = x + std * generator.fork(f"step {step}").normal(3, dtype=x.dtype)
    assert torch.allclose(one, x, atol=1e-7)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("name", "mean", "std", "more"), [
    ("ddpm", 0.7, 0.5, {"steps": 400}), ("ddim", 0.7, 0.5, {"steps": 300}), ("ddim", 0.0, 1.0, {"steps": 60, "t_max": 0.5}),
])  # fmt: skip
def test_samples_have_the_datas_moments(name, mean, std, more, schedule):
    """The start below t = 1 is exact for standardised data."""
    denoise, _ = toy(schedule, mean=mean, std=std)
    # DDPM's variance takes the estimate of x0 for x0 itself, so its samples are a little narrow until steps are many
    sampler = latent_sampler(name, **more)
    x = sampler.sample(denoise, dim=4, generator=rows(2000), dtype=torch.float64).latents
    assert abs(float(x.mean()) - mean) < 0.03 * std
    assert abs(float(x.std()) - std) < 0.04 * std


def test_a_sample_does_not_depend_on_its_batch():
    denoise, _ = toy("cosine")
    for name in KINDS:
        sampler = latent_sampler(name, **({"eta": 0.5} if name == "ddim" else {}))
        whole = sampler.sample(denoise, dim=4, generator=rows(6)).latents
        part = sampler.sample(denoise, dim=4, generator=rows(6).select(torch.tensor([4, 1]))).latents
        assert torch.allclose(whole[[4, 1]], part, atol=1e-6)


def test_guidance_extrapolates_and_costs_double():
    schedule = CosineLatents().build()

    def constant(value):
        return lambda x, t, previous: torch.full_like(x, value)

    plain = LatentDenoiser(predict=constant(1.0), parameterisation="x0", schedule=schedule)
    guided = LatentDenoiser(
        predict=constant(1.0), unconditional=constant(0.25), parameterisation="x0", schedule=schedule
    )
    sampler = latent_sampler("ddim", steps=3, guidance=2.0)
    with pytest.raises(SamplingError, match=r"guidance 2\.0 needs an unconditional prediction"):
        sampler.sample(plain, dim=2, generator=rows(2))
    out = sampler.sample(guided, dim=2, generator=rows(2))
    assert torch.allclose(out.latents, torch.full((2, 2), 0.25 + 2 * 0.75))
    assert out.model_calls == 6
    plain_sampler = latent_sampler("ddim", steps=3)
    assert plain_sampler.sample(guided, dim=2, generator=rows(2)).model_calls == 3


def test_self_conditioning_passes_the_last_estimate_to_the_model():
    received = []

    def predict(x, t, previous):
        received.append(previous)
        return torch.full_like(x, float(len(received)))

    for on in (True, False):
        received.clear()
        denoise = LatentDenoiser(
            predict=predict, parameterisation="x0", schedule=CosineLatents().build(), self_condition=on
        )
        latent_sampler("ddim", steps=3, draws=2).sample(denoise, dim=2, generator=rows(1))
        estimates = [None, 1.0, 2.0, None, 4.0, 5.0]  # every draw begins without one
        assert [None if x is None else float(x[0, 0]) for x in received] == (estimates if on else [None] * 6)
        received.clear()
        guided = dataclasses.replace(denoise, unconditional=predict)
        latent_sampler("ddim", steps=3, guidance=2.0).sample(guided, dim=2, generator=rows(1))
        assert all(one is two for one, two in zip(received[::2], received[1::2], strict=True)), "both calls of a step"


def test_eps_models_are_refused_where_no_signal_is_left():
    denoise, _ = toy("cosine", parameterisation="eps")
    with pytest.raises(SamplingError, match="Set t_max below 1"):
        latent_sampler("ddim", steps=3).sample(denoise, dim=2, generator=rows(1))
    out = latent_sampler("ddim", steps=30, t_max=0.98).sample(denoise, dim=2, generator=rows(200))
    assert abs(float(out.latents.mean()) - 0.7) < 0.1
