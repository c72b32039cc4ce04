"""Interpolating diffusion over tokens: x_t is drawn from α_t x_0 + β_t π_t (GIDD, arXiv:2503.04482, §3).

A token is kept with probability α_t, becomes each of the N words with probability b_t, or [MASK] with probability m_t:
q(x_t | x_0) = α_t x_0 + b_t 1 + m_t [MASK], α_t + N b_t + m_t = 1. `uniform.py` has m_t = 0, `gidd.py` both kinds of
noise. The words are the ids below vocab_size without [MASK] and [PAD]; noise is never another id.

As in both papers, the model's x_θ stands in q in the place of x_0: p_θ(x_s | x_t) = q(x_t | x_s) q(x_s | x_θ) / q(x_t |
x_θ). This equals Σ over x_0 of q(x_s | x_t, x_0) p(x_0 | x_t) with p(x_0 | x_t) ∝ q(x_t | x_0) x_θ(x_0). So the best
x_θ predicts a token from the others alone, because q(x_t | x_0) accounts for the token that stands at its position.

B examples, L positions, M scored positions, V vocabulary, N words.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import categorical, forbid_, normalise_
from mm_ldlm.diffusion.process import TextProcess, TokenLosses
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.timesteps import antithetic

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

    t_min: float

    @abstractmethod
    def noise(self, t: Tensor) -> Noise:
        """Return q(x_t | x_0) and its rates at the times t, in float64."""

    @property
    def num_words(self) -> int:
        """N, the number of ids that can stand in a text."""
        return self.vocab_size - len(self._specials)

    @property
    def _specials(self) -> list[int]:
        return sorted(i for i in {self.mask_id, self.pad_id} if 0 <= i < self.vocab_size)

    # -- training ---------------------------------------------------------------------------------------------------

    def times(self, u: Tensor | float, index_B: Tensor, total: int) -> Tensor:
        """Draw low-discrepancy times (B,) from [t_min, 1] over the global batch."""
        return antithetic(u, index_B, total, self.t_min)

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
        ids = (uniform * self.num_words).long().clamp_max(self.num_words - 1)
        for special in self._specials:
            ids = ids + (ids >= special)
        return ids

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the valid positions: each token may be noise."""
        return valid_BL

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute w_t (D_KL(q(· | x) ‖ q(· | x_θ)) + D_IS(q(x_t | x) ‖ q(x_t | x_θ))) at M positions (GIDD §3).

        With uniform noise this is the integrand of UDLM (arXiv:2412.10193; Duo, arXiv:2506.10892).
        """
        words_MV = forbid_(logits_MV[..., : self.vocab_size].clone(), mask_id=self.mask_id, pad_id=self.pad_id).float()
        log_x0_MV = words_MV.log_softmax(dim=-1)
        nll_M = -log_x0_MV.gather(1, targets_M[:, None])[:, 0]
        log_norm_M = words_MV.gather(1, targets_M[:, None])[:, 0] + nll_M
        noise = self.noise(t_M)
        divergence_M = self._divergence(log_x0_MV, nll_M, targets_M, noisy_M, noise)
        weighted_M = self.weight(targets_M, noisy_M, noise) * divergence_M
        return TokenLosses(weighted_M.float(), nll_M, log_x0_MV.detach().argmax(dim=-1), log_norm_M)

    def weight(self, targets_M: Tensor, noisy_M: Tensor, noise: Noise) -> Tensor:
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

    @property
    def revises(self) -> bool:  # type: ignore[override]
        return self.mask_schedule is None

    # -- sampling ---------------------------------------------------------------------------------------------------

    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Compute log x_θ (M, vocab_size) in float32; [MASK], [PAD] and ids ≥ vocab_size get no mass."""
        words_MV = logits_MV[..., : self.vocab_size].float()
        return normalise_(forbid_(words_MV, mask_id=self.mask_id, pad_id=self.pad_id))

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
