"""The likelihood bound of a text: what training minimises, measured with care.

−log p(tokens | length, latent) ≤ ∫₀¹ (1/m) E[Σ over masked positions of −log x_θ] dm (mathematics §1, "evaluation"),
in the masked share m: the times that training draws are cut off at t_min, and a schedule never masks more than 1 − α_1.
Every row gets `draws` shares, low-discrepancy over the row itself: m_k = 1 − (u + k/K) mod 1. Sums are kept in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mm_ldlm.diffusion.masked import token_nll
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.inference.batching import batches_by_length
from mm_ldlm.inference.network import Network
from mm_ldlm.inference.results import Scores
from mm_ldlm.inference.writing import Writer, pad
from mm_ldlm.sampling.walk import time_of_share


@dataclass(frozen=True)
class Bound:
    """K draws of the bound for each of B rows."""

    nll_KB: Tensor
    """float64 nats, each an unbiased draw of the row's bound"""
    times_KB: Tensor
    """The time that the network was told: its schedule's for the masked share"""

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
    nll, times = [], []
    for number in range(draws):
        share_B = 1 - (u_B + number / draws) % 1.0  # in (0, 1]
        masked_BL = (generator.fork(number).uniform(tokens_BL.shape[1]) < share_B[:, None]) & valid_BL
        noisy_BL = tokens_BL.masked_fill(masked_BL, network.mask_id)
        t_B = time_of_share(network.objective.text_schedule, share_B)
        logits_MV = denoise.logits(noisy_BL, t_B.float(), rows_B, masked_BL)
        nll_M = token_nll(
            logits_MV,
            tokens_BL[masked_BL],
            mask_id=network.mask_id,
            pad_id=network.pad_id,
            vocab_size=network.vocab_size,
        )
        summed_B = torch.zeros_like(share_B).index_add_(0, masked_BL.nonzero()[:, 0], nll_M.double())
        nll.append(summed_B / share_B)
        times.append(t_B)
    return Bound(torch.stack(nll), torch.stack(times))


def score_tokens(
    writer: Writer,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    latents_nd: Tensor | None,
    draws: int,
    seed: int,
) -> Scores:
    """The bound for each of n texts (`ids` are theirs), given its standardised latent or with the latent unknown."""
    network, lengths = writer.network, np.array([len(row) for row in ids])
    log_probs_nN = writer.length_log_probs(latents_nd, rows=len(ids)).double().cpu().numpy()
    nll, times = np.zeros((draws, len(ids))), np.zeros((draws, len(ids)))
    with network.evaluating():
        for batch in batches_by_length(lengths.tolist(), batch_tokens=writer.batch_tokens):
            bound = token_bound(
                network,
                pad([ids[row] for row in batch], network.pad_id, network.device),
                latents_Bd=None if latents_nd is None else latents_nd[batch],
                draws=draws,
                generator=writer.generator(batch, seed),
            )
            nll[:, batch], times[:, batch] = bound.nll_KB.cpu().numpy(), bound.times_KB.cpu().numpy()
    spread = nll.std(axis=0, ddof=1) / draws**0.5 if draws > 1 else np.full(len(ids), np.nan)
    length_nll = -log_probs_nN[np.arange(len(ids)), lengths - 1]
    return Scores(tuple(texts), lengths, length_nll, nll.mean(axis=0), spread, draws, nll, times)
