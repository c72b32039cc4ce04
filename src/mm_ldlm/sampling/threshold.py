"""Adaptive samplers: a step unmasks the tokens above a probability threshold, or within an entropy bound.

An easy text takes few model calls and a hard text many, at most `steps`; the last step keeps all tokens.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from mm_ldlm.core.config import Fraction, NonNegativeFloat, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.base import UnmaskingSampler
from mm_ldlm.sampling.denoising import Prediction, Query, State, TextDenoiser, TextSample, denoising_loop
from mm_ldlm.sampling.orders import top_by_row
from mm_ldlm.sampling.time_grid import mask_ratio_timestep


@config
class AdaptiveSampler(UnmaskingSampler):
    """Base of the samplers whose number of tokens per step depends on the model's confidence."""

    statistics: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def certain(self, prediction: Prediction) -> Tensor:
        """Select the confident tokens (A, L), at least one in each text."""

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

        def keep(state: State, prediction: Prediction) -> Tensor:
            return prediction.evaluated if state.last else self.certain(prediction)

        return denoising_loop(
            denoise,
            tokens_BL,
            steps=self.steps,
            generator=generator,
            draw=self.draw,
            timestep=mask_ratio_timestep(denoise, schedule),
            query=lambda state: Query.where_needed(state.masked),
            keep=keep,
            open_BL=open_BL,
            statistics=self.statistics,
        )


@config
class ThresholdConfig(AdaptiveSampler):
    """Keep every drawn token of probability above `threshold`, and always the most probable one (arXiv:2505.22618)."""

    kind: str = "threshold"
    threshold: Fraction = 0.9

    def certain(self, prediction: Prediction) -> Tensor:
        """Select the tokens above the threshold and the most probable one."""
        above_AL = prediction.log_prob > math.log(max(self.threshold, 1e-300))
        return above_AL | top_by_row(prediction.log_prob, torch.ones_like(prediction.rows))


@config
class EntropyBoundedConfig(AdaptiveSampler):
    """Keep the largest set of low-entropy tokens that are close to independent (EB-Sampler, arXiv:2505.24857).

    Attributes:
        entropy_bound: γ in nats, the bound on the KL divergence of the set's joint distribution from independence.
    """

    kind: str = "entropy_bounded"
    entropy_bound: NonNegativeFloat = 0.1

    statistics: ClassVar[tuple[str, ...]] = ("entropy",)

    def certain(self, prediction: Prediction) -> Tensor:
        """Select the largest prefix in order of entropy within the bound."""
        assert prediction.entropy is not None
        return entropy_prefix(prediction.entropy, bound=self.entropy_bound)


def entropy_prefix(entropy_AL: Tensor, *, bound: float) -> Tensor:
    """Select the largest prefix (A, L) in order of entropy with `ΣH − max H ≤ bound`; +inf excludes a position.

    The first candidate always fits, because its ΣH is its maximum. The left side increases along the order, so the
    positions that satisfy the bound form a prefix.
    """
    sorted_AL, order_AL = entropy_AL.double().sort(dim=1, stable=True)
    finite_AL = torch.isfinite(sorted_AL)
    known_AL = sorted_AL.masked_fill(~finite_AL, 0.0)
    excess_AL = known_AL.cumsum(dim=1) - known_AL  # sorted in ascending order: the last entry is the maximum
    return torch.zeros_like(finite_AL).scatter(1, order_AL, finite_AL & (excess_AL <= bound))
