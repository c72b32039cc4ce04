"""Embeddings of token ids, latents and timesteps, and null embeddings.

B batch, L text length, V vocabulary, D model dimension, d latent dimension, K latent tokens, N longest length.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.models.blocks import Linear, trunc_normal_

TIME_FEATURES = 256
TIME_FACTOR = 1000.0


class TokenTable(nn.Embedding):
    """Embedding table; its initial vectors are random, or the encoder's vectors (`models.mmdit`)."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__(rows, dim, _weight=torch.empty(rows, dim))  # avoids a first initialisation

    def init_weights(self, generator: torch.Generator) -> None:
        trunc_normal_(self.weight, std=0.02, generator=generator)

    def forward(self, input: Tensor) -> Tensor:
        """Look up ids (…,), or mix the vectors of the first I ids by weights (…, I)."""
        if input.is_floating_point():
            return input @ self.weight[: input.shape[-1]]
        return super().forward(input)


class LatentTokens(nn.Module):
    """Map a vector to K tokens with learned positions."""

    def __init__(self, inputs: int, *, tokens: int, dim: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.linear = Linear(inputs, tokens * dim)
        self.position_KD = nn.Parameter(torch.empty(tokens, dim))

    def init_weights(self, generator: torch.Generator) -> None:
        trunc_normal_(self.position_KD, std=0.02, generator=generator)

    def forward(self, latents_Bd: Tensor) -> Tensor:
        """Compute the tokens (B, K, D) in float32."""
        return self.linear(latents_Bd).float().view(-1, self.tokens, self.position_KD.shape[1]) + self.position_KD


class NullEmbedding(nn.Module):
    """Learned vector that replaces a dropped condition (the null latent, the null text)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.empty(dim))

    def init_weights(self, generator: torch.Generator) -> None:
        trunc_normal_(self.value, std=0.02, generator=generator)

    def replace(self, latents: Tensor, null_B: Tensor | None) -> Tensor:
        """Replace the vectors (B, …, dim) by the learned one where `null_B` is true; None replaces none."""
        if null_B is None:
            return latents
        return torch.where(null_B.view(-1, *(1 for _ in latents.shape[1:])), self.value, latents)


# -- time --------------------------------------------------------------------------------------------------------------


def sinusoid(t_B: Tensor, *, factor: float = TIME_FACTOR) -> Tensor:
    """Compute the sinusoidal embedding (B, 256) float32: cos and sin of factor·t at geometric frequencies to 1/10,000.

    With factor 1, times in [0, 1] would hardly change even the features of the highest frequency.
    """
    half = TIME_FEATURES // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float32, device=t_B.device) * (-math.log(10_000.0) / half))
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
