"""Rotary position embedding (RoPE, arXiv:2104.09864).

L text length, e half the dimension of a head.
"""

import torch
from torch import Tensor


def rope_table(length: int, head_dim: int, theta: float) -> Tensor:
    """Compute cos and sin of position · theta^(−2i/E), (length, 2, E/2) float32 (RoFormer, arXiv:2104.09864)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], dim=1).float()


def rotate(x: Tensor, rope_L2e: Tensor) -> Tensor:
    """Rotate x (B, L, G, H, E) by its position, each pair of neighbouring coordinates by its own frequency."""
    cos, sin = rope_L2e[:, None, None, 0], rope_L2e[:, None, None, 1]
    if not torch.compiler.is_compiling():  # torch.compile has no kernels of complex numbers
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
