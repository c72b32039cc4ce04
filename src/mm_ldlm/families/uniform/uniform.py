"""Interpolating diffusion over tokens: x_t is drawn from α_t x_0 + β_t π_t (GIDD, arXiv:2503.04482, §3).

A token is kept with probability α_t, becomes each of the N words with probability b_t, or [MASK] with probability m_t:
q(x_t | x_0) = α_t x_0 + b_t 1 + m_t [MASK], α_t + N b_t + m_t = 1. `Uniform` has m_t = 0 (UDLM, arXiv:2412.10193; Duo,
2506.10892), `gidd.py` both kinds of noise. The words are the ids below vocab_size without [MASK] and [PAD]; noise is
never another id.

As in both papers, the model's x_θ stands in q in the place of x_0: p_θ(x_s | x_t) = q(x_t | x_s) q(x_s | x_θ) / q(x_t |
x_θ). This equals Σ over x_0 of q(x_s | x_t, x_0) p(x_0 | x_t) with p(x_0 | x_t) ∝ q(x_t | x_0) x_θ(x_0). So the best
x_θ predicts a token from the others only, because q(x_t | x_0) accounts for the token that stands at its position.

B examples, L positions, M scored positions, V vocabulary, N words.
"""

import dataclasses
import math
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.distributions import TokenLosses, categorical, forbid_
from mm_ldlm.diffusion.nelbo import Likelihood, Predict
from mm_ldlm.diffusion.process import TextProcess, TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, LogLinear, SmallestTime

SMALLEST = 1e-15
"""Times nearer than this to 0 or 1 are moved to this distance, where all quotients below are finite in float64."""


class Noise(NamedTuple):
    """q(x_t | x_0) at M times, float64, and the rates at which tokens turn into noise."""

    alpha: Tensor
    """α_t, the probability that a token is kept"""
    word: Tensor
    """b_t, the probability of each word as noise"""
    mask: Tensor
    """m_t, the probability of [MASK]"""
    word_rate: Tensor
    """ρ_t(word)/b_t, where ρ_t = (β_t π_t)' − (α_t'/α_t) β_t π_t is the rate of jumps to an id (GIDD §3)"""
    mask_rate: Tensor
    """ρ_t([MASK])/m_t"""


