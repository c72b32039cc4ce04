"""ReMDM samplers: ancestral sampling that masks written tokens again and rewrites them (arXiv:2503.00307).

In a step from t to s a written token returns to `[MASK]` with probability σ ≤ σ_max = min(1, (1 − α_s)/α_t), and a
mask is unmasked with probability `(α_s − (1 − σ)α_t)/(1 − α_t)`. If σ is the same for all positions, the mask ratio
follows the schedule. Tokens given at the start are never masked. The last step only unmasks.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, config, refuse_if
from mm_ldlm.diffusion.masked import max_remask_ratio, remask_unmask_probability
from mm_ldlm.sampling.base import UnmaskingSampler
from mm_ldlm.sampling.denoising import Canvas, Grid, State, TextSample, TimestepSource, denoising_loop


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

    def alpha(self, grid: Grid, step: int) -> Tensor:
        """Compute α (B,) of the open positions before a step.

        For a fully masked text it is the schedule's; otherwise it is 0 at the start of the grid and 1 at the end.
        """
        first_B, last_B, now_B = grid.alpha(0), grid.alpha(grid.steps), grid.alpha(step)
        fraction_B = (now_B - first_B) / (last_B - first_B).clamp_min(1e-12)
        return torch.where((grid.start_B >= 1) & (grid.end_B <= 0), now_B, fraction_B).clamp(0.0, 1.0)

    def remasks(self, time: float) -> bool:
        """Return whether written tokens are masked again at a time."""
        return True

    @abstractmethod
    def sigma(self, largest_B1: Tensor, state: State) -> Tensor:
        """Compute σ (B, 1) of all positions, or (B, L) of each, from σ_max."""

    def write(self, canvas: Canvas) -> TextSample:
        def levels(state: State) -> tuple[Tensor, Tensor, Tensor]:
            """Return α_t and α_s (B, 1) of a step, and σ."""
            now_B1, then_B1 = (self.alpha(state.grid, step).unsqueeze(1) for step in (state.step, state.step + 1))
            remasks = self.remasks(1 - state.step / self.steps)
            sigma = self.sigma(max_remask_ratio(now_B1, then_B1), state) if remasks else torch.zeros_like(now_B1)
            return now_B1, then_B1, sigma

        def remask(state: State) -> Tensor:
            return state.written & (state.uniform("return") < levels(state)[2])

        def query(state: State) -> Tensor:
            probability = remask_unmask_probability(*levels(state))
            return state.masked if state.last else state.masked & (state.uniform("unmask") < probability)

        return denoising_loop(
            canvas, self, timestep=self.timestep, query=query, remask=remask, skip_idle=self.skip_idle
        )


@config
class RemdmCapConfig(RemdmSampler):
    """ReMDM-cap: σ = min(η, σ_max), the same for all written tokens."""

    kind: str = "remdm_cap"

    def sigma(self, largest_B1: Tensor, state: State) -> Tensor:
        """Return min(η, σ_max) (B, 1)."""
        return largest_B1.clamp_max(self.eta)


@config
class RemdmRescaleConfig(RemdmSampler):
    """ReMDM-rescale: σ = η·σ_max, the same for all written tokens."""

    kind: str = "remdm_rescale"

    def sigma(self, largest_B1: Tensor, state: State) -> Tensor:
        """Return η·σ_max (B, 1)."""
        return self.eta * largest_B1


@config
class RemdmConfConfig(RemdmSampler):
    """ReMDM-conf: η·σ_max, divided among the written tokens by softmax(−confidence).

    As in the paper and its code (η = 1 there), the probabilities of a text add up to η·σ_max: a step masks at most one
    token again on average, however long the text is. `[MASK]` has σ = 0, so that the mask ratio is slightly above the
    schedule.
    """

    kind: str = "remdm_conf"
    eta: Fraction = 1.0

    def sigma(self, largest_B1: Tensor, state: State) -> Tensor:
        """Return η·σ_max·softmax(−confidence) (B, L) over the written tokens, 0 elsewhere."""
        doubt_BL = (-state.log_probs.double().exp()).masked_fill(~state.written, -torch.inf)
        return self.eta * largest_B1 * torch.nan_to_num(doubt_BL.softmax(dim=1))  # without written tokens all are −inf


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
        refuse_if(
            not self.t_off < self.t_on,
            f"t_off must be below t_on, found t_off={self.t_off}, t_on={self.t_on}",
            "t_off",
            "t_on",
        )

    def remasks(self, time: float) -> bool:
        return self.t_off < time <= self.t_on

    def alpha(self, grid: Grid, step: int) -> Tensor:
        """Return α, which rises to `alpha_on` while t > t_on, is constant while t > t_off, and rises to 1 at t = 0."""
        time, alpha = 1 - step / grid.steps, self.alpha_on
        if time > self.t_on:
            alpha = self.alpha_on * (1 - time) / (1 - self.t_on)
        elif time <= self.t_off:
            alpha = 1 - (1 - self.alpha_on) * time / max(self.t_off, 1e-12)
        return torch.full_like(grid.start_B, alpha)
