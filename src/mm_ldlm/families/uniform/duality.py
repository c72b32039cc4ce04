"""Diffusion duality: uniform noise is the argmax of Gaussian noise (Duo, arXiv:2506.10892, §3).

w = signal·x_0 + noise·ε, where x_0 is one-hot over N words, signal² = sigmoid(−γ) and noise² = sigmoid(γ). Its argmax
is x_0 with probability P and each other word with probability (1 − P)/(N − 1). That is uniform noise with α = T(γ) =
(N P − 1)/(N − 1), the diffusion transformation operator.

B examples, L positions, N words.
"""

import math

import torch
from torch import Tensor

_HALF_WIDTH, _NODES = 9.0, 721


def keep_probability(gamma: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Compute α = T(γ) and dT/dγ, float64, for every γ: P = ∫ φ(y) Φ(μ + y)^(N−1) dy, μ = e^(−γ/2) (Duo, eq. 10).

    The trapezoidal rule is exact to about 1e-14 here, because the integrand is smooth and vanishes at both ends.
    """
    y = torch.linspace(-_HALF_WIDTH, _HALF_WIDTH, _NODES, dtype=torch.float64, device=gamma.device)
    mu = torch.exp(-gamma.double() / 2)
    density = torch.exp(-y.square() / 2 + (words - 1) * torch.special.log_ndtr(mu[..., None] + y))
    density = density * (2 * _HALF_WIDTH / (_NODES - 1) / math.sqrt(2 * math.pi))
    scale = words / (words - 1)
    alpha = density.sum(-1) * scale - 1 / (words - 1)
    return alpha, (density * y).sum(-1) * (-mu / 2 * scale)


def gamma_of(alpha: float, words: int) -> float:
    """Compute the γ at which T(γ) is `alpha`, by bisection."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        early = float(keep_probability(torch.tensor(middle, dtype=torch.float64), words)[0]) > alpha
        low, high = (middle, high) if early else (low, middle)
    return high


def add_noise(own_BL: Tensor, noise_BLN: Tensor, gamma_B: Tensor) -> Tensor:
    """Compute w (B, L, N) float32 from the places `own_BL` of the words among the N words, and from ε."""
    signal_B, scale_B = torch.sigmoid(-gamma_B).sqrt(), torch.sigmoid(gamma_B).sqrt()
    signal_BL1 = signal_B.float()[:, None, None].expand(*own_BL.shape, 1)
    return (noise_BLN * scale_B.float()[:, None, None]).scatter_add(2, own_BL[..., None], signal_BL1)
