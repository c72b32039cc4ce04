"""Score entropy discrete diffusion over tokens (SEDD; Lou et al., arXiv:2310.16834): the processes of both graphs.

The model's output at a position is log s_θ(x_t, t)_y for every word y: the logarithm of the ratio p_t(x_t with y at the
position) / p_t(x_t). The forward process is a Markov chain in the total noise σ = −log α_t with the rates Q(x, y) from
y to x: 1 from a word to [MASK] (absorbing), or 1/W from a word to each other word (uniform, W words). The loss is the
denoising score entropy, with the ratios r_y = q(y | x_0)/q(x_t | x_0):

    dσ/dt · Σ_{y ≠ x_t} Q(x_t, y)·(s_y − r_y log s_y + K(r_y)),   K(a) = a(log a − 1)

Where x_t is [MASK], the paper scales the scores: log s_y = output_y − log(e^σ − 1) − log W.
m = 1 − α_t is the noise level, the fraction of replaced tokens. Likelihood bounds are integrated over m, as for
MDLM, so that nothing is left out between the clean text and the first time of the schedule.
"""

import dataclasses
import math
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.distributions import TokenLosses, categorical
from mm_ldlm.diffusion.masked import Masking, unmask_probability
from mm_ldlm.diffusion.nelbo import Likelihood, Predict, integrate
from mm_ldlm.diffusion.process import TextProcess, TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, LogLinear, MaskSchedule, SmallestTime
from mm_ldlm.diffusion.times import stratified

_LARGEST_EXPONENT = 700.0
"""e to this power is finite in float64."""
_SMALLEST_ALPHA = 1e-12
"""Below this fraction of kept tokens the scores contain nothing about x_0 in float64."""


@config
class SeddConfig(TextProcessConfig):
    """Parameters of score entropy discrete diffusion.

    Attributes:
        graph: what a token is replaced by: [MASK], or a word drawn uniformly.
        schedule: α_t = exp(−σ(t)). The paper takes log_linear for absorbing and geometric for uniform.
        t_min: smallest time drawn in training.
    """

    predicts_scores: ClassVar[bool] = True
    kind: str = "sedd"
    graph: Literal["absorbing", "uniform"] = "absorbing"
    schedule: Annotated[Any, MASK_SCHEDULES] = dataclasses.field(default_factory=LogLinear)
    t_min: SmallestTime = 1e-3

    @property
    def only_masks(self) -> bool:  # type: ignore[override]
        return self.graph == "absorbing"

    @property
    def revises(self) -> bool:  # type: ignore[override]
        return self.graph == "uniform"

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "Sedd":
        """Build the process for a tokenizer's ids."""
        return (AbsorbingSedd if self.graph == "absorbing" else UniformSedd)(self, vocabulary)


