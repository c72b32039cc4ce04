"""Timestep embedding and the conditioning vector c, which modulates every block."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.models.base import DataShape
from mm_ldlm.models.layers import Linear
from mm_ldlm.models.mmdit_options import MMDiTOptions, latent_dim

TIME_FEATURES = 256
TIME_FACTOR = 1000.0


def sinusoid(
    t_B: Tensor, features: int = TIME_FEATURES, *, period: float = 10_000.0, factor: float = TIME_FACTOR
) -> Tensor:
    """Compute the sinusoidal embedding (B, features) float32: cos and sin of factor·t at geometric frequencies.

    With factor 1, times in [0, 1] would hardly change even the features of the highest frequency.
    """
    half = features // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float32, device=t_B.device) * (-math.log(period) / half))
    angle = (t_B.float() * factor)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class Conditioner(nn.Module):
    """MLP (linear, SiLU, linear) in float32 even under autocast."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = Linear(inputs, outputs)
        self.outer = Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.outer(F.silu(self.inner(x.float())))


class Conditioning(nn.Module):
    """Conditioning vector c (B, C): MLP of the text's timestep + MLP of the latent's timestep (+ MLP of the latent)."""

    def __init__(self, config: MMDiTOptions, shape: DataShape) -> None:
        super().__init__()
        self.text_time = Conditioner(TIME_FEATURES, config.condition_dim)
        self.latent_time = Conditioner(TIME_FEATURES, config.condition_dim)
        self.latent = Conditioner(latent_dim(shape), config.condition_dim) if config.condition_on_latent else None

    def forward(self, t_text_B: Tensor, t_latent_B: Tensor, latents_Bd: Tensor) -> Tensor:
        c_BC = self.text_time(sinusoid(t_text_B)) + self.latent_time(sinusoid(t_latent_B))
        return c_BC if self.latent is None else c_BC + self.latent(latents_Bd)
