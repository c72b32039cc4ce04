"""Timesteps that a model receives while text is unmasked: those of the grid, or those of the mask ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.diffusion.absorbing import unmask_probability
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.denoising import Canvas, State

TimestepSource = Literal["schedule", "mask_ratio"]
"""Source of the timestep. `schedule`: the current time of the sampler's grid. `mask_ratio`: the time at which the
expected mask ratio is that of the text, so that the model's output depends only on the tokens."""


@dataclass(frozen=True)
class Grid:
    """Times of a denoising loop: for each text from its mask ratio at the start to the mask ratio at the end."""

    process: TextProcess
    schedule: MaskSchedule
    steps: int
    start_B: Tensor
    """float64; 1 for a fully masked text"""
    end_B: Tensor
    """float64; 0 unless the sampler leaves some masks"""

    @classmethod
    def of(cls, canvas: Canvas, *, steps: int) -> Grid:
        """Make the grid for the masks of a canvas, some of which are to be written."""
        process, schedule = canvas.diffusion, canvas.diffusion.mask_schedule
        assert schedule is not None
        masked_BL = canvas.tokens == process.mask_id
        start_B, end_B = (
            schedule.time_of_mask_ratio(_ratio(process, canvas.tokens, chosen_BL))
            for chosen_BL in (masked_BL, masked_BL & ~canvas.writable_BL)
        )
        return cls(process, schedule, steps, start_B, end_B)

    def at(self, step: int) -> Tensor:
        """Return the time (B,) before `step`, float64; step = steps gives the end."""
        return self.start_B + (self.end_B - self.start_B) * (step / self.steps)

    def alpha(self, step: int) -> Tensor:
        """Return α_t (B,) before `step`, float64."""
        return self.schedule.alpha(self.at(step))

    def unmask_fraction(self, step: int) -> Tensor:
        """Compute `(α_s − α_t)/(α_end − α_t)` (B,), float64: the probability that `step` unmasks an open mask.

        With all masks open it is `(α_s − α_t)/(1 − α_t)` (MDLM eq. 7); the last step unmasks everything.
        """
        if step == self.steps - 1:
            return torch.ones_like(self.start_B)
        closed_B = 1 - torch.where(self.end_B > 0, self.alpha(self.steps), 1.0)
        return unmask_probability(self.alpha(step) + closed_B, self.alpha(step + 1) + closed_B)

    def timestep(self, source: TimestepSource) -> Callable[[State], Tensor]:
        """Return the function of the state that computes the times (B,) that the model receives."""

        def of_mask_ratio(state: State) -> Tensor:
            ratio_B = _ratio(self.process, state.tokens, state.tokens == self.process.mask_id)
            return self.schedule.time_of_mask_ratio(ratio_B)

        def of_schedule(state: State) -> Tensor:
            return self.at(state.step)

        return of_mask_ratio if source == "mask_ratio" else of_schedule


def _ratio(process: TextProcess, tokens_BL: Tensor, chosen_BL: Tensor) -> Tensor:
    valid_B = (tokens_BL != process.pad_id).sum(dim=1)
    return chosen_BL.sum(dim=1).double() / valid_B.clamp_min(1)
