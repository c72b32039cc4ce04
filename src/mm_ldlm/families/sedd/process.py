"""SEDD: the processes of the absorbing and the uniform graph (Lou et al., arXiv:2310.16834), and their parameters.

`score_entropy.py` defines the model's output, the loss and the likelihood bound, which both share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core.config import InvalidValue, PositiveFloat, config
from mm_ldlm.diffusion.absorbing import Masking, unmask_probability
from mm_ldlm.diffusion.distributions import categorical, token_loss
from mm_ldlm.diffusion.process import ProcessTraits, TokenLosses
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.sedd.score_entropy import Sedd, copy_words

Graph = Literal["absorbing", "uniform"]

_LARGEST_EXPONENT = 700.0
"""e to this power is finite in float64."""
_SMALLEST_ALPHA = 1e-12
"""Below this fraction of kept tokens the scores contain nothing about x_0 in float64."""


@config
class SeddConfig:
    """Parameters of score entropy discrete diffusion.

    Attributes:
        graph: what a token is replaced by: [MASK], or a word drawn uniformly.
        schedule: α_t = exp(−σ(t)). The paper takes log_linear for absorbing and geometric for uniform.
        t_min: smallest time drawn in training.
    """

    stores: ClassVar[tuple[str, ...]] = ()
    kind: str = "sedd"
    graph: Graph = "absorbing"
    schedule: MaskSchedule = field(default_factory=MaskSchedule)
    t_min: PositiveFloat = 1e-3

    def __post_init__(self) -> None:
        if not self.t_min < 1:
            raise InvalidValue(f"t_min must be below 1, found {self.t_min}", "t_min")

    @property
    def traits(self) -> ProcessTraits:
        return ProcessTraits(
            kind=self.kind,
            only_masks=self.graph == "absorbing",
            revises=self.graph == "uniform",
            predicts_scores=True,
        )

    def build(self, *, vocab_size: int, pad_id: int, mask_id: int) -> Sedd:
        """Build the process for a tokenizer's ids."""
        process = AbsorbingSedd if self.graph == "absorbing" else UniformSedd
        return process(
            schedule=self.schedule, t_min=self.t_min, vocab_size=vocab_size, pad_id=pad_id, mask_id=mask_id,
            kind=self.kind,
        )  # fmt: skip


