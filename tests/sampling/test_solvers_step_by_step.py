"""Every latent sampler against the formula of its paper, step by step, on a model whose estimates are known."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling import gaussian
from mm_ldlm.sampling.gaussian import Estimator, LatentDenoiser, Point, ddim_step, estimate_at, grid, posterior_std
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, latent_sampler

X0 = (1.0, 3.0, -2.0, 0.5, 4.0, -1.5, 2.5)
"""The estimate of x0 in each model call, whatever x is"""
START, STEPS = 0.75, 4
SCHEDULES = pytest.mark.parametrize("name", ["cosine", "linear", "sigmoid", "flow"])
T_MAX = pytest.mark.parametrize("t_max", [1.0, 0.9])


def solved(kind: str, points: list[Point], *, fresh: float, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> float:
    """Integrate one number from `START`; every draw of fresh noise is `fresh`."""
    calls = iter(X0)
    monkeypatch.setattr(gaussian, "_fresh", lambda generator, step, like_Bd: torch.full_like(like_Bd, fresh))
    denoise = LatentDenoiser(
        predict=lambda x, t, previous: torch.full_like(x, next(calls)), parameterisation="x0",
        schedule=GaussianSchedule(),
    )  # fmt: skip
    x_Bd = torch.full((1, 1), START, dtype=torch.float64)
    sampler = latent_sampler(kind, steps=len(points) - 1, **keys)
    return float(sampler.solve(x_Bd, points, Estimator(denoise, 1.0), RowGenerator(0, torch.arange(1))))


def ddim(points: list[Point], *, eta: float, fresh: float) -> float:
    """arXiv:2010.02502, eq. 12, with the scales of any schedule: the noise of x is re-used but for its fresh part."""
    x = START
    for x0, now, then in zip(X0, points, points[1:], strict=False):
        eps = (x - now.signal * x0) / now.noise
        forward = now.noise**2 - (now.signal / then.signal) ** 2 * then.noise**2
        sigma = eta * then.noise / now.noise * math.sqrt(forward)
        x = then.signal * x0 + math.sqrt(then.noise**2 - sigma**2) * eps + sigma * fresh
    return x


def ddpm(points: list[Point], *, fresh: float) -> float:
    """The product of N(x_s; signal_s·x0, noise_s²) and of the forward step N(x_t; a·x_s, b), as a Gaussian in x_s."""
    x = START
    for x0, now, then in zip(X0, points, points[1:], strict=False):
        a = now.signal / then.signal
        b = now.noise**2 - a**2 * then.noise**2
        if then.noise == 0:
            x = x0
            continue
        precision = 1 / then.noise**2 + a**2 / b
        x = (then.signal * x0 / then.noise**2 + a * x / b) / precision + fresh / math.sqrt(precision)
    return x


def flow_slope(x: float, x0: float, at: Point) -> float:
    return (x - at.signal * x0) / at.noise - x0


def euler(points: list[Point]) -> float:
    """y = x/(signal + noise) moves by ε − x0 in the time noise/(signal + noise)."""
    size = [at.signal + at.noise for at in points]
    y = START / size[0]
    for number, x0 in enumerate(X0[: len(points) - 1]):
        slope = flow_slope(y * size[number], x0, points[number])
        y += (points[number + 1].noise / size[number + 1] - points[number].noise / size[number]) * slope
    return y


def heun(points: list[Point]) -> float:
    """arXiv:2206.00364, algorithm 1, on the same flow: the mean of the slopes at both ends, but for the last step."""
    size = [at.signal + at.noise for at in points]
    y, calls = START / size[0], iter(X0)
    for number, (now, then) in enumerate(pairwise(points)):
        stride = then.noise / size[number + 1] - now.noise / size[number]
        first = flow_slope(y * size[number], next(calls), now)
        guess = y + stride * first
        if then.noise > 0:
            second = flow_slope(guess * size[number + 1], next(calls), then)
            guess = y + stride * (first + second) / 2
        y = guess
    return y


def dpmpp(points: list[Point]) -> float:
    """arXiv:2211.01095, algorithm 2, with h = λ_s − λ_t and λ = log(signal/noise); first order where h is infinite."""
    x, before, h_before = START, math.nan, math.inf
    for x0, now, then in zip(X0, points, points[1:], strict=False):
        h = math.inf
        if now.signal > 0 and then.noise > 0:
            h = math.log(then.signal / then.noise) - math.log(now.signal / now.noise)
        data = x0
        if math.isfinite(h) and math.isfinite(h_before):
            r = h_before / h
            data = (1 + 1 / (2 * r)) * x0 - before / (2 * r)
        if math.isfinite(h):
            x = then.noise / now.noise * x - then.signal * math.expm1(-h) * data
        else:
            x = then.noise / now.noise * x + (then.signal - now.signal * then.noise / now.noise) * data
        before, h_before = x0, h
    return x


@SCHEDULES
@T_MAX
@pytest.mark.parametrize("eta", [0.0, 0.6, 1.0])
def test_ddim_takes_its_own_steps(name: Any, t_max: float, eta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    points = grid(GaussianSchedule(name=name), steps=STEPS, t_max=t_max)
    found = solved("ddim", points, fresh=0.5, monkeypatch=monkeypatch, eta=eta)
    assert found == pytest.approx(ddim(points, eta=eta, fresh=0.5), abs=1e-5)


@SCHEDULES
@T_MAX
def test_ddpm_draws_from_the_posterior_of_each_step(name: Any, t_max: float, monkeypatch: pytest.MonkeyPatch) -> None:
    points = grid(GaussianSchedule(name=name), steps=STEPS, t_max=t_max)
    for count in range(2, STEPS + 2):  # also where the last step leaves noise
        some = points[:count]
        found = solved("ddpm", some, fresh=0.5, monkeypatch=monkeypatch)
        assert found == pytest.approx(ddpm(some, fresh=0.5), abs=1e-5)


@SCHEDULES
@T_MAX
@pytest.mark.parametrize(("kind", "reference"), [("euler", euler), ("heun", heun), ("dpmpp_2m", dpmpp)])
def test_a_solver_of_the_flow_takes_the_steps_of_its_paper(
    kind: str, reference: Any, name: Any, t_max: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = grid(GaussianSchedule(name=name), steps=STEPS, t_max=t_max)
    for count in range(2, STEPS + 2):
        some = points[:count]
        found = solved(kind, some, fresh=9.0, monkeypatch=monkeypatch)
        assert found == pytest.approx(reference(some), abs=1e-5), f"{count - 1} steps, no noise"


@SCHEDULES
@pytest.mark.parametrize(
    ("kind", "keys", "draws"),
    [("ddpm", {}, [0, 1]), ("ddim", {"eta": 1.0}, [0, 1]), ("ddim", {"eta": 0.0}, []), ("dpmpp_2m", {}, [])],
)
def test_the_last_step_returns_the_estimate_itself_and_draws_no_noise(
    kind: str, keys: dict[str, float], draws: list[int], name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def fresh(generator: Any, step: int, like_Bd: Tensor) -> Tensor:
        drawn.append(step)
        return torch.ones_like(like_Bd)

    monkeypatch.setattr(gaussian, "_fresh", fresh)
    schedule = GaussianSchedule(name=name)
    x0_Bd = torch.linspace(-3, 3, 64, dtype=torch.float64)[None]
    denoise = LatentDenoiser(predict=lambda x, t, previous: x0_Bd, parameterisation="x0", schedule=schedule)
    points = grid(schedule, steps=3, t_max=0.9)
    found = latent_sampler(kind, steps=3, **keys).solve(
        torch.full_like(x0_Bd, START), points, Estimator(denoise, 1.0), RowGenerator(0, torch.arange(1))
    )
    assert drawn == draws
    if kind != "dpmpp_2m":
        assert torch.equal(found, x0_Bd)
    assert torch.allclose(found, x0_Bd, rtol=1e-12)


def test_rounding_leaves_no_negative_variance() -> None:
    """A step between almost equal points, and a variance that is all of the noise, are just below 0 in float64."""
    assert posterior_std(Point(0.5, 0.6, 0.8), Point(0.4, 0.6, 0.8 + 1e-9)) == 0.0
    one = torch.ones(1, 1, dtype=torch.float64)
    for number in range(1, 200):
        now, then = Point(1.0, 0.0, 1 - number / 977), Point(0.9, 0.3, 1 - number / 613)
        found = ddim_step(one, 7 * one, now, then, eta=1.0, fresh=lambda: 5 * one)
        assert float(found) == pytest.approx(0.3 + 5 * then.noise, abs=1e-5), "the old noise is all gone"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["x0", "v", "flow", "eps"])
def test_estimates_have_the_type_of_the_latent_and_not_that_of_the_prediction(dtype: torch.dtype, kind: Any) -> None:
    """A model under autocast predicts in bfloat16, and the latents of a request are float32."""
    x_Bd = torch.tensor([[0.5, -1.0]])
    prediction_Bd = torch.tensor([[0.25, 2.0]], dtype=dtype)
    found = estimate_at(Point(0.5, 0.6, 0.8), prediction_Bd, kind, x_t_Bd=x_Bd)
    expected = estimate_at(Point(0.5, 0.6, 0.8), prediction_Bd.float(), kind, x_t_Bd=x_Bd)
    for each, other in zip(found, expected, strict=True):
        assert each.dtype == torch.float32
        assert torch.equal(each, other)


@pytest.mark.parametrize("kind", LATENT_SAMPLERS.known)
def test_latents_are_float32_whatever_the_model_returns(kind: str) -> None:
    denoise = LatentDenoiser(
        predict=lambda x, t, previous: torch.ones(x.shape, dtype=torch.float64), parameterisation="x0",
        schedule=GaussianSchedule(),
    )  # fmt: skip
    found = latent_sampler(kind, draws=2).sample(denoise, dim=3, generator=RowGenerator(0, torch.arange(2)))
    assert found.draws.dtype == found.latents.dtype == torch.float32
    assert found.draws.shape == (2, 2, 3)


def test_both_predictions_and_the_calls_of_every_draw_are_counted() -> None:
    asked: list[str] = []

    def predict(side: str) -> Any:
        def prediction(x: Tensor, t: Tensor, previous: Tensor | None) -> Tensor:
            asked.append(side)
            return torch.zeros_like(x)

        return prediction

    denoise = LatentDenoiser(
        predict=predict("given"), unconditional=predict("null"), parameterisation="x0", schedule=GaussianSchedule()
    )  # fmt: skip
    for kind, calls in (("ddim", 3), ("ddpm", 3), ("euler", 3), ("heun", 5), ("dpmpp_2m", 3), ("one_step", 1)):
        for guidance, price in ((1.0, 1), (0.5, 2), (0.0, 2)):
            asked.clear()
            steps = {} if kind == "one_step" else {"steps": 3}
            found = latent_sampler(kind, draws=2, guidance=guidance, **steps).sample(
                denoise, dim=1, generator=RowGenerator(0, torch.arange(1))
            )
            assert found.model_calls == len(asked) == 2 * calls * price, (kind, guidance)
            assert asked.count("null") == 2 * calls * (price - 1)
