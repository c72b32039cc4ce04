"""GIDD: diffusion over tokens with a mixture of [MASK] and random words as noise (arXiv:2503.04482).

q(x_t | x_0) = ((1 − t) x_0 + t [MASK] + c_t u)/C_t, u uniform over the N words, c_t = B t^(γ/2) (1 − t)^(γ/2),
C_t = 1 + c_t, B = 2^γ p_u/(1 − p_u) (§4). The fraction p_u of all tokens is random words at t = 1/2, none is at both
ends. The model learns to fill masks and to revise words; p_u = 0 is MDLM with α_t = 1 − t.
"""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mm_ldlm.core import PositiveFloat, bounded, config
from mm_ldlm.diffusion.process import TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.schedules import LogLinear, MaskSchedule, SmallestTime
from mm_ldlm.families.uniform.uniform import SMALLEST, Interpolating, Noise


@config
class GiddConfig(TextProcessConfig):
    """Parameters of GIDD.

    Attributes:
        p_uniform: p_u, the fraction of tokens that random words replace at t = 1/2; 0 is masked diffusion.
        gamma: γ of the schedule; the larger, the fewer random words near t = 0 and t = 1. Below 1 the smallest time in
            float64 still has random words, so that the NELBO is not a bound; above 2 random words would turn back into
            tokens.
        loss_weighting: weights of the training loss. elbo: the NELBO's. clip: the same, at most `max_weight`.
            dynamic: 2 for masks, 1 for random words, (B/N) e^(−γλ_t/2) for the token itself, at most `max_weight`,
            where λ_t = log α_t/(1 − α_t). The likelihood always has the weights of the NELBO.
        max_weight: see `loss_weighting`.
        t_min: smallest time drawn in training.
    """

    kind: str = "gidd"
    p_uniform: Annotated[float, bounded(ge=0, lt=1)] = 0.1
    gamma: Annotated[float, bounded(ge=1, le=2)] = 1.0
    loss_weighting: Literal["elbo", "clip", "dynamic"] = "dynamic"
    max_weight: PositiveFloat = 2.0
    t_min: SmallestTime = 1e-3

    @property
    def only_masks(self) -> bool:  # type: ignore[override]
        return self.p_uniform == 0

    @property
    def revises(self) -> bool:  # type: ignore[override]
        return self.p_uniform > 0

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "Gidd":
        """Build the process for a tokenizer's ids."""
        return Gidd(self, vocabulary)


class Gidd(Interpolating):
    """Every valid token becomes [MASK] or a random word (see `Interpolating`).

    The NELBO has no terms at its ends: α_0 = 1, m_1 = 1.
    """

    def __init__(self, config: GiddConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.gamma, self.loss_weighting, self.max_weight = config.gamma, config.loss_weighting, config.max_weight
        self.B = float(2**config.gamma * config.p_uniform / (1 - config.p_uniform))  # the factor of c_t (GIDD §4)

    @property
    def mask_schedule(self) -> MaskSchedule | None:
        """α_t = 1 − t without random words, otherwise None."""
        return LogLinear(epsilon=0.0) if self.traits.only_masks else None

    def noise(self, t: Tensor) -> Noise:
        """Return the mixing schedule of GIDD §4 and its rates."""
        t = t.double().clamp(SMALLEST, 1 - SMALLEST)
        c = self.B * (t * (1 - t)) ** (self.gamma / 2)
        both = 1 / (t * (1 - t))
        return Noise(
            alpha=(1 - t) / (1 + c),
            word=c / (1 + c) / self.num_words,
            mask=t / (1 + c),
            word_rate=(self.gamma / 2 * (1 - 2 * t) + t) * both,
            mask_rate=both,
        )

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the valid positions; without random words the masked ones, because every other token is final."""
        return (noisy_BL == self.mask_id) & valid_BL if self.traits.only_masks else valid_BL

    def weight(self, targets_M: Tensor, noisy_M: Tensor, noise: Noise) -> Tensor:
        """Compute the weights (M,) of `loss_weighting`, float64."""
        if self.loss_weighting != "dynamic":
            elbo_M = self.elbo_weight(targets_M, noisy_M, noise)
            return elbo_M if self.loss_weighting == "elbo" else elbo_M.clamp_max(self.max_weight)
        own_M = self.B / self.num_words * ((1 - noise.alpha) / noise.alpha) ** (self.gamma / 2)
        weight_M = torch.where(noisy_M == targets_M, own_M, 1.0)
        return torch.where(noisy_M == self.mask_id, 2.0, weight_M).clamp_max(self.max_weight)
