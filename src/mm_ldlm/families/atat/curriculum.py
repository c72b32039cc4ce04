"""Curriculum of adaptive masking (ATAT): which tokens count more in the loss, as training proceeds.

Three stages, easy, medium and hard, emphasise the tokens of low, middle and high importance. The factors have mean 1
over the tokens of each text and multiply the loss. They never change a mask probability.

B examples, L positions.
"""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from mm_ldlm.core import PositiveInt, config

STAGES = ("easy", "medium", "hard")
EMPHASIS = (2.0, 1.5, 2.0)
"""Factor of a stage's tokens before the mean is set to 1; the other tokens have 1"""
EASY, HARD = 0.3, 0.7
"""Importance up to which a token is easy, and from which it is hard"""


@config
class CurriculumConfig:
    """The course of the curriculum, whose emphasis moves linearly from the middle of one stage to that of the next.

    Attributes:
        steps: steps until the course is over; null: the steps of the run, even if a budget of tokens decides their
            number.
    """

    RETIRED: ClassVar[dict[str, Any]] = {"pace": "linear", "window": 100, "plateau": 0.02}

    steps: PositiveInt | None = None


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """A curriculum of `steps` steps that begins after `warmup_steps` of them, in which all tokens count alike."""

    warmup_steps: int
    steps: int

    def progress(self, step: int) -> float:
        """Compute the progress, from 0 at the end of the warm-up to 1 at the last step."""
        return min(max((step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1), 0.0), 1.0)

    def stage(self, step: int) -> int:
        """Return the stage, 1 to 3, or 0 during the warm-up."""
        return min(int(3 * self.progress(step)), 2) + 1 if step >= self.warmup_steps else 0

    def fractions(self, step: int) -> tuple[float, ...]:
        """Return how much of each stage's emphasis applies; they sum to 1, and are 0 during the warm-up."""
        if step < self.warmup_steps:
            return (0.0,) * len(STAGES)
        place = min(max(3 * self.progress(step) - 0.5, 0.0), 2.0)
        return tuple(max(0.0, 1 - abs(place - number)) for number in range(len(STAGES)))


def factors(importance_BL: Tensor, valid_BL: Tensor, fractions: tuple[float, ...]) -> Tensor:
    """Compute the loss factors (B, L), float32, with mean 1 over the valid tokens of each text; 0 elsewhere.

    `fractions` are those of `Curriculum.fractions` at a step.
    """
    members = (importance_BL <= EASY, (importance_BL > EASY) & (importance_BL < HARD), importance_BL >= HARD)
    factor_BL = torch.ones(importance_BL.shape, device=importance_BL.device)
    for fraction, emphasis, member_BL in zip(fractions, EMPHASIS, members, strict=True):
        factor_BL = factor_BL + fraction * (emphasis - 1) * member_BL
    factor_BL = factor_BL.masked_fill(~valid_BL, 0.0)
    mean_B1 = factor_BL.sum(dim=1, keepdim=True) / valid_BL.sum(dim=1, keepdim=True).clamp_min(1)
    return factor_BL / mean_B1.clamp_min(1e-12)
