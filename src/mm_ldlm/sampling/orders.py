"""Samplers that unmask a fixed number of tokens per step, ordered by confidence, margin, entropy, or at random."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core.config import config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.base import UnmaskingSampler
from mm_ldlm.sampling.denoising import (
    Prediction,
    Query,
    State,
    TextDenoiser,
    TextSample,
    denoising_loop,
    open_positions,
)
from mm_ldlm.sampling.time_grid import TimestepSource, choose_timestep, make_grid

Counts = Literal["linear", "cosine"]


@config
class OrderedSampler(UnmaskingSampler):
    """Base of the samplers that draw a token at every mask and keep the tokens of the highest scores.

    Attributes:
        timestep: the timestep that the model receives.
        counts: schedule of the number of tokens that each step unmasks: equal numbers, or few at first and more later.
    """

    timestep: TimestepSource = "mask_ratio"
    counts: Counts = "linear"

    statistics: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def score(self, state: State, prediction: Prediction) -> Tensor:
        """Score the evaluated positions (A, L); the highest are kept."""

    def choose(self, state: State, prediction: Prediction, due_A: Tensor) -> Tensor:
        """Select (A, L) the drawn tokens that are kept, `due_A` of each text."""
        return top_by_row(self.score(state, prediction), due_A)

    def unmask(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        schedule: MaskSchedule,
        generator: RowGenerator,
        open_BL: Tensor | None,
    ) -> TextSample:
        """See `UnmaskingSampler.unmask`. A text with nothing to unmask in a step is not evaluated in it."""
        grid = make_grid(denoise, tokens_BL, schedule=schedule, steps=self.steps, open_BL=open_BL)
        open_B = open_positions(denoise, tokens_BL, open_BL).sum(dim=1)

        def due(state: State) -> Tensor:
            left_B = masks_left(open_B, step=state.step, steps=self.steps, counts=self.counts)
            return (state.masked.sum(dim=1) - left_B).clamp_min(0)

        def query(state: State) -> Query:
            return Query.where_needed(state.masked & (due(state) > 0).unsqueeze(1))

        def keep(state: State, prediction: Prediction) -> Tensor:
            return self.choose(state, prediction, due(state)[prediction.rows])

        return denoising_loop(
            denoise,
            tokens_BL,
            steps=self.steps,
            generator=generator,
            draw=self.draw,
            timestep=choose_timestep(self.timestep, denoise, grid),
            query=query,
            keep=keep,
            open_BL=open_BL,
            statistics=self.statistics,
        )


@config
class ConfidenceConfig(OrderedSampler):
    """Keep the drawn tokens of the highest probability (LLaDA, arXiv:2502.09992)."""

    kind: str = "confidence"

    def score(self, state: State, prediction: Prediction) -> Tensor:
        """Return the log-probability of the drawn token."""
        return prediction.log_prob


@config
class MarginConfig(OrderedSampler):
    """Keep the tokens with the largest margin between the best and the second-best probability."""

    kind: str = "margin"

    statistics: ClassVar[tuple[str, ...]] = ("margin",)

    def score(self, state: State, prediction: Prediction) -> Tensor:
        """Return the probability of the best token minus that of the second."""
        assert prediction.margin is not None
        return prediction.margin


@config
class EntropyConfig(OrderedSampler):
    """Keep the tokens with the lowest entropy of the model's distribution."""

    kind: str = "entropy"

    statistics: ClassVar[tuple[str, ...]] = ("entropy",)

    def score(self, state: State, prediction: Prediction) -> Tensor:
        """Return the negative entropy."""
        assert prediction.entropy is not None
        return -prediction.entropy


@config
class RandomConfig(OrderedSampler):
    """Keep tokens at random positions."""

    kind: str = "random"

    def score(self, state: State, prediction: Prediction) -> Tensor:
        """Return a random number."""
        return state.uniform("order")[prediction.rows].masked_fill(~prediction.evaluated, -1.0)


def masks_left(open_B: Tensor, *, step: int, steps: int, counts: Counts) -> Tensor:
    """Compute how many (B,) of `open_B` masks remain after `step`, rounded down; 0 after the last step.

    `linear` unmasks equal numbers; `cosine` unmasks few tokens at first, when there is little context, and more later
    (MaskGIT, arXiv:2202.04200).
    """
    progress = (step + 1) / steps
    left = 1 - progress if counts == "linear" else math.cos(progress * math.pi / 2)
    return torch.floor(open_B.double() * max(left, 0.0) + 1e-9).long() if step + 1 < steps else torch.zeros_like(open_B)


def top_by_row(score_AL: Tensor, count_A: Tensor) -> Tensor:
    """Select the `count_A` positions of the highest score in each row (A, L); the earlier position wins a tie."""
    rank_AL = score_AL.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return rank_AL < count_A.unsqueeze(1)
