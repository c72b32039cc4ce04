"""Uniform diffusion over tokens: a token is kept or becomes a random word (UDLM, arXiv:2412.10193; Duo, 2506.10892).

q(x_t | x_0) = α_t x_0 + (1 − α_t)/N over the N words. A reverse step may revise any token.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from mm_ldlm.core.config import InvalidValue, PositiveFloat, config
from mm_ldlm.diffusion.process import NelboDraws, Predict, ProcessTraits
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.uniform.interpolating import SMALLEST, Interpolating, Noise


@config
class UniformConfig:
    """Parameters of uniform diffusion.

    Attributes:
        schedule: α_t, the fraction of tokens that no noise has replaced.
        t_min: smallest time drawn in training.
    """

    stores: ClassVar[tuple[str, ...]] = ()
    kind: str = "uniform"
    schedule: MaskSchedule = field(default_factory=MaskSchedule)
    t_min: PositiveFloat = 1e-3

    def __post_init__(self) -> None:
        if not self.t_min < 1:
            raise InvalidValue(f"t_min must be below 1, found {self.t_min}", "t_min")

    @property
    def traits(self) -> ProcessTraits:
        return ProcessTraits(kind=self.kind, revises=True)

    def build(self, *, vocab_size: int, pad_id: int, mask_id: int) -> Uniform:
        """Build the process for a tokenizer's ids."""
        return Uniform(
            schedule=self.schedule, t_min=self.t_min, vocab_size=vocab_size, pad_id=pad_id, mask_id=mask_id,
            kind=self.kind,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Uniform(Interpolating):
    """Every valid token becomes a uniformly random word with probability 1 − α_t (see `Interpolating`)."""

    schedule: MaskSchedule
    t_min: float
    vocab_size: int
    pad_id: int
    mask_id: int
    kind: str = "uniform"

    def noise(self, t: Tensor) -> Noise:
        """Return α_t and (1 − α_t)/N; ρ_t/b_t = −α_t'/(α_t(1 − α_t)), where ρ_t = −α_t'/(α_t N)."""
        t = t.double().clamp(SMALLEST, 1 - SMALLEST)
        alpha, nothing = self.schedule.alpha(t), torch.zeros_like(t)
        word = self.schedule.mask_probability(t) / self.num_words
        return Noise(alpha, word, nothing, self.schedule.weight(t) / alpha, nothing)

    def prior(self, tokens_BL: Tensor, open_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Draw a random word at each open position."""
        return torch.where(open_BL, self.words(generator.uniform(tokens_BL.shape[1])), tokens_BL)

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> NelboDraws:
        """Draw the NELBO: the integral over t, D_KL(q(x_1 | x_0) ‖ prior), and −log p(x_0 | x_{t=0}) where α_0 < 1.

        With α_0 = 1 (log_linear, cosine) x_0 is the clean text, and the last term is 0.
        """
        found = super().nelbo(predict, tokens_BL, valid_BL, draws=draws, generator=generator)
        nll_KB = found.nll_KB + self.prior_kl() * valid_BL.sum(dim=1)
        if float(self.schedule.mask_probability(torch.zeros((), dtype=torch.float64, device="cpu"))) > 0:
            stream = generator.fork("reconstruction")
            nll_KB = nll_KB + torch.stack(
                [self._reconstruction(predict, tokens_BL, valid_BL, stream.fork(number)) for number in range(draws)]
            )
        return dataclasses.replace(found, nll_KB=nll_KB)

    def prior_kl(self) -> float:
        """Compute D_KL(q(x_1 | x_0) ‖ 1/N) of one token, in nats; 0 where α_1 = 0."""
        noise, N = self.noise(torch.ones((), dtype=torch.float64, device="cpu")), self.num_words
        alpha, word = float(noise.alpha), float(noise.word)
        return (alpha + word) * math.log1p((N - 1) * alpha) + (N - 1) * word * math.log1p(-alpha)

    def _reconstruction(self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Draw −log p(x_0 | x_t) (B,) at t = 0, p(x_0 | x_t) = q(x_t | x_0) x_θ(x_0)/q(x_t | x_θ)."""
        t_B = torch.zeros(len(tokens_BL), dtype=torch.float64, device=tokens_BL.device)
        noisy_BL = self.corrupt(tokens_BL, valid_BL, t_B, generator)
        noisy_M, target_M, row_M = noisy_BL[valid_BL], tokens_BL[valid_BL], valid_BL.nonzero()[:, 0]
        log_x0_MV = self.log_x0(predict(noisy_BL, t_B.float(), valid_BL), noisy_M).double()
        noise = self.noise(t_B[row_M])
        seen_M, true_M = (log_x0_MV.gather(1, ids_M[:, None])[:, 0] for ids_M in (noisy_M, target_M))
        evidence_M = torch.log(noise.alpha * seen_M.exp() + noise.word)
        cost_M = evidence_M - torch.log(noise.alpha * (noisy_M == target_M) + noise.word) - true_M
        return torch.zeros_like(t_B).index_add(0, row_M, cost_M)