# -- absorbing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AbsorbingSedd(Sedd, Masking):
    """Every valid token becomes [MASK] with probability 1 − α_t. Only the scores at [MASK] have a rate.

    With the paper's scaling s_y = α_t/(1 − α_t)·e^{output_y}/W, and the true scores are α_t/(1 − α_t)·p(y | the
    unmasked tokens). `log_x0` is the normalised score s_y/Σ s, which is that conditional distribution for true scores
    and needs no time. What it leaves out is the total Σ s, α_t/(1 − α_t) for true scores, which `score_step` reads.
    """

    kind: str = "sedd"

    @property
    def largest_level(self) -> float:
        """1: the bound begins at [MASK] everywhere, also where the schedule keeps a fraction ε at t = 1.

        KL(q(x_1 | x_0) || prior) would be infinite there, because the prior has no mass on words.
        """
        return 1.0

    def prior_term(self, valid_BL: Tensor) -> Tensor:
        """See `Sedd.prior_term`; 0, because at m = 1 the text is the prior."""
        return torch.zeros(len(valid_BL), dtype=torch.float64, device=valid_BL.device)

    def corrupt_at(self, tokens_BL: Tensor, valid_BL: Tensor, level_B: Tensor, generator: RowGenerator) -> Tensor:
        """See `Sedd.corrupt_at`. Takes one draw of the generator."""
        masked_BL = (generator.uniform(tokens_BL.shape[1]) < level_B[:, None]) & valid_BL
        return tokens_BL.masked_fill(masked_BL, self.mask_id)

    def score_entropy(self, output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
        """See `Sedd.score_entropy`.

        With u = log Σ e^{output} − log W and CE = −log(s/Σ s) of the target, s_y − r log s + K(r) summed over y is
        r·(CE + e^u − 1 − u): the cross-entropy of MDLM, and the error of the total, which is 0 at u = 0.
        """
        found = token_loss(output_MV, targets_M, mask_id=self.mask_id, pad_id=self.pad_id, vocab_size=self.vocab_size)
        u_M = found.log_norm_M.double() - math.log(self.words)
        weighted_M = (found.nll_M + (torch.expm1(u_M) - u_M)) / level_M
        return TokenLosses(weighted_M.float(), found.nll_M, found.best_M, found.log_norm_M)

    def score_step(self, output_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor) -> Tensor:
        """Draw x_s by the analytic (Tweedie) step (§4.2), in float64.

        A mask becomes y with probability (e^{σ(t) − σ(s)} − 1)·s_y, at most 1 in all. The step to s = 0 unmasks
        everything, with probabilities in proportion to s.
        """
        words_MV = copy_words(self, output_MV)
        excess_M = words_MV.logsumexp(dim=-1) - math.log(self.words)
        exact_M = unmask_probability(self.alpha(t_M), self.alpha(s_M))  # the probability at true scores
        unmasked_M = torch.where(s_M > 0, exact_M * excess_M.clamp(max=_LARGEST_EXPONENT).exp(), 1.0)
        drawn_M = categorical(words_MV.softmax(dim=-1), uniform_M2[:, 1])
        return torch.where((uniform_M2[:, 0] < unmasked_M) & (noisy_M == self.mask_id), drawn_M, noisy_M)

    def x0_logits(self, output_MV: Tensor, noisy_M: Tensor, t_M: Tensor) -> Tensor:
        """Copy the output: its normalisation is that of the scores, whatever the time."""
        return output_MV.clone()


# -- uniform -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UniformSedd(Sedd):
    """Every valid token becomes a uniformly random word with probability 1 − α_t. Tokens may change again.

    The output at x_t itself is not read: log s is 0 there. With R = e^{−σQ}, R s is proportional to p(x_0 | the other
    tokens of x_t) for true scores, so that `x0_logits` takes (R s)_y·q(x_t | y), the paper's denoising step; `log_x0`
    is its normalisation, the posterior of x_0 given all of x_t. Approximate scores can make (R s)_y negative; such
    words have no mass.
    """

    kind: str = "sedd"
    revises = True
    level_power = 2  # a replaced token costs about (1/m)·log(1/m): its variance is infinite if m is drawn uniformly

    @property
    def largest_level(self) -> float:
        """1 − α_1."""
        return float(self.schedule.mask_probability(torch.ones((), dtype=torch.float64, device="cpu")))

    def prior_term(self, valid_BL: Tensor) -> Tensor:
        """See `Sedd.prior_term`; each token keeps a fraction α_1, which the uniform prior does not have."""
        other = self.largest_level / self.words
        kept = 1 - (self.words - 1) * other
        each = kept * math.log(kept * self.words) + (self.words - 1) * other * math.log(other * self.words)
        return valid_BL.sum(dim=1).double() * each

    def corrupt_at(self, tokens_BL: Tensor, valid_BL: Tensor, level_B: Tensor, generator: RowGenerator) -> Tensor:
        """See `Sedd.corrupt_at`. Takes two draws of the generator."""
        replaced_BL = (generator.uniform(tokens_BL.shape[1]) < level_B[:, None]) & valid_BL
        return self.prior(tokens_BL, replaced_BL, generator)

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select every valid position."""
        return valid_BL

    def prior(self, tokens_BL: Tensor, open_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Draw words uniformly at the open positions. Takes one draw of the generator."""
        ids_W = self._is_word(tokens_BL.device).nonzero()[:, 0]
        noise_BL = ids_W[(generator.uniform(tokens_BL.shape[1]) * self.words).long()]
        return torch.where(open_BL, noise_BL, tokens_BL)

    def score_entropy(self, output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
        """See `Sedd.score_entropy`.

        With ρ = q(another word | x_0)/q(x_0 | x_0), r_y is ρ where x_t = x_0. Elsewhere it is 1/ρ at y = x_0 and 1 at
        the other words. dσ/dm = 1/(1 − m) and Q = 1/W. Sums over words in float32, and their combination in float64.
        """
        V, W = self.vocab_size, self.words
        words_V = self._is_word(output_MV.device)
        other_MV = words_V & (torch.arange(V, device=output_MV.device) != noisy_M[:, None])
        output_MV = output_MV[..., :V].float()
        others_MV = output_MV.masked_fill(~other_MV, -torch.inf)
        positive_M = others_MV.logsumexp(dim=-1).double().exp()
        known_MV = output_MV.masked_fill(~other_MV, 0.0)
        sum_M = known_MV.sum(dim=-1).double()
        target_M = known_MV.gather(1, targets_M[:, None])[:, 0].double()
        kept_M = noisy_M == targets_M

        m_M = level_M.double()
        rho_M = m_M / (W * (1 - m_M) + m_M)
        kept_loss_M = positive_M - rho_M * sum_M + (W - 1) * rho_M * (rho_M.log() - 1)
        moved_loss_M = (
            positive_M - sum_M - (1 / rho_M - 1) * target_M - (rho_M.log() + 1) / rho_M - (W - 2)
        )  # fmt: skip
        weighted_M = torch.where(kept_M, kept_loss_M, moved_loss_M) / ((1 - m_M) * W)
        log_norm_M = torch.log1p(positive_M).float()
        best_M = torch.where(other_MV, output_MV.detach(), -torch.inf).max(dim=-1)
        return TokenLosses(
            weighted_M.float(),
            log_norm_M - target_M.float(),
            torch.where(best_M.values > 0, best_M.indices, noisy_M),
            log_norm_M,
        )

    def x0_logits(self, output_MV: Tensor, noisy_M: Tensor, t_M: Tensor) -> Tensor:
        """Compute log of (R s)_y·q(x_t | y) (M, vocab_size), float64, up to a constant; −inf where that is ≤ 0."""
        return self._tweedie(output_MV, noisy_M, self._alpha(t_M)).log()

    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Normalise the logits of x_0 that `x0_logits` makes: log x_θ (M, vocab_size), float32."""
        words_MV = logits_MV[..., : self.vocab_size].masked_fill(~self._is_word(logits_MV.device), -torch.inf)
        return words_MV.log_softmax(dim=-1).float()

    def score_step(self, output_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor) -> Tensor:
        """Draw x_s by the analytic (Tweedie) step (§4.2), in float64.

        p(x_s = y) ∝ (e^{(σ(s) − σ(t))Q} s)_y·q(x_t | x_s = y); the step to s = 0 is a draw from `log_x0`.
        """
        probs_MV = self._tweedie(output_MV, noisy_M, self._alpha(t_M) / self._alpha(s_M))
        return categorical(probs_MV, uniform_M2[:, 1])

    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Draw x_s from Σ over x_0 of q(x_t | x_s) q(x_s | x_0)/q(x_t | x_0) x_θ(x_0), in float64.

        For true scores that is the distribution of `score_step`.
        """
        alpha_s_M1 = self._alpha(s_M)[:, None]
        weight_MV = log_x0_MV.softmax(dim=-1, dtype=torch.float64) / self._kept_or_drawn(noisy_M, self._alpha(t_M))
        to_MV = alpha_s_M1 * weight_MV + (1 - alpha_s_M1) / self.words * weight_MV.sum(dim=-1, keepdim=True)
        probs_MV = to_MV * self._kept_or_drawn(noisy_M, self._alpha(t_M) / self._alpha(s_M))
        return categorical(probs_MV * self._is_word(probs_MV.device), uniform_M2[:, 1])

    def _tweedie(self, output_MV: Tensor, noisy_M: Tensor, kept_M: Tensor) -> Tensor:
        """Compute (e^{−ΔσQ} s)_y·q(x_t | y) over words (M, vocab_size), float64, up to a constant; kept = e^{−Δσ}."""
        words_MV = copy_words(self, output_MV)
        words_MV.masked_fill_(torch.arange(self.vocab_size, device=noisy_M.device) == noisy_M[:, None], 0.0)
        scores_MV = (words_MV - words_MV.amax(dim=-1, keepdim=True)).exp_()
        mean_M1 = scores_MV.sum(dim=-1, keepdim=True) / self.words
        earlier_MV = (scores_MV - (1 - kept_M[:, None]) * mean_M1).clamp_min(0)  # times e^{−Δσ}
        return earlier_MV * self._is_word(noisy_M.device) * self._kept_or_drawn(noisy_M, kept_M)

    def _kept_or_drawn(self, noisy_M: Tensor, kept_M: Tensor) -> Tensor:
        """Compute the probability (M, vocab_size) that the word y becomes x_t if a fraction `kept_M` is kept."""
        same_MV = torch.arange(self.vocab_size, device=noisy_M.device) == noisy_M[:, None]
        return kept_M[:, None] * same_MV + (1 - kept_M[:, None]) / self.words

    def _alpha(self, t_M: Tensor) -> Tensor:
        """Return α_t, float64, above 0; 1 at t = 0, also for the geometric schedule."""
        return torch.where(t_M > 0, self.schedule.alpha(t_M.double()).clamp_min(_SMALLEST_ALPHA), 1.0)

    def _is_word(self, device: torch.device) -> Tensor:
        """Select the ids below vocab_size that can be predicted (vocab_size,)."""
        ids_V = torch.arange(self.vocab_size, device=device)
        return (ids_V != self.pad_id) & (ids_V != self.mask_id)
