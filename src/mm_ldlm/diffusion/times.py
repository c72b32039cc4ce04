"""Draw the times of a batch: low-discrepancy over the global batch, or stratified."""

import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator


def antithetic(u: float, index_B: Tensor, total: int, t_min: float) -> Tensor:
    """Draw t_i = t_min + (1 − t_min)·((u + i/total) mod 1), float32 (B,): MDLM's low-discrepancy sampler.

    `u` is one uniform number, the same on all ranks (`RowGenerator.shared_uniform`); `index_B` are the examples'
    positions in the global batch of `total`. Each t_i alone is uniform on [t_min, 1]. Together they are evenly spaced,
    which removes most of the variance of the mean of w(t)·CE.
    """
    phase_B = torch.remainder(u + index_B.to(torch.float64) / total, 1.0)
    return (t_min + (1 - t_min) * phase_B).to(torch.float32)


def stratified(draws: int, generator: RowGenerator) -> list[Tensor]:
    """Draw K numbers (B,) in (0, 1], float64, for each example: 1 − (u + k/K) mod 1, one in each of K equal cells."""
    u_B = generator.uniform()
    return [1 - (u_B + number / draws) % 1.0 for number in range(draws)]
