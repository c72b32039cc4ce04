"""The sampler `uncertainty`: unmask by the model's uncertainty times the importance of a position (ATAT)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.core import NonNegativeFloat, config
from mm_ldlm.diffusion.distributions import entropy
from mm_ldlm.sampling.denoising import Prediction, State, TextDenoiser
from mm_ldlm.sampling.orders import OrderedSampler

Measure = Literal["entropy", "variance", "max_probability"]
Order = Literal["certain_first", "uncertain_first"]


@dataclass(frozen=True, kw_only=True)
class WeighingDenoiser(TextDenoiser):
    """Denoiser of a run that has learned the importance of positions."""

    importance: Callable[[Tensor, Tensor], Tensor]
    """(tokens_AL, t_A) → importance (A, L) of every position, in [0, 1]"""


@config
class UncertaintyConfig(OrderedSampler):
    """Keep the tokens of the lowest, or of the highest, uncertainty × importance.

    A run without an importance estimator has importance 1 everywhere; `entropy` and `certain_first` are then the
    sampler of the kind `entropy`.

    Attributes:
        measure: `entropy` in nats; `variance` 1 − Σp², of the token as a one-hot vector; `max_probability` 1 − max p.
        order: whether the most certain or the most uncertain tokens are unmasked first.
        certain: also keep, in every step, each token whose uncertainty (without importance) is at most this. Texts that
            are ahead of the count schedule skip steps, so that easy texts cost fewer model calls. null: never.
    """

    kind: str = "uncertainty"
    measure: Measure = "entropy"
    order: Order = "certain_first"
    certain: NonNegativeFloat | None = None

    def uncertainty(self, prediction: Prediction) -> Tensor:
        """Return the measure (B, L); +inf where not evaluated."""
        log_probs_MV = prediction.log_x0
        if self.measure == "entropy":
            return prediction.spread(entropy(log_probs_MV), torch.inf)
        if self.measure == "variance":
            return prediction.spread(1 - log_probs_MV.mul(2).exp().sum(dim=-1), torch.inf)
        return 1 - prediction.spread(log_probs_MV.amax(dim=-1).exp())

    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Return uncertainty × importance, negative where the most certain tokens come first."""
        score_BL = self.uncertainty(prediction)
        if isinstance(denoise, WeighingDenoiser):
            importance_AL = denoise.importance(state.tokens[prediction.rows], prediction.times.float())
            score_BL = score_BL.index_copy(0, prediction.rows, score_BL[prediction.rows] * importance_AL)
        score_BL = score_BL if self.order == "uncertain_first" else -score_BL
        return score_BL.masked_fill(~prediction.evaluated, -torch.inf)

    def choose(self, denoise: TextDenoiser, state: State, prediction: Prediction, due_B: Tensor) -> Tensor:
        """Select the tokens that are due, and those that are certain."""
        kept_BL = super().choose(denoise, state, prediction, due_B)
        return kept_BL if self.certain is None else kept_BL | (self.uncertainty(prediction) <= self.certain)
