"""Embeddings of token ids and latents, and learned null embeddings for a dropped condition.

B batch, L text length, V vocabulary, D model dimension, d latent dimension, K latent tokens, e dimension of the token
embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.models.base import DataShape
from mm_ldlm.models.layers import EPSILON, Linear, trunc_normal_
from mm_ldlm.models.mmdit_options import MMDiTOptions, latent_dim


class TokenTable(nn.Embedding):
    """Embedding table; its initial vectors are random, or set by `models.token_vectors`."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__(rows, dim, _weight=torch.empty(rows, dim))  # avoids a first initialisation

    def init_weights(self, generator: torch.Generator) -> None:
        trunc_normal_(self.weight, std=0.02, generator=generator)


class TextEmbedding(nn.Module):
    """Token embedding of the text stream: a table, and a linear layer if the table has the encoder's dimension."""

    def __init__(self, config: MMDiTOptions, shape: DataShape, rows: int) -> None:
        super().__init__()
        self.table = TokenTable(rows, config.table_dim(shape))
        encoded = config.token_vectors == "encoder"
        self.linear = Linear(config.table_dim(shape), config.dim, gain=2.0, bias=False) if encoded else None

    def forward(self, vectors_BLe: Tensor) -> Tensor:
        """Map vectors of the table to the text stream."""
        return vectors_BLe if self.linear is None else self.linear(vectors_BLe)


class PooledText(nn.Module):
    """Mean vector of the unmasked tokens, normalised and mapped linearly; it is added to the K latent tokens."""

    def __init__(self, config: MMDiTOptions, shape: DataShape) -> None:
        super().__init__()
        self.tokens = config.latent_tokens
        self.linear = Linear(config.table_dim(shape), config.latent_tokens * config.dim)

    def forward(self, vectors_BLe: Tensor, known_BL: Tensor) -> Tensor:
        sum_Be = torch.einsum("ble,bl->be", vectors_BLe.float(), known_BL.float())
        pooled_Be = F.layer_norm(sum_Be, sum_Be.shape[-1:], eps=EPSILON)  # zeros if no token is unmasked
        return self.linear(pooled_Be).float().unflatten(1, (self.tokens, -1))


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


class LatentEncoder(LatentTokens):
    """Map a latent (with self-conditioning also the previous x_0 estimate) to K tokens with learned positions."""

    def __init__(self, config: MMDiTOptions, shape: DataShape) -> None:
        inputs = latent_dim(shape) * (2 if config.self_condition else 1)
        super().__init__(inputs, tokens=config.latent_tokens, dim=config.dim)
        self.self_condition = config.self_condition
        size = (shape.max_length, config.dim, latent_dim(shape))
        self.view_LDd = nn.Parameter(torch.empty(size)) if config.direct_views else None

    def init_weights(self, generator: torch.Generator) -> None:
        super().init_weights(generator)
        if self.view_LDd is not None:
            trunc_normal_(self.view_LDd, std=0.4 / self.view_LDd.shape[2] ** 0.5, generator=generator)

    def at_positions(self, latents_Bd: Tensor, length: int) -> Tensor:
        """Compute a linear view (B, L, D) of the latent for each of `length` text positions."""
        assert self.view_LDd is not None
        return F.linear(latents_Bd, self.view_LDd[:length].flatten(0, 1)).unflatten(1, (length, -1))

    def forward(self, latents_Bd: Tensor, self_condition_Bd: Tensor | None = None) -> Tensor:
        if self.self_condition:
            previous_Bd = torch.zeros_like(latents_Bd) if self_condition_Bd is None else self_condition_Bd
            latents_Bd = torch.cat([latents_Bd, previous_Bd.to(latents_Bd.dtype)], dim=-1)
        return super().forward(latents_Bd)


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