class Interpolating(TextProcess):
    """Base of the processes with words as noise; subclasses define `noise`, `prior` and, where there are any, the terms
    of the NELBO at its ends."""

    word_ids_N: Tensor

    def __init__(self, config: Any, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.num_words = len(vocabulary.word_ids)  # N
        self.register_buffer("word_ids_N", torch.tensor(vocabulary.word_ids), persistent=False)

    @abstractmethod
    def noise(self, t: Tensor) -> Noise:
        """Return q(x_t | x_0) and its rates at the times t, in float64."""

    # -- training ---------------------------------------------------------------------------------------------------

    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Draw x_t from α_t x_0 + β_t π_t at every valid position (GIDD §3). Takes two draws of the generator."""
        length = tokens_BL.shape[1]
        noise = self.noise(t_B)
        kind_BL, word_BL = generator.uniform(length, dtype=torch.float32), generator.uniform(length)
        mask_B, noisy_B = noise.mask, noise.mask + self.num_words * noise.word
        noisy_BL = torch.where(kind_BL < noisy_B[:, None], self.words(word_BL), tokens_BL)
        noisy_BL = torch.where(kind_BL < mask_B[:, None], self.mask_id, noisy_BL)
        return torch.where(valid_BL, noisy_BL, tokens_BL)

    def words(self, uniform: Tensor) -> Tensor:
        """Turn uniform numbers in (0, 1) into equally probable words."""
        return self.word_ids_N[(uniform * self.num_words).long().clamp_max(self.num_words - 1)]

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the valid positions: each token may be noise."""
        return valid_BL

    def token_losses(
        self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor, *, elbo: bool = False
    ) -> TokenLosses:
        """Compute w_t (D_KL(q(· | x) ‖ q(· | x_θ)) + D_IS(q(x_t | x) ‖ q(x_t | x_θ))) at M positions (GIDD §3).

        With uniform noise this is the integrand of UDLM (arXiv:2412.10193; Duo, arXiv:2506.10892). w_t are the weights
        of the NELBO with `elbo`, and otherwise of the training.
        """
        words_MV = forbid_(logits_MV[..., : self.vocab_size].clone(), mask_id=self.mask_id, pad_id=self.pad_id).float()
        log_x0_MV = words_MV.log_softmax(dim=-1)
        nll_M = -log_x0_MV.gather(1, targets_M[:, None])[:, 0]
        log_norm_M = words_MV.gather(1, targets_M[:, None])[:, 0] + nll_M
        noise = self.noise(t_M)
        divergence_M = self._divergence(log_x0_MV, nll_M, targets_M, noisy_M, noise)
        weight = self.elbo_weight if elbo else self.weight
        weighted_M = weight(targets_M, noisy_M, noise) * divergence_M
        return TokenLosses(weighted_M.float(), nll_M, log_x0_MV.detach().argmax(dim=-1), log_norm_M)

    def weight(self, targets_M: Tensor, noisy_M: Tensor, noise: Noise) -> Tensor:
        """Compute the weights (M,) of the training loss, float64; by default the NELBO's."""
        return self.elbo_weight(targets_M, noisy_M, noise)

    def elbo_weight(self, targets_M: Tensor, noisy_M: Tensor, noise: Noise) -> Tensor:
        """Compute w_t(x_t, x) = ρ_t(x_t)/q(x_t | x) (M,) of the NELBO (GIDD §3), float64."""
        kept_M = noisy_M == targets_M
        word_M = noise.word_rate * noise.word / (noise.word + kept_M * noise.alpha).clamp_min(1e-300)
        return torch.where(noisy_M == self.mask_id, noise.mask_rate, word_M)

    def _divergence(self, log_x0_MV: Tensor, nll_M: Tensor, targets_M: Tensor, noisy_M: Tensor, noise: Noise) -> Tensor:
        """Compute D_KL + D_IS (M,) in float64; logarithms of q are taken relative to b_t, so that nothing cancels."""
        masked_M = noisy_M == self.mask_id
        if self.mask_schedule is not None:  # no random words
            return torch.where(masked_M, noise.alpha * nll_M.double(), 0.0)
        ratio_M = noise.alpha / noise.word
        kept_M, true_M = torch.log1p(ratio_M), torch.log1p(ratio_M * (-nll_M).double().exp())
        others_MV = log_x0_MV.scatter(1, targets_M[:, None], -torch.inf).exp()
        others_M = (ratio_M.float()[:, None] * others_MV).log1p().sum(dim=-1)
        kl_M = noise.word * ((1 + ratio_M) * (kept_M - true_M) - others_M.double())
        index_M = torch.where(masked_M, targets_M, noisy_M).clamp_max(log_x0_MV.shape[-1] - 1)
        seen_M = torch.log1p(ratio_M * log_x0_MV.gather(1, index_M[:, None])[:, 0].double().exp())
        log_ratio_M = torch.where(noisy_M == targets_M, kept_M, 0.0) - seen_M  # log q(x_t | x) − log q(x_t | x_θ)
        return kl_M + torch.where(masked_M, 0.0, torch.expm1(log_ratio_M) - log_ratio_M)

    def nelbo_times(self, u_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return t = sin²(πu/2) and dt/du: in t itself the variance of the draws is infinite.

        The probability of a random word falls like √t at t → 0 (GIDD), while the weight of its loss rises like 1/t;
        the same holds at t → 1.
        """
        if self.mask_schedule is not None:
            return super().nelbo_times(u_B)
        return torch.sin(u_B * (math.pi / 2)).square(), torch.sin(u_B * math.pi) * (math.pi / 2)

    def elbo_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """See `TextProcess.elbo_losses`."""
        return self.token_losses(logits_MV, targets_M, noisy_M, t_M, elbo=True)

    # -- sampling ---------------------------------------------------------------------------------------------------

    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Draw x_s from q(x_t | x_s) q(x_s | x_θ)/q(x_t | x_θ) (GIDD §3; UDLM).

        x_t stays, or is replaced by a draw from q(x_s | x_θ): by a token of x_θ, by a random word, or by [MASK].
        """
        x0_MV = log_x0_MV.softmax(dim=-1, dtype=torch.float64)
        now, then = self.noise(t_M), self._noise_or_clean(s_M)
        masked_M, word_M = noisy_M == self.mask_id, noisy_M.clamp_max(x0_MV.shape[-1] - 1)
        step_M = now.alpha / then.alpha  # q(x_t = z | x_s) = step [x_s = z] + fresh(z)
        fresh_M = torch.where(masked_M, now.mask - step_M * then.mask, now.word - step_M * then.word).clamp_min(0)
        seen_M = x0_MV.gather(1, word_M[:, None])[:, 0]
        stay_M = step_M * torch.where(masked_M, then.mask, then.alpha * seen_M + then.word)
        share_M = fresh_M / (fresh_M + stay_M).clamp_min(1e-300)
        by_model_M = share_M * then.alpha
        by_word_M = by_model_M + share_M * self.num_words * then.word
        by_mask_M = by_word_M + share_M * then.mask
        choice_M, which_M = uniform_M2.unbind(dim=1)
        found_M = torch.where(choice_M < by_mask_M, self.mask_id, noisy_M)
        found_M = torch.where(choice_M < by_word_M, self.words(which_M), found_M)
        return torch.where(choice_M < by_model_M, categorical(x0_MV, which_M), found_M)

    def _noise_or_clean(self, s_M: Tensor) -> Noise:
        """Return q(x_s | x_0), without noise at s = 0 also where a schedule has α_0 < 1."""
        noise, clean_M = self.noise(s_M), s_M <= 0
        return noise._replace(
            alpha=noise.alpha.masked_fill(clean_M, 1.0),
            word=noise.word.masked_fill(clean_M, 0.0),
            mask=noise.mask.masked_fill(clean_M, 0.0),
        )


@config
class UniformConfig(TextProcessConfig):
    """Parameters of uniform diffusion.

    Attributes:
        schedule: α_t, the fraction of tokens that no noise has replaced.
        t_min: smallest time drawn in training.
    """

    revises: ClassVar[bool] = True
    kind: str = "uniform"
    schedule: Annotated[Any, MASK_SCHEDULES] = dataclasses.field(default_factory=LogLinear)
    t_min: SmallestTime = 1e-3

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "Uniform":
        """Build the process for a tokenizer's ids."""
        return Uniform(self, vocabulary)


class Uniform(Interpolating):
    """Every valid token becomes a uniformly random word with probability 1 − α_t (see `Interpolating`).

    A reverse step may revise any token.
    """

    def __init__(self, config: UniformConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.schedule = config.schedule.build()

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
    ) -> Likelihood:
        """Draw the NELBO: the integral over t, D_KL(q(x_1 | x_0) ‖ prior), and −log p(x_0 | x_{t=0}) where α_0 < 1.

        With α_0 = 1 (log_linear, cosine) x_0 is the clean text, and the last term is 0.
        """
        found = super().nelbo(predict, tokens_BL, valid_BL, draws=draws, generator=generator)
        nll_KB = found.nll_KB + self.prior_kl() * valid_BL.sum(dim=1)
        if self.schedule.mask_probability(self._at(0.0)).item() > 0:
            stream = generator.fork("reconstruction")
            nll_KB = nll_KB + torch.stack(
                [self._reconstruction(predict, tokens_BL, valid_BL, stream.fork(number)) for number in range(draws)]
            )
        return dataclasses.replace(found, nll_KB=nll_KB)

    def prior_kl(self) -> float:
        """Compute D_KL(q(x_1 | x_0) ‖ 1/N) of one token, in nats; 0 where α_1 = 0."""
        noise, N = self.noise(self._at(1.0)), self.num_words
        alpha, word = noise.alpha.item(), noise.word.item()
        return (alpha + word) * math.log1p((N - 1) * alpha) + (N - 1) * word * math.log1p(-alpha)

    def _at(self, t: float) -> Tensor:
        return torch.full((), t, dtype=torch.float64, device=self.word_ids_N.device)

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
