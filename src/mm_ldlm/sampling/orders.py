"""Samplers that draw a token at every mask and keep the most certain ones.

`confidence`, `entropy` and `random` keep a fixed number in each step. `threshold` keeps what is certain enough: an easy
text takes few model calls and a hard text many, at most `steps`.
"""

import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, SamplingError, config
from mm_ldlm.diffusion.distributions import entropy
from mm_ldlm.sampling.base import UnmaskingSampler
from mm_ldlm.sampling.denoising import (
    Canvas,
    Prediction,
    State,
    TextDenoiser,
    TextSample,
    TimestepSource,
    denoising_loop,
)

Counts = Literal["linear", "cosine"]


@config
class OrderedSampler(UnmaskingSampler):
    """Base of the samplers that keep a fixed number of tokens in each step: the tokens with the highest scores.

    Attributes:
        timestep: the timestep that the model receives.
        counts: schedule of the number of tokens that each step unmasks: equal numbers, or few at first and more later.
    """

    timestep: TimestepSource = "mask_ratio"
    counts: Counts = "linear"

    @abstractmethod
    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Score the evaluated positions (B, L); the highest are kept."""

    def choose(self, denoise: TextDenoiser, state: State, prediction: Prediction, due_B: Tensor) -> Tensor:
        """Select (B, L) the drawn tokens that are kept, `due_B` of each text."""
        score_BL = self.score(denoise, state, prediction)
        if score_BL.shape != state.tokens.shape:
            raise SamplingError(
                f"sampler '{self.kind}': expected scores of the shape {tuple(state.tokens.shape)} of the canvas, found "
                f"{tuple(score_BL.shape)}. Correct what its method `score` returns."
            )
        return top_by_row(score_BL, due_B)

    def write(self, canvas: Canvas) -> TextSample:
        """Write a canvas; a text with nothing to unmask in a step is not evaluated in it."""
        open_B = canvas.writable_BL.sum(dim=1)

        def due(state: State) -> Tensor:
            left_B = masks_left(open_B, step=state.step, steps=self.steps, counts=self.counts)
            return (state.masked.sum(dim=1) - left_B).clamp_min(0)

        def query(state: State) -> Tensor:
            return state.masked & (due(state) > 0).unsqueeze(1)

        def keep(state: State, prediction: Prediction) -> Tensor:
            return self.choose(canvas.denoise, state, prediction, due(state))

        return denoising_loop(canvas, self, timestep=self.timestep, query=query, keep=keep)


@config
class ConfidenceConfig(OrderedSampler):
    """Keep the drawn tokens of the highest probability (LLaDA, arXiv:2502.09992)."""

    kind: str = "confidence"

    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Return the log-probability of the drawn token."""
        return prediction.log_prob


@config
class EntropyConfig(OrderedSampler):
    """Keep the tokens with the lowest entropy of the model's distribution."""

    kind: str = "entropy"

    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Return the negative entropy."""
        return prediction.spread(-entropy(prediction.log_x0))


@config
class RandomConfig(OrderedSampler):
    """Keep tokens at random positions."""

    kind: str = "random"

    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Return a random number."""
        return state.uniform("order").masked_fill(~prediction.evaluated, -1.0)


def masks_left(open_B: Tensor, *, step: int, steps: int, counts: Counts) -> Tensor:
    """Compute how many (B,) of `open_B` masks remain after `step`, rounded down; 0 after the last step.

    `linear` unmasks equal numbers; `cosine` unmasks few tokens at first, when there is little context, and more later
    (MaskGIT, arXiv:2202.04200).
    """
    progress = (step + 1) / steps
    left = 1 - progress if counts == "linear" else math.cos(progress * math.pi / 2)
    return torch.floor(open_B.double() * max(left, 0.0) + 1e-9).long() if step + 1 < steps else torch.zeros_like(open_B)


def top_by_row(score_BL: Tensor, count_B: Tensor) -> Tensor:
    """Select the `count_B` positions of the highest score in each row (B, L); the earlier position wins a tie."""
    rank_BL = score_BL.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return rank_BL < count_B.unsqueeze(1)


# --- as many as are certain -------------------------------------------------------------------------------------------


@config
class AdaptiveSampler(UnmaskingSampler):
    """Base of the samplers that keep as many tokens as are certain; the last step keeps all."""

    @abstractmethod
    def certain(self, prediction: Prediction) -> Tensor:
        """Select the confident tokens (B, L), at least one in each evaluated text."""

    def write(self, canvas: Canvas) -> TextSample:
        def keep(state: State, prediction: Prediction) -> Tensor:
            return prediction.evaluated if state.last else self.certain(prediction)

        return denoising_loop(canvas, self, timestep="mask_ratio", keep=keep)


@config
class ThresholdConfig(AdaptiveSampler):
    """Keep every drawn token of probability above `threshold`, and always the most probable one (arXiv:2505.22618)."""

    kind: str = "threshold"
    threshold: Fraction = 0.9

    def certain(self, prediction: Prediction) -> Tensor:
        """Select the tokens above the threshold and the most probable one."""
        log_prob_BL = prediction.log_prob
        above_BL = log_prob_BL > math.log(max(self.threshold, 1e-300))
        return above_BL | top_by_row(log_prob_BL, torch.ones_like(log_prob_BL[:, 0]))
