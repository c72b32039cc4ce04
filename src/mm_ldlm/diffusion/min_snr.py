"""Min-SNR weight of the loss of Gaussian diffusion. B batch."""

from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.diffusion.gaussian import Parameterisation


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
