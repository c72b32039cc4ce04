"""The sampler `uncertainty`: unmask by the model's uncertainty times the importance of a position (ATAT)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.core.config import NonNegativeFloat, config
from mm_ldlm.sampling.denoising import Prediction, State
from mm_ldlm.sampling.orders import OrderedSampler

Measure = Literal["entropy", "variance", "max_probability"]
Order = Literal["certain_first", "uncertain_first"]
_STATISTIC = {"entropy": "entropy", "variance": "variance", "max_probability": "best"}


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

    @property
    def statistics(self) -> tuple[str, ...]:  # type: ignore[override]
        return (_STATISTIC[self.measure], "importance")

    def uncertainty(self, prediction: Prediction) -> Tensor:
        """Return the measure (A, L); +inf where not evaluated."""
        if self.measure == "max_probability":
            assert prediction.best is not None
            return 1 - prediction.best
        found = prediction.entropy if self.measure == "entropy" else prediction.variance
        assert found is not None
        return found

    def score(self, state: State, prediction: Prediction) -> Tensor:
        """Return uncertainty × importance, negative where the most certain tokens come first."""
        score_AL = self.uncertainty(prediction)
        if prediction.importance is not None:
            score_AL = score_AL * prediction.importance
        score_AL = score_AL if self.order == "uncertain_first" else -score_AL
        return score_AL.masked_fill(~prediction.evaluated, -torch.inf)

    def choose(self, state: State, prediction: Prediction, due_A: Tensor) -> Tensor:
        """Select the tokens that are due, and those that are certain."""
        kept_AL = super().choose(state, prediction, due_A)
        return kept_AL if self.certain is None else kept_AL | (self.uncertainty(prediction) <= self.certain)
