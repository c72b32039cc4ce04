"""D3PM with an absorbing state: masked diffusion in T discrete steps (Austin et al., arXiv:2107.03006).

The chain x_0, x_1/T, …, x_1 masks tokens with the probabilities of a schedule at the grid points i/T. It begins at the
clean text and ends with [MASK] everywhere: α is 1 at i = 0 and 0 at i = T, for every schedule. The prior
term of the bound is therefore 0, the reconstruction term is step 1, and the sum over the steps is the entire
bound. For T → ∞ it is the bound of MDLM.
"""

import dataclasses
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from mm_ldlm.core import Repeats, config
from mm_ldlm.diffusion.masked import Masking, unmask_probability
from mm_ldlm.diffusion.nelbo import Likelihood, Predict, integrate
from mm_ldlm.diffusion.process import TextProcessConfig, TokenLosses, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, LogLinear
from mm_ldlm.diffusion.times import antithetic, stratified


@config
class D3pmConfig(TextProcessConfig):
    """Parameters of absorbing diffusion in discrete time.

    Attributes:
        schedule: α_t, the expected fraction of tokens that are kept, read at the inner grid points.
        steps: T, the number of steps of training and of the bound. A sampler may take another number.
    """

    only_masks: ClassVar[bool] = True
    kind: str = "d3pm"
    schedule: Annotated[Any, MASK_SCHEDULES] = dataclasses.field(default_factory=LogLinear)
    steps: Repeats = 1000

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "D3pm":
        """Build the process for a tokenizer's ids."""
        return D3pm(self, vocabulary)


class D3pm(Masking):
    """Absorbing diffusion on the grid t = i/T, i = 1..T (see `TextProcess`). The model receives t."""

    def alpha(self, t: Tensor) -> Tensor:
        """Return α_t; 1 at t = 0 and 0 at t = 1."""
        return torch.where(t < 1, super().alpha(t), 0.0)

    def mask_probability(self, t: Tensor) -> Tensor:
        """Return 1 − α_t at times t > 0; 1 at t = 1."""
        return torch.where(t < 1, super().mask_probability(t), 1.0)

    def times(self, u: float, index_B: Tensor, total: int) -> Tensor:
        """Draw t = i/T (B,), i uniform on 1..T, low-discrepancy over the global batch."""
        return self._on_grid(1 - antithetic(u, index_B, total, 0.0).double()).float()

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute T·(α_s − α_t)/(1 − α_t)·CE at M masked positions, s = t − 1/T (D3PM eq. 1; MDLM §3.3).

        The mean over i is then the sum over all T steps. The Kullback–Leibler divergence of a step is a cross-entropy,
        because q(x_s | x_t, x_0) and its model agree on whether a token is unmasked and differ in which.
        """
        found = self.cross_entropy(logits_MV, targets_M)
        return found._replace(weighted_M=found.nll_M * self.weight(t_M).float())

    def weight(self, t: Tensor) -> Tensor:
        """Return T·(α_s − α_t)/(1 − α_t), float64, at the grid point nearest to t."""
        i = (t.double() * self.traits.steps).round()
        return self.traits.steps * unmask_probability(
            self.alpha(i / self.traits.steps), self.alpha((i - 1) / self.traits.steps)
        )

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the NELBO in T steps: `draws` steps i of each text, low-discrepancy over 1..T, each an unbiased draw.

        −log p(tokens | length) ≤ Σ_i (α_s − α_t)/(1 − α_t) E[Σ over masked positions of −log x_θ] (D3PM eq. 1). For
        the exact x_θ doubling T never raises it, and it is never below the NELBO of MDLM.
        """
        levels_KB = [self._on_grid(u_B) for u_B in stratified(draws, generator.fork("time"))]
        found = integrate(self, predict, tokens_BL, valid_BL, levels_KB, generator)
        return dataclasses.replace(found, mask_ratio_KB=self.mask_probability(torch.stack(levels_KB)))

    def _on_grid(self, u: Tensor) -> Tensor:
        """Round u ∈ (0, 1] up to a multiple of 1/T, float64."""
        return (u * self.traits.steps).ceil().clamp(1, self.traits.steps) / self.traits.steps
