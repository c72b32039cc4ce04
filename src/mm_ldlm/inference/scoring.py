"""The likelihood bound of a text: what training minimises, measured with care.

−log p(tokens | length, latent) ≤ E_t[w(t) · Σ over masked positions of −log x_θ] (mathematics §1, "evaluation").
Every row gets `draws` times, low-discrepancy over the row itself: t_k = (u + k/K) mod 1, scaled to [t_min, 1]. Sums
are kept in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mm_ldlm.diffusion.masked import mask_tokens, token_nll
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.network import Network


@dataclass(frozen=True)
class Bound:
    """K draws of the bound for each of B rows."""

    nll_KB: Tensor
    """float64 nats, each an unbiased draw of the row's bound"""
    times_KB: Tensor

    @property
    def mean_B(self) -> Tensor:
        return self.nll_KB.mean(dim=0)

    @property
    def standard_error_B(self) -> Tensor:
        """Of the mean, as if the draws were independent; they are spread over t on purpose, so the true one is
        smaller.
        """
        if len(self.nll_KB) < 2:
            return torch.full_like(self.nll_KB[0], torch.nan)
        return self.nll_KB.std(dim=0) / len(self.nll_KB) ** 0.5


def token_bound(
    network: Network,
    tokens_BL: Tensor,
    *,
    latents_Bd: Tensor | None,
    draws: int,
    generator: RowGenerator,
) -> Bound:
    """The bound on −log p(tokens | length) of each row, given its standardised latent, or with the latent unknown."""
    valid_BL = tokens_BL != network.pad_id
    noise_Bd = None
    if latents_Bd is None and not network.knows_null_latent:
        noise_Bd = generator.fork("unknown latent").normal(network.width)
    denoise = network.text_denoiser(latents_Bd, noise_Bd)
    rows_B = torch.arange(len(tokens_BL), device=tokens_BL.device)
    u_B = generator.fork("time").uniform()
    schedule, t_min = network.objective.text_schedule, network.objective.t_min
    nll, times = [], []
    for number in range(draws):
        t_B = t_min + (1 - t_min) * ((u_B + number / draws) % 1.0)
        noisy_BL = mask_tokens(
            tokens_BL, valid_BL, t_B, schedule=schedule, mask_id=network.mask_id, generator=generator.fork(number)
        )
        masked_BL = (noisy_BL == network.mask_id) & valid_BL
        logits_MV = denoise.logits(noisy_BL, t_B.float(), rows_B, masked_BL)
        nll_M = token_nll(
            logits_MV,
            tokens_BL[masked_BL],
            mask_id=network.mask_id,
            pad_id=network.pad_id,
            vocab_size=network.vocab_size,
        )
        summed_B = torch.zeros_like(t_B).index_add_(0, masked_BL.nonzero()[:, 0], nll_M.double())
        nll.append(summed_B * schedule.weight(t_B))
        times.append(t_B)
    return Bound(torch.stack(nll), torch.stack(times))
