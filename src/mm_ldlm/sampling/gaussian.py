"""Latent samplers (DDPM, DDIM and the base of others): from noise to a standardised latent.

They work for every Gaussian schedule and parameterisation, because they convert the model's output to a pair of
estimates (x0, ε); `signal` and `noise` are the schedule's factors, x_t = signal·x_0 + noise·ε. Times are evenly spaced
from `t_max` down to 0. The model is never evaluated at t = 0, where ε is undefined.

B latents, d dimensions, K draws.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, SamplingError, bounded, config
from mm_ldlm.diffusion.gaussian import FLOOR, Parameterisation, to_x0_and_eps
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule, Scales
from mm_ldlm.sampling.base import Overridable
from mm_ldlm.sampling.guidance import guide_prediction, no_condition
from mm_ldlm.sampling.limits import Draws, Guidance, Steps

Predict = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x_Bd, t_B, previous estimate of x0 (B, d) or None) → prediction (B, d) in the model's parameterisation."""


@dataclass(frozen=True, kw_only=True)
class LatentDenoiser:
    """Interface of a model for latent samplers: its prediction, parameterisation and schedule."""

    predict: Any
    """`Predict`, or `joint.PredictBoth` for the joint sampler"""
    parameterisation: Parameterisation
    schedule: GaussianSchedule
    unconditional: Predict | None = None
    """Prediction with the condition replaced by the learned null embedding; needed only for guidance"""
    self_condition: bool = False
    """Whether the model receives the previous estimate of x0"""


@dataclass(frozen=True)
class LatentSample:
    """Standardised latents and their cost."""

    latents: Tensor
    """(B, d): the mean over the draws"""
    draws: Tensor
    """(K, B, d)"""
    model_calls: int
    """Number of model calls on the entire batch; a guided call counts 2"""


# -- points of the grid, and what the model estimates there -----------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Time of the grid and its factors in float64, so that ratios near both ends stay accurate."""

    t: float
    signal: float
    noise: float

    @property
    def std(self) -> float:
        """Standard deviation of x_t for data of unit variance.

        Samplers start at noise of this std. The draw is exact at t = 1 for the flow and for variance-preserving
        schedules, which have no signal there.
        """
        return math.hypot(self.signal, self.noise)


def grid(
    schedule: GaussianSchedule, *, steps: int, t_max: float, device: torch.device | None = None
) -> list[Point]:  # fmt: skip
    """Make steps + 1 points from `t_max` to 0; the last has signal 1 and noise 0 exactly.

    Args:
        device: of the parameters of a schedule that learns.
    """
    times = torch.linspace(t_max, 0.0, steps + 1, dtype=torch.float64, device=device)
    signals, noises = (scale.tolist() for scale in schedule.scales(times))
    points = [Point(t, s, n) for t, s, n in zip(times.tolist(), signals, noises, strict=True)]
    return [*points[:-1], Point(0.0, 1.0, 0.0)]


@dataclass
class Estimator:
    """Estimator of (x0, ε) by the model, with guidance and self-conditioning; it counts the model calls."""

    denoise: LatentDenoiser
    guidance: float
    calls: int = 0
    previous: Tensor | None = None

    def __call__(self, x_Bd: Tensor, at: Point) -> tuple[Tensor, Tensor]:
        """Estimate (x0_Bd, eps_Bd) at a time above 0."""
        t_B = torch.full((x_Bd.shape[0],), at.t, dtype=torch.float32, device=x_Bd.device)
        prediction_Bd = self.denoise.predict(x_Bd, t_B, self.previous)
        self.calls += 1
        if self.guidance != 1.0:
            if self.denoise.unconditional is None:
                raise no_condition(self.guidance)
            unconditional_Bd = self.denoise.unconditional(x_Bd, t_B, self.previous)
            prediction_Bd = guide_prediction(prediction_Bd, unconditional_Bd, scale=self.guidance)
            self.calls += 1
        x0_Bd, eps_Bd = estimate_at(at, prediction_Bd, self.denoise.parameterisation, x_t_Bd=x_Bd)
        self.previous = x0_Bd if self.denoise.self_condition else None
        return x0_Bd, eps_Bd


def estimate_at(at: Point, prediction_Bd: Tensor, kind: Parameterisation, *, x_t_Bd: Tensor) -> tuple[Tensor, Tensor]:
    """Convert the model's prediction at a point of the grid to (x0, ε), each (B, d) in x_t's type.

    Raises:
        SamplingError: the model predicts ε where no signal is left, so x0 is undefined.
    """
    if kind == "eps" and at.signal <= FLOOR:
        raise SamplingError(
            f"a model that predicts ε has no estimate of x0 at t={at.t}, where no signal is left. "
            "Set t_max below 1, for example to 0.995."
        )
    scales = Scales(torch.full_like(x_t_Bd[:, 0], at.signal), torch.full_like(x_t_Bd[:, 0], at.noise))
    return to_x0_and_eps(prediction_Bd.to(x_t_Bd.dtype), kind, x_t_Bd, scales)


