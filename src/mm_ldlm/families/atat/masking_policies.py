"""Masking policies: a mask probability for each token of a text, from its importance (ATAT).

Adaptive time-aware token masking (ATAT) masks token l at time t with probability ρ_l(t), where absorbing diffusion
masks every token with r(t) = 1 − α_t. Each masked token then has the weight of its own schedule, w_l = −α'_l/(1 − α_l)
= ρ'_l/ρ_l (MDLM, arXiv:2406.07524, eq. 10, token by token).

Let F(ρ) be the expected −log p of the masked tokens given the others. ∂F/∂ρ_l is the expected cross-entropy of token l
where it is masked, so that Σ_l ∫ ρ'_l/ρ_l · E[CE_l, l masked] dt = F(ρ(1)) − F(ρ(0)) on any path. The loss therefore
estimates F(ρ(1)): all of −log p for the policies that mask everything at t = 1 (`uniform`, `balanced`), and a part of
it for the two that do not (`importance`, `inverse`).

B examples, L positions; r(t), its derivative and everything here in float64.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mm_ldlm.diffusion.schedules import MaskSchedule

MaskingPolicy = Literal["uniform", "importance", "inverse", "balanced"]
OFFSET = 0.1
"""Importance is sharpened to i^(1/(t + OFFSET))."""
LOWEST = 1e-3
"""Importance is limited to [LOWEST, 1 − LOWEST] before it decides a mask, so that every token can be masked."""


class MaskRates(NamedTuple):
    """Mask probability and loss weight of every token of a batch, at the time of its text."""

    probability_BL: Tensor
    """ρ_l in [0, 1], float64; 0 where not valid"""
    weight_BL: Tensor
    """w_l = ρ'_l/ρ_l, float64; 0 where not valid, and where ρ_l is held at 1"""


def sharpen(importance_BL: Tensor, t_B: Tensor) -> Tensor:
    """Compute i^(1/(t + 0.1)): near t = 0 only the most important tokens keep their importance."""
    return importance_BL.clamp(LOWEST, 1 - LOWEST) ** (1 / (t_B[:, None] + OFFSET))


def mask_rates(
    policy: MaskingPolicy,
    importance_BL: Tensor,
    valid_BL: Tensor,
    t_B: Tensor,
    *,
    schedule: MaskSchedule,
    temperature: float = 1.0,
    time_sharpening: bool = True,
) -> MaskRates:
    """Compute every token's mask probability and weight at the times `t_B`.

    With s = i^(1/(t + 0.1)), or s = i without sharpening, and T the temperature: `uniform` ρ = r; `importance`
    ρ = r·s^(1/T); `inverse` ρ = r·(1 − s)^(1/T); `balanced` ρ = min(1, c·s), with the c of each text for which its
    expected mask ratio is r. (c is r·L/Σs as long as no token reaches 1.)

    Where sharpening lets a probability fall with time, its weight is negative, and the integral above stays exact.
    """
    t_B1 = t_B.double()[:, None]
    r_B1, growth_B1 = schedule.mask_probability(t_B1), schedule.weight(t_B1)  # growth: r'/r
    if policy == "uniform":
        probability_BL, weight_BL = r_B1.expand(valid_BL.shape), growth_B1.expand(valid_BL.shape)
    else:
        log_i_BL = importance_BL.double().clamp(LOWEST, 1 - LOWEST).log()
        power_B1 = 1 / (t_B1 + OFFSET) if time_sharpening else torch.ones_like(t_B1)
        log_s_BL = log_i_BL * power_B1
        log_s_growth_BL = -log_i_BL * power_B1.square() if time_sharpening else torch.zeros_like(log_i_BL)
        if policy == "importance":
            probability_BL = r_B1 * torch.exp(log_s_BL / temperature)
            weight_BL = growth_B1 + log_s_growth_BL / temperature
        elif policy == "inverse":
            probability_BL = r_B1 * torch.exp(torch.log(-torch.expm1(log_s_BL)) / temperature)
            weight_BL = growth_B1 - log_s_growth_BL / torch.expm1(-log_s_BL) / temperature
        else:
            probability_BL, weight_BL = _balanced(log_s_BL, log_s_growth_BL, valid_BL, r_B1, growth_B1)
    return MaskRates(probability_BL.masked_fill(~valid_BL, 0.0), weight_BL.masked_fill(~valid_BL, 0.0))


def _balanced(
    log_s_BL: Tensor, log_s_growth_BL: Tensor, valid_BL: Tensor, r_B1: Tensor, growth_B1: Tensor
) -> tuple[Tensor, Tensor]:
    """ρ = min(1, c·s) with Σ ρ = r·L over the valid tokens of each text, and ρ'/ρ.

    The k largest s are held at 1; c = (r·L − k)/Σ of the other s. k is the smallest number for which no other token
    passes 1.
    """
    top_B1 = log_s_BL.masked_fill(~valid_BL, -torch.inf).amax(dim=1, keepdim=True).clamp_min(-1e9)
    s_BL = torch.exp(log_s_BL - top_B1).masked_fill(~valid_BL, 0.0)  # c is relative to the largest s
    count_B1 = valid_BL.sum(dim=1, keepdim=True)
    mass_B1 = r_B1 * count_B1
    sorted_BL, order_BL = s_BL.sort(dim=1, descending=True, stable=True)
    tail_BL = sorted_BL.flip(1).cumsum(dim=1).flip(1)
    k_L = torch.arange(s_BL.shape[1], device=s_BL.device)
    fits_BL = (mass_B1 - k_L) * sorted_BL <= tail_BL * (1 + 1e-12)
    k_B1 = fits_BL.int().argmax(dim=1, keepdim=True)  # texts without tokens: 0
    free_BL = torch.zeros_like(valid_BL).scatter(1, order_BL, k_L >= k_B1) & valid_BL
    tail_B1 = tail_BL.gather(1, k_B1).clamp_min(1e-300)
    left_B1 = (mass_B1 - k_B1).clamp_min(1e-300)
    tail_growth_B1 = (s_BL * log_s_growth_BL * free_BL).sum(dim=1, keepdim=True) / tail_B1
    weight_BL = growth_B1 * mass_B1 / left_B1 - tail_growth_B1 + log_s_growth_BL
    probability_BL = torch.where(free_BL, left_B1 / tail_B1 * s_BL, 1.0).clamp(max=1.0)
    return probability_BL, torch.where(free_BL, weight_BL, 0.0)
