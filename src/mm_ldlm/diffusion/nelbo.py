"""NELBO of texts: draws of an integral over the noise level, which `TextProcess.nelbo` and its overrides choose.

B examples, L positions, V vocabulary, M scored positions, K draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import TokenLosses
from mm_ldlm.diffusion.random import RowGenerator

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(noisy_BL, t_B float32, scored_BL) → logits_MV at the scored positions, in row-major order.

Each call returns a new tensor, because the process writes into it.
"""


@dataclass(frozen=True)
class Likelihood:
    """Draws of the negative log-likelihood of B texts, float64; a single draw if it is exact.

    The four other fields are statistics of a diffusion NELBO; they are None if the likelihood is exact.
    """

    nll_KB: Tensor
    """nats; each is an unbiased draw of the NELBO, an upper bound on −log p(tokens | length), or the exact value"""
    mask_ratio_KB: Tensor | None = None
    """noise level in (0, 1]: the mask ratio where the noise is [MASK], otherwise the time or 1 − α_t"""
    masked_KB: Tensor | None = None
    """number of scored tokens: the masked ones where the noise is [MASK]"""
    correct_KB: Tensor | None = None
    """number of scored positions at which the model's most probable token is correct"""
    cross_entropy_KB: Tensor | None = None
    """nats: sum of −log x_θ(target) over the scored positions, without the weight of the NELBO"""


def integrate(
    process: Any,
    predict: Predict,
    tokens_BL: Tensor,
    valid_BL: Tensor,
    levels_KB: Sequence[Tensor],
    generator: RowGenerator,
    *,
    slopes_KB: Sequence[Tensor] | None = None,
    time: Callable[[Tensor], Tensor] | None = None,
    corrupt: Callable[[Tensor, Tensor, Tensor, RowGenerator], Tensor] | None = None,
    losses: Callable[[Tensor, Tensor, Tensor, Tensor], TokenLosses] | None = None,
) -> Likelihood:
    """Estimate an integral over a noise level at K levels (B,) in float64: times, or fractions of replaced tokens.

    Args:
        process: the `TextProcess`.
        slopes_KB: the derivative of the level by the variable in which the draws are uniform; 1 by default.
        time: level_B → the time t_B that the model receives; by default the level is the time.
        corrupt: draws the noisy tokens at a level; by default `process.corrupt`.
        losses: the integrand over the level; by default `process.elbo_losses`.
    """
    corrupt, losses = corrupt or process.corrupt, losses or process.elbo_losses
    found = []
    for number, level_B in enumerate(levels_KB):
        noisy_BL = corrupt(tokens_BL, valid_BL, level_B, generator.fork(number))
        scored_BL = process.scored(noisy_BL, valid_BL)
        t_B = level_B if time is None else time(level_B)
        logits_MV = predict(noisy_BL, t_B.float(), scored_BL)
        row_M, targets_M = scored_BL.nonzero()[:, 0], tokens_BL[scored_BL]
        loss = losses(logits_MV, targets_M, noisy_BL[scored_BL], level_B[row_M])
        weighted_M, nothing_B = loss.weighted_M.double(), torch.zeros_like(level_B)
        if slopes_KB is not None:
            weighted_M = weighted_M * slopes_KB[number][row_M]
        correct_M, nll_M = (loss.best_M == targets_M).double(), loss.nll_M.double()
        sums = [nothing_B.index_add(0, row_M, value_M) for value_M in (weighted_M, correct_M, nll_M)]
        found.append((sums[0], level_B, scored_BL.sum(dim=1).double(), *sums[1:]))
    return Likelihood(*(torch.stack(part) for part in zip(*found, strict=True)))
