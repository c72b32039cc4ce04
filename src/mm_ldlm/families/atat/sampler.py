"""The sampler `uncertainty`: unmask by the entropy of a prediction times the importance of its position (ATAT)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.distributions import entropy
from mm_ldlm.sampling.denoising import Prediction, State, TextDenoiser
from mm_ldlm.sampling.orders import OrderedSampler

Order = Literal["certain_first", "uncertain_first"]


@dataclass(frozen=True, kw_only=True)
class WeighingDenoiser(TextDenoiser):
    """Denoiser of a run that has learned the importance of positions."""

    importance: Callable[[Tensor, Tensor], Tensor]
    """(tokens_AL, t_A) → importance (A, L) of every position, in [0, 1]"""


@config
class UncertaintyConfig(OrderedSampler):
    """Keep the tokens of the lowest, or of the highest, entropy × importance.

    A run without an importance estimator has importance 1 everywhere; `certain_first` is then the sampler of the kind
    `entropy`.

    Attributes:
        order: whether the most certain or the most uncertain tokens are unmasked first.
    """

    kind: str = "uncertainty"
    order: Order = "certain_first"

    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Return entropy × importance, negative where the most certain tokens come first."""
        score_BL = prediction.spread(entropy(prediction.log_x0), torch.inf)
        if isinstance(denoise, WeighingDenoiser):
            importance_AL = denoise.importance(state.tokens[prediction.rows], prediction.times.float())
            score_BL = score_BL.index_copy(0, prediction.rows, score_BL[prediction.rows] * importance_AL)
        score_BL = score_BL if self.order == "uncertain_first" else -score_BL
        return score_BL.masked_fill(~prediction.evaluated, -torch.inf)
