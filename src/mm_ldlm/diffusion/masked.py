"""Absorbing-state (masked) diffusion over tokens: MDLM, arXiv:2406.07524.

A token is kept with probability α_t and replaced by [MASK] otherwise. An unmasked token is final.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.distributions import TokenLosses, categorical
from mm_ldlm.diffusion.nelbo import Likelihood, Predict, integrate
from mm_ldlm.diffusion.process import TextProcess, TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, LogLinear, MaskSchedule, SmallestTime
from mm_ldlm.diffusion.times import stratified

CONSTANT = 2.0
"""Weight of a masked token under `constant`: with the log-linear schedule a token has the same weight on average as
under `elbo`"""


@config
class AbsorbingConfig(TextProcessConfig):
    """Parameters of absorbing diffusion.

    Attributes:
        schedule: α_t, the expected fraction of tokens that are kept.
        t_min: smallest time drawn in training.
        loss_weighting: weights of the training loss. elbo: w(t) = −α'_t/(1 − α_t), the NELBO's, with which the
            few tokens that are masked at a small t count as much as the many at a large t. constant: 2 for every masked
            token at any t, the loss of masked language models, which bounds no likelihood. The likelihood always has
            the weights of the NELBO.
    """

    only_masks: ClassVar[bool] = True
    kind: str = "absorbing"
    schedule: Annotated[Any, MASK_SCHEDULES] = dataclasses.field(default_factory=LogLinear)
    t_min: SmallestTime = 1e-3
    loss_weighting: Literal["elbo", "constant"] = "elbo"

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "Absorbing":
        """Build the process for a tokenizer's ids."""
        return Absorbing(self, vocabulary)


class Masking(TextProcess):
    """Base of the processes whose only noise is [MASK] and whose unmasked tokens are final (see `TextProcess`)."""

    schedule: MaskSchedule

    def __init__(self, config: Any, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.schedule = config.schedule.build()

    @property
    def mask_schedule(self) -> MaskSchedule:
        return self.schedule

    def alpha(self, t: Tensor) -> Tensor:
        """Return α_t; 1 at t = 0, also for the geometric schedule, whose own α_0 is below 1."""
        return torch.where(t > 0, self.schedule.alpha(t), 1.0)

    def mask_probability(self, t: Tensor) -> Tensor:
        """Return 1 − α_t at times t > 0, without cancellation."""
        return self.schedule.mask_probability(t)

    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Mask every valid token with probability 1 − α_t (MDLM eq. 6). Takes one draw of the generator."""
        return self.mask(tokens_BL, valid_BL, self.mask_probability(t_B), generator)

    def mask(self, tokens_BL: Tensor, valid_BL: Tensor, mask_ratio_B: Tensor, generator: RowGenerator) -> Tensor:
        """Mask every valid token with probability `mask_ratio_B`, in float64. Takes one draw of the generator."""
        masked_BL = (generator.uniform(tokens_BL.shape[1]) < mask_ratio_B[:, None]) & valid_BL
        return tokens_BL.masked_fill(masked_BL, self.mask_id)

    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Compute log x_θ (M, vocab_size) in float32 under SUBS (MDLM §3.2.3); an unmasked token copies itself."""
        return copy_tokens(super().log_x0(logits_MV, noisy_M), noisy_M, kept_M=noisy_M != self.mask_id)

    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Unmask with probability (α_s − α_t)/(1 − α_t), by a draw from x_θ (MDLM eq. 7)."""
        unmasked_M = uniform_M2[:, 0] < unmask_probability(self.alpha(t_M), self.alpha(s_M))
        drawn_M = categorical(log_x0_MV.softmax(dim=-1, dtype=torch.float64), uniform_M2[:, 1])
        return torch.where(unmasked_M & (noisy_M == self.mask_id), drawn_M, noisy_M)


class Absorbing(Masking):
    """Every valid token becomes [MASK] independently with probability 1 − α_t, in continuous time (MDLM)."""

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute w(t)·CE at M masked positions (MDLM eq. 10), with the weights of `loss_weighting`."""
        found = self.cross_entropy(logits_MV, targets_M)
        weight = self.schedule.weight(t_M).float() if self.traits.loss_weighting == "elbo" else CONSTANT
        return found._replace(weighted_M=found.nll_M * weight)

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the NELBO with the mask ratio m as the integration variable, summed in float64.

        −log p(tokens | length) ≤ ∫₀¹ (1/m) E[Σ over masked positions of −log x_θ] dm (MDLM eq. 10; LLaDA,
        arXiv:2502.09992). The integral is over m because the times of training stop at t_min and a schedule masks at
        most a fraction 1 − α_1. Each text gets `draws` low-discrepancy mask ratios.
        """
        found = integrate(
            self, predict, tokens_BL, valid_BL, stratified(draws, generator.fork("time")), generator,
            time=self.schedule.time_of_mask_ratio, corrupt=self.mask,
        )  # fmt: skip
        assert found.cross_entropy_KB is not None
        assert found.mask_ratio_KB is not None
        return dataclasses.replace(found, nll_KB=found.cross_entropy_KB / found.mask_ratio_KB)


def copy_tokens(log_x0_MV: Tensor, noisy_M: Tensor, *, kept_M: Tensor) -> Tensor:
    """Replace log x_θ (M, V) by all mass on the token itself where that token is final."""
    if not bool(kept_M.any()):
        return log_x0_MV
    ids_V = torch.arange(log_x0_MV.shape[-1], device=noisy_M.device)
    copy_MV = torch.where(noisy_M[:, None] == ids_V, 0.0, -torch.inf)
    return torch.where(kept_M[:, None], copy_MV, log_x0_MV)


# -- probabilities of the reverse step --------------------------------------------------------------------------------


def unmask_probability(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """Compute P([MASK] at t is unmasked by s < t) = (α_s − α_t)/(1 − α_t) (MDLM eq. 7).

    It is 0 where nothing can be masked (α_t = 1). Use float64 for sampling. The last step passes α_s = 1 and leaves no
    mask.
    """
    return remask_unmask_probability(alpha_t, alpha_s, torch.zeros_like(alpha_t))


def max_remask_ratio(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """Compute σ_max = min(1, (1 − α_s)/α_t), the largest valid remasking probability (ReMDM, arXiv:2503.00307)."""
    return torch.where(alpha_t > 0, (1 - alpha_s) / torch.where(alpha_t > 0, alpha_t, 1), 1).clamp(0, 1)


def remask_unmask_probability(alpha_t: Tensor, alpha_s: Tensor, sigma: Tensor) -> Tensor:
    """Compute P([MASK] is unmasked) = (α_s − (1−σ)α_t)/(1 − α_t) if tokens are remasked with probability σ.

    The equation is from ReMDM (arXiv:2503.00307); at σ = 0 it equals `unmask_probability`.
    """
    lost = 1 - alpha_t
    return torch.where(lost > 0, (alpha_s - (1 - sigma) * alpha_t) / torch.where(lost > 0, lost, 1), 0).clamp(0, 1)
