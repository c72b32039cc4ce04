"""Gaussian noise on one-hot vectors, whose level follows the mask ratio (CANDI, arXiv:2510.22510, §5).

A masked token x is seen as z = e_x + σε, where e_x is its one-hot vector over the words. The rank r is the probability
that a given wrong word is nearer to z than x is. It rises linearly with the mask ratio m, and σ follows from it: at a
fixed r the number of nearer words grows with the vocabulary, but their fraction does not.

B examples, L positions, I ids that the model reads, M masked positions.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape, TextOutput


def std_of_rank(rank: Tensor) -> Tensor:
    """Compute σ = −1/(√2 Φ⁻¹(r)) for ranks in (0, 1/2): two coordinates of z differ by N(1, 2σ²)."""
    return -1 / (math.sqrt(2) * torch.special.ndtri(rank))


class OneHotNoise(nn.Module):
    """Noise of one-hot vectors with the rank r(m) = r_min + (r_max − r_min)·m at mask ratios m in [0, 1]."""

    word_I: Tensor
    """1 for words, 0 for [PAD] and [MASK], which have no coordinate"""

    def __init__(self, shape: DataShape, *, min_rank: float, max_rank: float) -> None:
        super().__init__()
        self.min_rank, self.max_rank = min_rank, max_rank
        word_I = torch.zeros(shape.num_ids).index_fill(0, torch.tensor(shape.word_ids), 1.0)
        self.register_buffer("word_I", word_I, persistent=False)

    def rank(self, ratio: Tensor) -> Tensor:
        """Return r(m), float64."""
        return self.min_rank + (self.max_rank - self.min_rank) * ratio.double()

    def std(self, ratio: Tensor) -> Tensor:
        """Return σ(m), float64."""
        return std_of_rank(self.rank(ratio))

    def error_weight(self, ratio: Tensor) -> Tensor:
        """Return −½ dσ⁻²/dm, the weight of ‖e_x − x̂‖² in the NELBO, float64; σ⁻² is 2Φ⁻¹(r)²."""
        quantile = torch.special.ndtri(self.rank(ratio))
        density = torch.exp(-quantile.square() / 2) / math.sqrt(2 * math.pi)
        return -2 * quantile * (self.max_rank - self.min_rank) / density

    def prior_kl(self) -> float:
        """Return D_KL(N(e_x, σ²) ‖ N(0, σ²)) = 1/(2σ²) of one token at m = 1, in nats."""
        return float(0.5 / self.std(torch.ones(())).square())

    def draw(self, tokens_BL: Tensor, ratio_B: Tensor, generator: RowGenerator) -> Tensor:
        """Draw z = e_x + σε (B, L, I) for every token; e_x is 0 where it is not a word."""
        I = len(self.word_I)  # noqa: E741
        noise_BLI = self.std(ratio_B).float()[:, None, None] * generator.normal(tokens_BL.shape[1], I)
        return (F.one_hot(tokens_BL, I) + noise_BLI) * self.word_I

    def inputs(self, noisy_BL: Tensor, masked_BL: Tensor, z_BLI: Tensor, ratio_B: Tensor) -> Tensor:
        """Compute the weights (B, L, I) of the ids in the model's input.

        1 for the id at a position, and z/√(1 + Nσ²) for the N words at a masked one, whose vector is thus
        the sum of [MASK]'s and a mixture of all words' by z, as long as one of them.
        """
        scale_B11 = (self.std(ratio_B).square() * self.word_I.sum() + 1).rsqrt().float()[:, None, None]
        return F.one_hot(noisy_BL, len(self.word_I)) + torch.where(masked_BL[..., None], scale_B11 * z_BLI, 0.0)

    def predict(
        self, model: Any, noisy_BL: Tensor, masked_BL: Tensor, z_BLI: Tensor, ratio_B: Tensor, *,
        logits_at: Tensor | None, **given: Any,
    ) -> TextOutput:  # fmt: skip
        """Call the model, and add the evidence z/σ² of each mask to its logits.

        p(x given z) ∝ p(x given the other positions)·exp(z_x/σ²), so that the model only has to learn the first factor.
        """
        inputs_BLI = self.inputs(noisy_BL, masked_BL, z_BLI, ratio_B)
        logits, length_logits = model(inputs_BLI, logits_at=logits_at, **given)
        evidence = z_BLI[..., : logits.shape[-1]] / self.std(ratio_B).square().float()[:, None, None]
        return TextOutput(logits + (evidence if logits_at is None else evidence[logits_at]), length_logits)

    def flow(self, z_BLI: Tensor, x0_BLI: Tensor, ratio_t_B: Tensor, ratio_s_B: Tensor) -> Tensor:
        """Take the Euler step of the probability-flow ODE dz/dσ = (z − x̂)/σ, which is exact for a constant x̂."""
        left_B = self.std(ratio_s_B) / self.std(ratio_t_B)
        return x0_BLI + left_B.float()[:, None, None] * (z_BLI - x0_BLI)