class Sedd(TextProcess):
    """Base of both graphs: times, the loss in time and the likelihood bound (see `TextProcess`)."""

    schedule: MaskSchedule
    is_word_V: Tensor
    """Which ids below vocab_size can be predicted"""
    level_power = 1
    """Levels of the bound are drawn as m = largest_level·u^power, u uniform."""

    def __init__(self, config: SeddConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.schedule = config.schedule.build()
        self.words = len(vocabulary.word_ids)  # W
        is_word_V = torch.zeros(self.vocab_size, dtype=torch.bool)
        is_word_V[vocabulary.word_ids] = True
        self.register_buffer("is_word_V", is_word_V, persistent=False)

    @property
    @abstractmethod
    def largest_level(self) -> float:
        """The noise level at which the bound begins."""

    @abstractmethod
    def corrupt_at(self, tokens_BL: Tensor, valid_BL: Tensor, level_B: Tensor, generator: RowGenerator) -> Tensor:
        """Replace each valid token with probability m = `level_B`."""

    @abstractmethod
    def score_entropy(self, output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
        """Compute the denoising score entropy per unit of m at M scored positions: the loss · dσ/dm.

        `nll_M` is −log of the target's fraction of all scores, and `best_M` the id of the highest score. The output may
        be overwritten.
        """

    @abstractmethod
    def prior_term(self, valid_BL: Tensor) -> Tensor:
        """Compute KL(q(x_1 | x_0) || prior) in nats (B,), float64: what the bound adds to the integral."""

    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Replace every valid token with probability 1 − α_t, independently of the others."""
        return self.corrupt_at(tokens_BL, valid_BL, self.schedule.mask_probability(t_B), generator)

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute the denoising score entropy per unit of time at M scored positions; dm/dt = −α'_t."""
        t_M = t_M.double()
        found = self.score_entropy(logits_MV, targets_M, noisy_M, self.schedule.mask_probability(t_M))
        return found._replace(weighted_M=found.weighted_M * -self.schedule.alpha_prime(t_M).float())

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the NELBO (the paper's likelihood bound) with the noise level m as the integration variable, in float64.

        Each text gets `draws` levels, low-discrepancy over the text itself. For levels that the schedule does not reach
        the model receives its first or last time.
        """
        largest, power = self.largest_level, self.level_power
        levels_KB = [largest * u_B**power for u_B in stratified(draws, generator.fork("time"))]

        def losses(output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
            found = self.score_entropy(output_MV, targets_M, noisy_M, level_M)
            slope_M = power * largest * (level_M / largest) ** (1 - 1 / power)  # dm/du
            return found._replace(weighted_M=found.weighted_M * slope_M.float())

        found = integrate(
            self, predict, tokens_BL, valid_BL, levels_KB, generator,
            time=self.schedule.time_of_mask_ratio, corrupt=self.corrupt_at, losses=losses,
        )  # fmt: skip
        return dataclasses.replace(found, nll_KB=found.nll_KB + self.prior_term(valid_BL))

    def copy_words(self, output_MV: Tensor) -> Tensor:
        """Copy the output (M, vocab_size) in float64, −inf where an id is not a word."""
        words_MV = output_MV[..., : self.vocab_size].to(torch.float64, copy=True)
        return words_MV.masked_fill_(~self.is_word_V, -torch.inf)


# -- absorbing ---------------------------------------------------------------------------------------------------------


class AbsorbingSedd(Sedd, Masking):
    """Every valid token becomes [MASK] with probability 1 − α_t. Only the scores at [MASK] have a rate.

    With the paper's scaling s_y = α_t/(1 − α_t)·e^{output_y}/W, and the true scores are α_t/(1 − α_t)·p(y | the
    unmasked tokens). `log_x0` is the normalised score s_y/Σ s, which is that conditional distribution for true scores
    and needs no time. What it leaves out is the total Σ s, α_t/(1 − α_t) for true scores, which `score_step` reads.
    """

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
        return self.mask(tokens_BL, valid_BL, level_B, generator)

    def score_entropy(self, output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
        """See `Sedd.score_entropy`.

        With u = log Σ e^{output} − log W and CE = −log(s/Σ s) of the target, s_y − r log s + K(r) summed over y is
        r·(CE + e^u − 1 − u): the cross-entropy of MDLM, and the error of the total, which is 0 at u = 0.
        """
        found = self.cross_entropy(output_MV, targets_M)
        u_M = found.log_norm_M.double() - math.log(self.words)
        weighted_M = (found.nll_M + (torch.expm1(u_M) - u_M)) / level_M
        return found._replace(weighted_M=weighted_M.float())

    def score_step(self, output_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor) -> Tensor:
        """Draw x_s by the analytic (Tweedie) step (§4.2), in float64.

        A mask becomes y with probability (e^{σ(t) − σ(s)} − 1)·s_y, at most 1 in all. The step to s = 0 unmasks
        everything, with probabilities in proportion to s.
        """
        words_MV = self.copy_words(output_MV)
        excess_M = words_MV.logsumexp(dim=-1) - math.log(self.words)
        exact_M = unmask_probability(self.alpha(t_M), self.alpha(s_M))  # the probability at true scores
        unmasked_M = torch.where(s_M > 0, exact_M * excess_M.clamp(max=_LARGEST_EXPONENT).exp(), 1.0)
        drawn_M = categorical(words_MV.softmax(dim=-1), uniform_M2[:, 1])
        return torch.where((uniform_M2[:, 0] < unmasked_M) & (noisy_M == self.mask_id), drawn_M, noisy_M)

    def x0_logits(self, output_MV: Tensor, noisy_M: Tensor, t_M: Tensor) -> Tensor:
        """Copy the output: it is normalised as the scores are, whatever the time."""
        return output_MV.clone()


# -- uniform -----------------------------------------------------------------------------------------------------------


class UniformSedd(Sedd):
    """Every valid token becomes a uniformly random word with probability 1 − α_t. Tokens may change again.

    The output at x_t itself is not read: log s is 0 there. With R = e^{−σQ}, R s is proportional to p(x_0 | the other
    tokens of x_t) for true scores, so that `x0_logits` takes (R s)_y·q(x_t | y), the paper's denoising step; `log_x0`
    is its normalisation, the posterior of x_0 given all of x_t. Approximate scores can make (R s)_y negative; such
    words have no mass.
    """

    level_power = 2  # a replaced token costs about (1/m)·log(1/m): its variance is infinite if m is drawn uniformly

    @property
    def largest_level(self) -> float:
        """1 − α_1."""
        one = torch.ones((), dtype=torch.float64, device=self.is_word_V.device)
        return self.schedule.mask_probability(one).item()

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
        ids_W = self.is_word_V.nonzero()[:, 0]
        noise_BL = ids_W[(generator.uniform(tokens_BL.shape[1]) * self.words).long()]
        return torch.where(open_BL, noise_BL, tokens_BL)

    def score_entropy(self, output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
        """See `Sedd.score_entropy`.

        With ρ = q(another word | x_0)/q(x_0 | x_0), r_y is ρ where x_t = x_0. Elsewhere it is 1/ρ at y = x_0 and 1 at
        the other words. dσ/dm = 1/(1 − m) and Q = 1/W. Sums over words in float32, and their combination in float64.
        """
        V, W = self.vocab_size, self.words
        other_MV = self.is_word_V & (torch.arange(V, device=output_MV.device) != noisy_M[:, None])
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
        words_MV = logits_MV[..., : self.vocab_size].masked_fill(~self.is_word_V, -torch.inf)
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
        return categorical(probs_MV * self.is_word_V, uniform_M2[:, 1])

    def _tweedie(self, output_MV: Tensor, noisy_M: Tensor, kept_M: Tensor) -> Tensor:
        """Compute (e^{−ΔσQ} s)_y·q(x_t | y) over words (M, vocab_size), float64, up to a constant; kept = e^{−Δσ}."""
        words_MV = self.copy_words(output_MV)
        words_MV.masked_fill_(torch.arange(self.vocab_size, device=noisy_M.device) == noisy_M[:, None], 0.0)
        scores_MV = (words_MV - words_MV.amax(dim=-1, keepdim=True)).exp_()
        mean_M1 = scores_MV.sum(dim=-1, keepdim=True) / self.words
        earlier_MV = (scores_MV - (1 - kept_M[:, None]) * mean_M1).clamp_min(0)  # times e^{−Δσ}
        return earlier_MV * self.is_word_V * self._kept_or_drawn(noisy_M, kept_M)

    def _kept_or_drawn(self, noisy_M: Tensor, kept_M: Tensor) -> Tensor:
        """Compute the probability (M, vocab_size) that the word y becomes x_t if a fraction `kept_M` is kept."""
        same_MV = torch.arange(self.vocab_size, device=noisy_M.device) == noisy_M[:, None]
        return kept_M[:, None] * same_MV + (1 - kept_M[:, None]) / self.words

    def _alpha(self, t_M: Tensor) -> Tensor:
        """Return α_t, float64, above 0; 1 at t = 0, also for the geometric schedule."""
        return torch.where(t_M > 0, self.schedule.alpha(t_M.double()).clamp_min(_SMALLEST_ALPHA), 1.0)
