"""ReMDM samplers: ancestral sampling that masks written tokens again and rewrites them (arXiv:2503.00307).

In a step from t to s a written token returns to `[MASK]` with probability σ ≤ σ_max = min(1, (1 − α_s)/α_t), and a
mask is unmasked with probability `(α_s − (1 − σ)α_t)/(1 − α_t)`, so the mask ratio follows the schedule for every σ.
Tokens given at the start are never masked. The last step only unmasks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mm_ldlm.core.config import Fraction, InvalidValue, config
from mm_ldlm.diffusion.absorbing import max_remask_ratio, remask_unmask_probability
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.base import UnmaskingSampler
from mm_ldlm.sampling.denoising import Query, State, TextDenoiser, TextSample, denoising_loop
from mm_ldlm.sampling.time_grid import Grid, TimestepSource, choose_timestep, make_grid


@dataclass(frozen=True)
class Level:
    """α before and after a step, for the open positions of each text."""

    now: Tensor
    """(B,) α_t"""
    then: Tensor
    """(B,) α_s"""
    remasking: bool = True

    @property
    def largest_sigma(self) -> Tensor:
        """(B,) σ_max; 1 at α_t = 0, where nothing is written yet"""
        return max_remask_ratio(self.now, self.then)

    def unmask_probability(self, sigma_B: Tensor) -> Tensor:
        """Compute the probability (B,) that a mask is unmasked while written tokens return with probability σ."""
        return remask_unmask_probability(self.now, self.then, sigma_B)


@config
class RemdmSampler(UnmaskingSampler):
    """Base of the ReMDM samplers.

    Attributes:
        timestep: the timestep that the model receives.
        skip_idle: call the model only for texts in which a step unmasks a token, as in `ancestral`.
        eta: η, the strength of remasking.
    """

    timestep: TimestepSource = "mask_ratio"
    skip_idle: bool = False
    eta: Fraction = 0.1

    def level(self, grid: Grid, step: int) -> Level:
        """Return α before and after a step."""
        return Level(_open_alpha(grid, step), _open_alpha(grid, step + 1))

    @abstractmethod
    def sigma(self, level: Level) -> Tensor:
        """Compute σ (B,), the mean probability that a written token is masked again."""

    def remask_weight(self, state: State) -> Tensor:
        """Compute the factor (B, L) of σ for each written token; its mean over them is 1."""
        return torch.ones_like(state.log_probs, dtype=torch.float64)

    def unmask(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        schedule: MaskSchedule,
        generator: RowGenerator,
        open_BL: Tensor | None,
    ) -> TextSample:
        """See `UnmaskingSampler.unmask`."""
        grid = make_grid(denoise, tokens_BL, schedule=schedule, steps=self.steps, open_BL=open_BL)

        def sigma_at(level: Level) -> Tensor:
            return self.sigma(level) if level.remasking else torch.zeros_like(level.now)

        def remask(state: State) -> Tensor:
            sigma_B1 = sigma_at(self.level(grid, state.step)).unsqueeze(1)
            return state.written & (state.uniform("return") < sigma_B1 * self.remask_weight(state))

        def query(state: State) -> Query:
            level = self.level(grid, state.step)
            probability_B1 = level.unmask_probability(sigma_at(level)).unsqueeze(1)
            unmasked_BL = state.masked if state.last else state.masked & (state.uniform("unmask") < probability_B1)
            return Query.where_needed(unmasked_BL) if self.skip_idle else Query(unmasked_BL, state.masked.any(dim=1))

        return denoising_loop(
            denoise,
            tokens_BL,
            steps=self.steps,
            generator=generator,
            draw=self.draw,
            timestep=choose_timestep(self.timestep, denoise, grid),
            query=query,
            remask=remask,
            open_BL=open_BL,
        )


@config
class RemdmCapConfig(RemdmSampler):
    """ReMDM-cap: σ = min(η, σ_max), the same for all written tokens."""

    kind: str = "remdm_cap"

    def sigma(self, level: Level) -> Tensor:
        """Return min(η, σ_max) (B,)."""
        return level.largest_sigma.clamp_max(self.eta)


@config
class RemdmRescaleConfig(RemdmSampler):
    """ReMDM-rescale: σ = η·σ_max, the same for all written tokens."""

    kind: str = "remdm_rescale"

    def sigma(self, level: Level) -> Tensor:
        """Return η·σ_max (B,)."""
        return self.eta * level.largest_sigma


@config
class RemdmConfConfig(RemdmRescaleConfig):
    """ReMDM-conf: σ = η·σ_max on average, distributed over the written tokens by softmax(−confidence)."""

    kind: str = "remdm_conf"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta > 1 / math.e:
            raise InvalidValue(
                f"eta of 'remdm_conf' must be at most 1/e = 0.367, found {self.eta}: an uncertain token is remasked up "
                "to e times as often as the mean, and no probability may exceed 1",
                "eta",
            )

    def remask_weight(self, state: State) -> Tensor:
        """Compute softmax(−confidence) (B, L) over the written tokens, scaled to a mean of 1 over them."""
        uncertainty_BL = (-state.log_probs.double().exp()).masked_fill(~state.written, -torch.inf)
        weight_BL = torch.nan_to_num(uncertainty_BL.softmax(dim=1))  # a text without written tokens is all −inf
        return weight_BL * state.written.sum(dim=1, keepdim=True)


@config
class RemdmLoopConfig(RemdmCapConfig):
    """ReMDM-loop: unmask until `t_on`, rewrite tokens at a constant α until `t_off`, then unmask the rest.

    Attributes:
        t_on, t_off: times between which tokens are masked again.
        alpha_on: constant α between these times.
    """

    kind: str = "remdm_loop"
    t_on: Fraction = 0.55
    t_off: Fraction = 0.05
    alpha_on: Fraction = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.t_off < self.t_on:
            raise InvalidValue(f"t_off must be below t_on, found t_off={self.t_off}, t_on={self.t_on}", "t_off", "t_on")

    def level(self, grid: Grid, step: int) -> Level:
        """Return α, which rises to `alpha_on` while t > t_on, is constant while t > t_off, and rises to 1 at t = 0."""
        now, then = 1 - step / grid.steps, 1 - (step + 1) / grid.steps
        ones_B = torch.ones_like(grid.start_B)
        return Level(ones_B * self._alpha(now), ones_B * self._alpha(then), remasking=self.t_off < now <= self.t_on)

    def _alpha(self, time: float) -> float:
        if time > self.t_on:
            return self.alpha_on * (1 - time) / (1 - self.t_on)
        return self.alpha_on if time > self.t_off else 1 - (1 - self.alpha_on) * time / max(self.t_off, 1e-12)


def _open_alpha(grid: Grid, step: int) -> Tensor:
    """Compute α (B,) of the open positions before a step.

    For a fully masked text it is the α of the schedule; otherwise it is 0 at the start of the grid and 1 at its end.
    """
    first_B, last_B = grid.alpha(0), grid.alpha(grid.steps)
    whole_B = (grid.start_B >= 1) & (grid.end_B <= 0)
    fraction_B = (grid.alpha(step) - first_B) / (last_B - first_B).clamp_min(1e-12)
    return torch.where(whole_B, grid.alpha(step), fraction_B).clamp(0.0, 1.0)