def posterior_std(now: Point, then: Point) -> float:
    """Compute the std of q(x_s | x_t, x0): (noise_s/noise_t)·√(noise_t² − (signal_t/signal_s)² noise_s²).

    For a variance-preserving schedule it is √((1−ᾱ_s)/(1−ᾱ_t))·√(1−ᾱ_t/ᾱ_s) (DDIM, arXiv:2010.02502, eq. 16 at η = 1).
    """
    added = now.noise**2 - (now.signal / then.signal) ** 2 * then.noise**2
    return then.noise / now.noise * math.sqrt(max(added, 0.0))


def ddim_step(
    x0_Bd: Tensor, eps_Bd: Tensor, now: Point, then: Point, *, eta: float, fresh: Callable[[], Tensor]
) -> Tensor:
    """Compute `x_s = signal_s x0 + √(noise_s² − σ²) ε + σz`, σ = η · `posterior_std`; `fresh` draws z (B, d)."""
    sigma = eta * posterior_std(now, then)
    x_Bd = then.signal * x0_Bd + math.sqrt(max(then.noise**2 - sigma**2, 0.0)) * eps_Bd
    return x_Bd + sigma * fresh() if sigma > 0 else x_Bd


# -- the samplers ------------------------------------------------------------------------------------------------------


@config
class GridSampler(Overridable, ABC):
    """Base and interface of the latent samplers: steps along a grid of times from `t_max` to 0.

    Attributes:
        steps: number of steps of the grid.
        guidance: g of `u + g(c − u)`; any value but 1 doubles the model calls.
        t_max: time at which the grid starts; it must be below 1 for models that predict ε, because their estimate of
            x0 needs some signal.
        draws: number K of samples for each latent; their mean is returned.
    """

    kind: str
    steps: Steps = 20
    guidance: Guidance = 1.0
    t_max: Annotated[float, bounded(gt=0, le=1)] = 1.0
    draws: Draws = 1

    @abstractmethod
    def solve(self, x_Bd: Tensor, points: list[Point], estimate: Estimator, generator: RowGenerator) -> Tensor:
        """Integrate x (B, d) from the first point of the grid to the last."""

    def sample(
        self, denoise: LatentDenoiser, *, dim: int, generator: RowGenerator, dtype: torch.dtype = torch.float32
    ) -> LatentSample:
        """Draw K standardised latents of `dim` dimensions for each row of `generator`, and compute their mean.

        Draw k of a row is a function of its row id and k, so more draws do not change the earlier ones.
        """
        points = grid(denoise.schedule, steps=self.steps, t_max=self.t_max, device=generator.device)
        samples, calls = [], 0
        for number in range(self.draws):
            stream, estimate = generator.fork(number), Estimator(denoise, self.guidance)
            x_Bd = points[0].std * stream.fork("start").normal(dim, dtype=dtype)
            samples.append(self.solve(x_Bd, points, estimate, stream))
            calls += estimate.calls
        draws_KBd = torch.stack(samples)
        return LatentSample(draws_KBd.mean(dim=0), draws_KBd, calls)


@config
class DdpmConfig(GridSampler):
    """DDPM: draws from q(x_s | x_t, x0) at each step (arXiv:2006.11239, eq. 7), which is DDIM at η = 1."""

    kind: str = "ddpm"
    eta: ClassVar[float] = 1.0

    def solve(self, x_Bd: Tensor, points: list[Point], estimate: Estimator, generator: RowGenerator) -> Tensor:
        """Take `ddim_step` down the grid."""
        for step, (now, then) in enumerate(pairwise(points)):
            x0_Bd, eps_Bd = estimate(x_Bd, now)
            fresh = partial(generator.fork(f"step {step}").normal, x_Bd.shape[1], dtype=x_Bd.dtype)
            x_Bd = ddim_step(x0_Bd, eps_Bd, now, then, eta=self.eta, fresh=fresh)
        return x_Bd


@config
class DdimConfig(DdpmConfig):
    """DDIM sampler (arXiv:2010.02502). With the true ε it returns x_0 exactly.

    Attributes:
        eta: 0 is deterministic, 1 has DDPM's variance.
    """

    kind: str = "ddim"
    eta: Fraction = 0.0  # type: ignore[misc]


@config
class OneStepConfig(DdpmConfig):
    """One-step estimate of x0 by a single model call, a step to time 0: the regression baseline for samplers."""

    kind: str = "one_step"
    steps: Literal[1] = 1
