"""Samplers that keep the tokens with the largest margins (`margin`), or a set that is close to independent
(`entropy_bounded`)."""

import torch
from torch import Tensor

from mm_ldlm.core import NonNegativeFloat, config
from mm_ldlm.diffusion.distributions import entropy
from mm_ldlm.sampling.denoising import Prediction, State, TextDenoiser
from mm_ldlm.sampling.orders import AdaptiveSampler, OrderedSampler


@config
class MarginConfig(OrderedSampler):
    """Keep the tokens with the largest margin between the best and the second-best probability."""

    kind: str = "margin"

    def score(self, denoise: TextDenoiser, state: State, prediction: Prediction) -> Tensor:
        """Return the margin between the probabilities of the best and the second token."""
        best_M2 = prediction.log_x0.topk(2, dim=-1).values.exp()
        return prediction.spread(best_M2[:, 0] - best_M2[:, 1])


@config
class EntropyBoundedConfig(AdaptiveSampler):
    """Keep the largest set of low-entropy tokens that are close to independent (EB-Sampler, arXiv:2505.24857).

    Attributes:
        entropy_bound: γ in nats, the bound on the KL divergence of the set's joint distribution from independence.
    """

    kind: str = "entropy_bounded"
    entropy_bound: NonNegativeFloat = 0.1

    def certain(self, prediction: Prediction) -> Tensor:
        """Select the largest prefix in order of entropy within the bound."""
        return entropy_prefix(prediction.spread(entropy(prediction.log_x0), torch.inf), bound=self.entropy_bound)


def entropy_prefix(entropy_BL: Tensor, *, bound: float) -> Tensor:
    """Select the largest prefix (B, L) in order of entropy with `ΣH − max H ≤ bound`; +inf excludes a position.

    The first candidate always fits, because its ΣH is its maximum. The left side increases along the order, so the
    positions that satisfy the bound form a prefix.
    """
    sorted_BL, order_BL = entropy_BL.double().sort(dim=1, stable=True)
    finite_BL = torch.isfinite(sorted_BL)
    known_BL = sorted_BL.masked_fill(~finite_BL, 0.0)
    excess_BL = known_BL.cumsum(dim=1) - known_BL  # sorted in ascending order: the last entry is the maximum
    return torch.zeros_like(finite_BL).scatter(1, order_BL, finite_BL & (excess_BL <= bound))
