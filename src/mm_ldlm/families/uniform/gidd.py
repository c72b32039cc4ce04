"""GIDD: diffusion over tokens with a mixture of [MASK] and random words as noise (arXiv:2503.04482).

q(x_t | x_0) = ((1 − t) x_0 + t [MASK] + c_t u)/C_t, u uniform over the N words, c_t = B t^(γ/2) (1 − t)^(γ/2),
C_t = 1 + c_t, B = 2^γ p_u/(1 − p_u) (§4). The fraction p_u of all tokens is random words at t = 1/2, none is at both
ends. The model learns to fill masks and to revise words; p_u = 0 is MDLM with α_t = 1 − t.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core.config import Fraction, InvalidValue, PositiveFloat, config
from mm_ldlm.diffusion.process import NelboDraws, Predict, ProcessTraits
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.uniform.interpolating import SMALLEST, Interpolating, Noise

LossWeighting = Literal["elbo", "clip", "dynamic"]


@config
class GiddConfig:
    """Parameters of GIDD.

    Attributes:
        p_uniform: p_u, the fraction of tokens that random words replace at t = 1/2; 0 is masked diffusion.
        gamma: γ of the schedule, from 1 to 2; the larger, the fewer random words near t = 0 and t = 1.
        loss_weighting: weights of the training loss. elbo: those of the NELBO. clip: those, at most `max_weight`.
            dynamic: 2 for masks, 1 for random words, (B/N) e^(−γλ_t/2) for the token itself, at most `max_weight`,
            where λ_t = log α_t/(1 − α_t). The likelihood always has the weights of the NELBO.
        max_weight: see `loss_weighting`.
        t_min: smallest time drawn in training.
    """

    stores: ClassVar[tuple[str, ...]] = ()
    kind: str = "gidd"
    p_uniform: Fraction = 0.1
    gamma: PositiveFloat = 1.0
    loss_weighting: LossWeighting = "dynamic"
    max_weight: PositiveFloat = 2.0
    t_min: PositiveFloat = 1e-3

    def __post_init__(self) -> None:
        if not self.p_uniform < 1:
            raise InvalidValue(f"p_uniform must be below 1, found {self.p_uniform}", "p_uniform")
        if not 1 <= self.gamma <= 2:
            raise InvalidValue(
                f"gamma must be between 1 and 2, found {self.gamma}. Below 1 the smallest time in float64 still has "
                "random words, so that the NELBO is no bound; above 2 random words would turn back into tokens",
                "gamma",
            )
        if not self.t_min < 1:
            raise InvalidValue(f"t_min must be below 1, found {self.t_min}", "t_min")

    @property
    def traits(self) -> ProcessTraits:
        return ProcessTraits(kind=self.kind, only_masks=self.p_uniform == 0, revises=self.p_uniform > 0)

    def build(self, *, vocab_size: int, pad_id: int, mask_id: int) -> Gidd:
        """Build the process for a tokenizer's ids."""
        return Gidd(
            p_uniform=self.p_uniform, gamma=self.gamma, loss_weighting=self.loss_weighting,
            max_weight=self.max_weight, t_min=self.t_min, vocab_size=vocab_size, pad_id=pad_id, mask_id=mask_id,
            kind=self.kind,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gidd(Interpolating):
    """Every valid token becomes [MASK] or a random word (see `Interpolating`)."""

    p_uniform: float
    gamma: float
    loss_weighting: LossWeighting
    max_weight: float
    t_min: float
    vocab_size: int
    pad_id: int
    mask_id: int
    kind: str = "gidd"

    @property
    def mask_schedule(self) -> MaskSchedule | None:  # type: ignore[override]
        """α_t = 1 − t without random words, otherwise None."""
        return MaskSchedule(epsilon=0.0) if self.p_uniform == 0 else None

    @property
    def B(self) -> float:
        """B = 2^γ p_u/(1 − p_u), the factor of c_t (GIDD §4)."""
        return float(2**self.gamma * self.p_uniform / (1 - self.p_uniform))

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
        return (noisy_BL == self.mask_id) & valid_BL if self.p_uniform == 0 else valid_BL

    def weight(self, targets_M: Tensor, noisy_M: Tensor, noise: Noise) -> Tensor:
        """Compute the weights (M,) of `loss_weighting`, float64."""
        if self.loss_weighting != "dynamic":
            elbo_M = super().weight(targets_M, noisy_M, noise)
            return elbo_M if self.loss_weighting == "elbo" else elbo_M.clamp_max(self.max_weight)
        own_M = self.B / self.num_words * ((1 - noise.alpha) / noise.alpha) ** (self.gamma / 2)
        weight_M = torch.where(noisy_M == targets_M, own_M, 1.0)
        return torch.where(noisy_M == self.mask_id, 2.0, weight_M).clamp_max(self.max_weight)

    def prior(self, tokens_BL: Tensor, open_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Mask the open positions; the prior is a point, so nothing is drawn."""
        return tokens_BL.masked_fill(open_BL, self.mask_id)

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> NelboDraws:
        """Draw the NELBO, whatever the weights of training are. It has no terms at its ends: α_0 = 1, m_1 = 1."""
        plain = dataclasses.replace(self, loss_weighting="elbo")
        return Interpolating.nelbo(plain, predict, tokens_BL, valid_BL, draws=draws, generator=generator)
