"""Score entropy discrete diffusion over tokens (SEDD; Lou et al., arXiv:2310.16834): loss and likelihood bound.

The model's output at a position is log s_θ(x_t, t)_y for every word y: the logarithm of the ratio p_t(x_t with y at the
position) / p_t(x_t). The forward process is a Markov chain in the total noise σ = −log α_t with the rates Q(x, y) from
y to x: 1 from a word to [MASK] (absorbing), or 1/W from a word to each other word (uniform, W words). The loss is the
denoising score entropy, with the ratios r_y = q(y | x_0)/q(x_t | x_0):

    dσ/dt · Σ_{y ≠ x_t} Q(x_t, y)·(s_y − r_y log s_y + K(r_y)),   K(a) = a(log a − 1)

Where x_t is [MASK], the paper scales the scores: log s_y = output_y − log(e^σ − 1) − log W. The processes of the two
graphs are in `sedd.py`.

m = 1 − α_t is the noise level, the fraction of replaced tokens. Likelihood bounds are integrated over m, as those of
MDLM are, so that nothing is left out between the clean text and the first time of the schedule.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import forbid_
from mm_ldlm.diffusion.process import NelboDraws, Predict, TextProcess, TokenLosses, draw_bound, stratified
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.diffusion.timesteps import antithetic


@dataclass(frozen=True, kw_only=True)
class Sedd(TextProcess):
    """What both graphs share: times, the loss in time and the likelihood bound (see `TextProcess`)."""

    schedule: MaskSchedule
    t_min: float
    vocab_size: int
    pad_id: int
    mask_id: int
    kind: str = "sedd"
    predicts_scores = True
    level_power = 1
    """Levels of the bound are drawn as m = largest_level·u^power, u uniform."""

    @property
    def words(self) -> int:
        """W, the number of ids that can be predicted."""
        return self.vocab_size - sum(0 <= special < self.vocab_size for special in {self.pad_id, self.mask_id})

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

    def times(self, u: Tensor | float, index_B: Tensor, total: int) -> Tensor:
        """Draw low-discrepancy times (B,) from [t_min, 1] over the global batch."""
        return antithetic(u, index_B, total, self.t_min)

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
    ) -> NelboDraws:
        """Draw the NELBO (the paper's likelihood bound) with the noise level m as the integration variable, in float64.

        Each text gets `draws` levels, low-discrepancy over the text itself. For levels that the schedule does not reach
        the model receives its first or last time.
        """
        largest, power = self.largest_level, self.level_power

        def losses(output_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, level_M: Tensor) -> TokenLosses:
            found = self.score_entropy(output_MV, targets_M, noisy_M, level_M)
            slope_M = power * largest * (level_M / largest) ** (1 - 1 / power)  # dm/du
            return found._replace(weighted_M=found.weighted_M * slope_M.float())

        found = draw_bound(
            predict,
            tokens_BL,
            valid_BL,
            levels_KB=[largest * u_B**power for u_B in stratified(draws, generator.fork("time"))],
            generator=generator,
            corrupt=lambda level_B, stream: self.corrupt_at(tokens_BL, valid_BL, level_B, stream),
            scored=self.scored,
            time=self.schedule.time_of_mask_ratio,
            losses=losses,
        )
        return dataclasses.replace(found, nll_KB=found.nll_KB + self.prior_term(valid_BL))


def copy_words(process: Sedd, output_MV: Tensor) -> Tensor:
    """Copy the output (M, vocab_size) in float64, −inf where an id is no word."""
    words_MV = output_MV[..., : process.vocab_size].to(torch.float64, copy=True)
    return forbid_(words_MV, mask_id=process.mask_id, pad_id=process.pad_id)
