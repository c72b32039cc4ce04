"""Absorbing-state (masked) diffusion over tokens: MDLM, arXiv:2406.07524.

A token is kept with probability α_t and replaced by [MASK] otherwise. An unmasked token is final.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core.config import InvalidValue, PositiveFloat, config
from mm_ldlm.diffusion.distributions import categorical, forbid_, normalise_, token_loss
from mm_ldlm.diffusion.process import NelboDraws, Predict, ProcessTraits, TextProcess, TokenLosses, stratified
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.diffusion.timesteps import antithetic

LossWeighting = Literal["elbo", "constant"]
CONSTANT = 2.0
"""Weight of a masked token under `constant`: with the log-linear schedule a token has the same weight on average as
under `elbo`"""


@config
class AbsorbingConfig:
    """Parameters of absorbing diffusion.

    Attributes:
        schedule: α_t, the expected fraction of tokens that are kept.
        t_min: smallest time drawn in training.
        loss_weighting: weights of the training loss. elbo: w(t) = −α'_t/(1 − α_t), those of the NELBO, with which the
            few tokens that are masked at a small t count as much as the many at a large t. constant: 2 for every masked
            token, as in GIDD (arXiv:2503.04482, §4) without random words. The likelihood always has the weights of the
            NELBO.
    """

    stores: ClassVar[tuple[str, ...]] = ()
    kind: str = "absorbing"
    schedule: MaskSchedule = field(default_factory=MaskSchedule)
    t_min: PositiveFloat = 1e-3
    loss_weighting: LossWeighting = "elbo"

    def __post_init__(self) -> None:
        if not self.t_min < 1:
            raise InvalidValue(f"t_min must be below 1, found {self.t_min}", "t_min")

    @property
    def traits(self) -> ProcessTraits:
        return ProcessTraits(kind=self.kind, only_masks=True)

    def build(self, *, vocab_size: int, pad_id: int, mask_id: int) -> Absorbing:
        """Build the process for a tokenizer's ids."""
        return Absorbing(
            schedule=self.schedule, t_min=self.t_min, vocab_size=vocab_size, pad_id=pad_id, mask_id=mask_id,
            kind=self.kind, loss_weighting=self.loss_weighting,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Masking(TextProcess):
    """Base of the processes whose only noise is [MASK] and whose unmasked tokens are final (see `TextProcess`)."""

    schedule: MaskSchedule
    vocab_size: int
    pad_id: int
    mask_id: int
    kind: str

    @property
    def mask_schedule(self) -> MaskSchedule:  # type: ignore[override]
        return self.schedule

    def alpha(self, t: Tensor) -> Tensor:
        """Return α_t; 1 at t = 0, also for the geometric schedule, whose own α_0 is below 1."""
        return torch.where(t > 0, self.schedule.alpha(t), 1.0)

    def mask_probability(self, t: Tensor) -> Tensor:
        """Return 1 − α_t at times t > 0, without cancellation."""
        return self.schedule.mask_probability(t)

    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Mask every valid token with probability 1 − α_t (MDLM eq. 6). Takes one draw of the generator."""
        uniform_BL = generator.uniform(tokens_BL.shape[1], dtype=torch.float32)
        masked_BL = (uniform_BL < self.mask_probability(t_B)[:, None]) & valid_BL
        return tokens_BL.masked_fill(masked_BL, self.mask_id)

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the masked positions."""
        return (noisy_BL == self.mask_id) & valid_BL

    def prior(self, tokens_BL: Tensor, open_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Mask the open positions; the prior is a point, so nothing is drawn."""
        return tokens_BL.masked_fill(open_BL, self.mask_id)

    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Compute log x_θ (M, vocab_size) in float32 under SUBS (MDLM §3.2.3).

        [MASK], [PAD] and ids ≥ vocab_size get no mass, and an unmasked position copies its own token.
        """
        words_MV = logits_MV[..., : self.vocab_size].float()
        normalise_(forbid_(words_MV, mask_id=self.mask_id, pad_id=self.pad_id))
        kept_M = noisy_M != self.mask_id
        if bool(kept_M.any()):
            ids_V = torch.arange(words_MV.shape[-1], device=noisy_M.device)
            copy_MV = torch.where(noisy_M[:, None] == ids_V, 0.0, -torch.inf)
            words_MV = torch.where(kept_M[:, None], copy_MV, words_MV)
        return words_MV

    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Unmask with probability (α_s − α_t)/(1 − α_t), by a draw from x_θ (MDLM eq. 7)."""
        unmasked_M = uniform_M2[:, 0] < unmask_probability(self.alpha(t_M), self.alpha(s_M))
        drawn_M = categorical(log_x0_MV.softmax(dim=-1, dtype=torch.float64), uniform_M2[:, 1])
        return torch.where(unmasked_M & (noisy_M == self.mask_id), drawn_M, noisy_M)


@dataclass(frozen=True, kw_only=True)
class Absorbing(Masking):
    """Every valid token becomes [MASK] independently with probability 1 − α_t, in continuous time (MDLM)."""

    t_min: float
    kind: str = "absorbing"
    loss_weighting: LossWeighting = "elbo"

    def times(self, u: Tensor | float, index_B: Tensor, total: int) -> Tensor:
        """Draw low-discrepancy times (B,) from [t_min, 1] over the global batch."""
        return antithetic(u, index_B, total, self.t_min)

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute w(t)·CE at M masked positions (MDLM eq. 10), with the weights of `loss_weighting`."""
        found = token_loss(logits_MV, targets_M, mask_id=self.mask_id, pad_id=self.pad_id, vocab_size=self.vocab_size)
        weight = self.schedule.weight(t_M).float() if self.loss_weighting == "elbo" else CONSTANT
        weighted_M = found.nll_M * weight
        return TokenLosses(weighted_M, found.nll_M, found.best_M, found.log_norm_M)

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> NelboDraws:
        """Draw the NELBO with the mask ratio m as the integration variable, summed in float64.

        −log p(tokens | length) ≤ ∫₀¹ (1/m) E[Σ over masked positions of −log x_θ] dm (MDLM eq. 10; LLaDA,
        arXiv:2502.09992). The integral is over m because the times of training stop at t_min and a schedule masks at
        most a fraction 1 − α_1. Each text gets `draws` low-discrepancy mask ratios of its own.
        """
        found = []
        for number, mask_ratio_B in enumerate(stratified(draws, generator.fork("time"))):
            uniform_BL = generator.fork(number).uniform(tokens_BL.shape[1])
            masked_BL = (uniform_BL < mask_ratio_B[:, None]) & valid_BL
            noisy_BL = tokens_BL.masked_fill(masked_BL, self.mask_id)
            t_B = self.schedule.time_of_mask_ratio(mask_ratio_B)
            targets_M, row_M = tokens_BL[masked_BL], masked_BL.nonzero()[:, 0]
            log_x0_MV = self.log_x0(predict(noisy_BL, t_B.float(), masked_BL), noisy_BL[masked_BL])
            nll_M = -log_x0_MV.gather(1, targets_M[:, None])[:, 0].double()
            correct_M = (log_x0_MV.argmax(dim=1) == targets_M).double()
            nothing_B = torch.zeros_like(mask_ratio_B)
            cross_entropy_B = nothing_B.index_add(0, row_M, nll_M)
            found.append(
                (
                    cross_entropy_B / mask_ratio_B,
                    mask_ratio_B,
                    masked_BL.sum(dim=1).double(),
                    nothing_B.index_add(0, row_M, correct_M),
                    cross_entropy_B,
                )
            )
        return NelboDraws(*(torch.stack(part) for part in zip(*found, strict=True)))


# -- probabilities of the reverse step --------------------------------------------------------------------------------


def unmask_probability(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """Compute P([MASK] at t is unmasked by s < t) = (α_s − α_t)/(1 − α_t) (MDLM eq. 7).

    It is 0 where nothing can be masked (α_t = 1). Use float64 for sampling. The last step passes α_s = 1 and leaves no
    mask.
    """
    lost = 1 - alpha_t
    return torch.where(lost > 0, (alpha_s - alpha_t) / torch.where(lost > 0, lost, 1), 0).clamp(0, 1)


def max_remask_ratio(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """Compute σ_max = min(1, (1 − α_s)/α_t), the largest valid remasking probability (ReMDM, arXiv:2503.00307)."""
    return torch.where(alpha_t > 0, (1 - alpha_s) / torch.where(alpha_t > 0, alpha_t, 1), 1).clamp(0, 1)


def remask_unmask_probability(alpha_t: Tensor, alpha_s: Tensor, sigma: Tensor) -> Tensor:
    """Compute P([MASK] is unmasked) = (α_s − (1−σ)α_t)/(1 − α_t) if tokens are remasked with probability σ.

    The equation is from ReMDM (arXiv:2503.00307); at σ = 0 it equals `unmask_probability`.
    """
    lost = 1 - alpha_t
    return torch.where(lost > 0, (alpha_s - (1 - sigma) * alpha_t) / torch.where(lost > 0, lost, 1), 0).clamp(0, 1)
