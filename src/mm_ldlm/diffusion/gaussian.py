"""Gaussian diffusion over standardised latents: forward process, conversions of predictions, weights of the loss.

s = signal(t), n = noise(t), both (B,); x_t = s·x_0 + n·ε. With a = s² + n² (1 where variance preserving):

    eps   ε                        x_0 = (x_t − nε)/s
    x0    x_0                      ε = (x_t − s x_0)/n
    v     sε − n x_0               x_0 = (s x_t − n v)/a,   ε = (n x_t + s v)/a        (arXiv:2202.00512)
    flow  u = ε − x_0              x_0 = (x_t − n u)/(s+n), ε = (x_t + s u)/(s+n)      (rectified flow)

All pairs are exact inverses while s and n are above `FLOOR`, and finite at both ends.
"""

from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.diffusion.schedules import Scales

Parameterisation = Literal["eps", "x0", "v", "flow"]

FLOOR = 1e-6
"""Lower limit of denominators that can reach 0: s for eps at pure noise, n for x0 without noise."""


def add_noise(x0_Bd: Tensor, noise_Bd: Tensor, at: Scales) -> Tensor:
    """Compute x_t = s·x_0 + n·ε, each example at its own time (DDPM eq. 4)."""
    s, n = at.like(x0_Bd)
    return s * x0_Bd + n * noise_Bd


def target(kind: Parameterisation, x0_Bd: Tensor, noise_Bd: Tensor, at: Scales) -> Tensor:
    """Compute the training target (B, d) from the true x_0 and ε.

    eps is degenerate at zero SNR: x_t is then the target itself, and a model that copies it learns nothing about x_0.
    """
    if kind == "eps":
        return noise_Bd
    if kind == "x0":
        return x0_Bd
    if kind == "flow":
        return noise_Bd - x0_Bd
    s, n = at.like(x0_Bd)
    return s * noise_Bd - n * x0_Bd


def to_x0_and_eps(
    prediction_Bd: Tensor, kind: Parameterisation, x_t_Bd: Tensor, at: Scales
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute (x_0, ε), each (B, d), from a prediction of any kind; s·x_0 + n·ε = x_t.

    x_0 from eps at zero SNR is finite but meaningless.
    """
    p, x_t = prediction_Bd, x_t_Bd
    s, n = at.like(x_t)
    if kind == "eps":
        return (x_t - n * p) / s.clamp(min=FLOOR), p
    if kind == "x0":
        return p, (x_t - s * p) / n.clamp(min=FLOOR)
    if kind == "flow":
        return (x_t - n * p) / (s + n), (x_t + s * p) / (s + n)
    total = s.square() + n.square()
    return (s * x_t - n * p) / total, (n * x_t + s * p) / total


def convert(
    prediction_Bd: Tensor, kind: Parameterisation, to: Parameterisation, x_t_Bd: Tensor, at: Scales
) -> Tensor:  # fmt: skip
    """Convert a prediction (B, d) to another parameterisation."""
    if kind == to:
        return prediction_Bd
    return target(to, *to_x0_and_eps(prediction_Bd, kind, x_t_Bd, at), at)


def loss_weight(
    kind: Literal["min_snr", "uniform"], snr_B: Tensor, *, parameterisation: Parameterisation, gamma: float = 5.0
) -> Tensor:
    """Compute the loss weight: min-SNR-γ (arXiv:2303.09556, §3.4) for the parameterisation, or 1.

    x0: min(SNR,γ); eps: min(SNR,γ)/SNR; v: min(SNR,γ)/(SNR+1); flow: min(SNR,γ)/(1+√SNR)². The weight is finite for
    SNR 0 and ∞. The formula for v assumes a variance-preserving schedule.
    """
    if kind == "uniform":
        return torch.ones_like(snr_B)
    capped_B = snr_B.clamp(max=gamma)
    if parameterisation == "x0":
        return capped_B
    if parameterisation == "eps":
        return (gamma / snr_B).clamp(max=1)
    if parameterisation == "flow":
        return capped_B / (1 + snr_B.sqrt()).square()
    return capped_B / (snr_B + 1)
