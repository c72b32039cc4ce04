"""Curriculum of adaptive masking (ATAT): which tokens count more in the loss, as training proceeds.

Three stages, easy, medium and hard, emphasise the tokens of low, middle and high importance. The factors have mean 1
over the tokens of each text and multiply the loss. They never change a mask probability.

B examples, L positions.
"""

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.core import PositiveFloat, PositiveInt, config

Pace = Literal["step", "linear", "exponential", "dynamic"]
STAGES = ("easy", "medium", "hard")
EMPHASIS = (2.0, 1.5, 2.0)
"""Factor of a stage's tokens before the mean is set to 1; the other tokens have 1"""
EASY, HARD = 0.3, 0.7
"""Importance up to which a token is easy, and from which it is hard"""
RATE = 3.0
"""Of the exponential pace: e^(−RATE) of the way is left at the end"""


@config
class CurriculumConfig:
    """The course of the curriculum.

    With progress p from 0 at the end of the warm-up to 1 at the last step, a stage ends where the difficulty d reaches
    1/3 and 2/3. `step`: d = p, and the emphasis changes at once. `linear`: d = p, and the emphasis moves linearly from
    the middle of one stage to the middle of the next. `exponential`: as `linear`, with d = (1 − e^(−3p))/(1 − e^(−3)),
    so that hard tokens get most of the steps. `dynamic`: as `step`, but a stage also ends when the loss stops falling.

    Attributes:
        pace: see above.
        steps: steps until p is 1; null: the steps of the run, even if a budget of tokens decides their number.
        window: of `dynamic`: steps that a mean loss is taken over.
        plateau: of `dynamic`: a stage ends when a window's mean loss is not lower by this fraction than the last one's.
    """

    steps: PositiveInt | None = None
    pace: Pace = "linear"
    window: PositiveInt = 100
    plateau: PositiveFloat = 0.02


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """A curriculum of `steps` steps that begins after `warmup_steps` of them, in which all tokens count alike."""

    config: CurriculumConfig
    warmup_steps: int
    steps: int

    def difficulty(self, step: int) -> float:
        """Compute d in [0, 1] as a function of the step only."""
        progress = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        progress = min(max(progress, 0.0), 1.0)
        return math.expm1(-RATE * progress) / math.expm1(-RATE) if self.config.pace == "exponential" else progress

    def stage(self, step: int, *, reached: int = 0) -> int:
        """Return the stage, 1 to 3, or 0 during the warm-up; `reached` is the stage that `dynamic` has come to."""
        if step < self.warmup_steps:
            return 0
        return max(min(int(3 * self.difficulty(step)), 2) + 1, reached)

    def fractions(self, step: int, *, reached: int = 0) -> tuple[float, ...]:
        """Return how much of each stage's emphasis applies; they sum to 1, and are 0 during the warm-up."""
        stage = self.stage(step, reached=reached)
        if stage == 0:
            return (0.0,) * len(STAGES)
        place = stage - 1.0
        if self.config.pace in ("linear", "exponential"):
            place = min(max(3 * self.difficulty(step) - 0.5, 0.0), 2.0)
        return tuple(max(0.0, 1 - abs(place - number)) for number in range(len(STAGES)))


def factors(importance_BL: Tensor, valid_BL: Tensor, fractions: tuple[float, ...]) -> Tensor:
    """Compute the loss factors (B, L), float32, with mean 1 over the valid tokens of each text; 0 elsewhere.

    `fractions` are `Curriculum.fractions` at a step.
    """
    members = (importance_BL <= EASY, (importance_BL > EASY) & (importance_BL < HARD), importance_BL >= HARD)
    factor_BL = torch.ones(importance_BL.shape, device=importance_BL.device)
    for fraction, emphasis, member_BL in zip(fractions, EMPHASIS, members, strict=True):
        factor_BL = factor_BL + fraction * (emphasis - 1) * member_BL
    factor_BL = factor_BL.masked_fill(~valid_BL, 0.0)
    mean_B1 = factor_BL.sum(dim=1, keepdim=True) / valid_BL.sum(dim=1, keepdim=True).clamp_min(1)
    return factor_BL / mean_B1.clamp_min(1e-12)


# -- the state of the pace `dynamic` -----------------------------------------------------------------------------------


def plateau_start() -> Tensor:
    """Return the state before the first step, (4,) float64.

    The stage reached, the steps and the sum of losses of the current window, and the mean loss of the window before
    (infinite where there is none).
    """
    return torch.tensor([0.0, 0.0, 0.0, math.inf], dtype=torch.float64)


def plateau_after(state_4: Tensor, curriculum: Curriculum, loss: float, *, step: int) -> Tensor:
    """Compute the state after an applied step whose mean loss was `loss`, the same number on every rank."""
    reached, steps, total, before = state_4.tolist()
    stage = curriculum.stage(step, reached=int(reached))
    if stage == 0:
        return state_4
    if stage > reached:  # a new stage begins, and its windows with it
        reached, steps, total, before = float(stage), 0.0, 0.0, math.inf
    steps, total = steps + 1, total + loss
    if steps >= curriculum.config.window:
        mean = total / steps
        if reached < len(STAGES) and mean > (1 - curriculum.config.plateau) * before:
            reached, mean = reached + 1, math.inf
        steps, total, before = 0.0, 0.0, mean
    return state_4.new_tensor([reached, steps, total, before])
