"""Output heads: the last adaLN of a stream, and logits over the vocabulary and lengths.

B batch, L text length, V vocabulary, D model dimension, d latent dimension, N longest length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.models.base import DataShape
from mm_ldlm.models.embeddings import TextEmbedding, TokenTable
from mm_ldlm.models.layers import EPSILON, Linear, modulate
from mm_ldlm.models.mmdit_options import MMDiTOptions
from mm_ldlm.models.transformer_options import ModulatedOptions


class Modulated(nn.Module):
    """Last adaLN of a stream (shift and scale from c) and optionally a linear layer; both start at zero."""

    def __init__(self, config: ModulatedOptions, inputs: int, outputs: int | None) -> None:
        super().__init__()
        self.modulation = Linear(config.condition_dim, 2 * config.dim, gain=0.0)
        self.linear = None if outputs is None else Linear(inputs, outputs, gain=0.0)

    def norm(self, x_BLD: Tensor, silu_c_BC: Tensor) -> Tensor:
        shift_BD, scale_BD = self.modulation(silu_c_BC).chunk(2, dim=-1)
        return modulate(x_BLD, shift_BD, scale_BD)


class TextHead(Modulated):
    """Logits over the vocabulary, by a linear layer or an embedding table (its own or that of the input)."""

    def __init__(self, config: MMDiTOptions, shape: DataShape) -> None:
        encoded, tied = config.token_vectors == "encoder", config.tied_embeddings
        vocab_size, table_dim = shape.vocab_size, config.table_dim(shape)
        outputs = table_dim if encoded else None if tied else vocab_size
        super().__init__(config, config.dim, outputs)
        self.table = TokenTable(vocab_size, table_dim) if encoded and not tied else None
        self.bias = nn.Parameter(torch.empty(vocab_size)) if encoded or tied else None

    def init_weights(self, generator: torch.Generator) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def logits(self, x: Tensor, embedding: TextEmbedding) -> Tensor:
        """Map modulated x (…, D) to logits (…, V)."""
        if self.linear is not None:
            x = self.linear(x)
        if self.bias is None:
            return x
        table = embedding.table if self.table is None else self.table
        return F.linear(x, table.weight[: self.bias.shape[0]], self.bias)


class LengthHead(nn.Module):
    """MLP from the latent to logits over the lengths 1..N; all equal at the start."""

    def __init__(self, latent_dim: int, *, hidden_dim: int, max_length: int) -> None:
        super().__init__()
        self.inner = Linear(latent_dim, hidden_dim)
        self.middle = Linear(hidden_dim, hidden_dim)
        self.outer = Linear(hidden_dim, max_length, gain=0.0)

    def forward(self, latents_Bd: Tensor) -> Tensor:
        return self.outer(F.gelu(self.middle(F.gelu(self.inner(latents_Bd))))).float()


def mean_features(x_BLD: Tensor, valid_BL: Tensor | None) -> Tensor:
    """Average the normalised hidden states of the real tokens of each text, (B, D) float32; 0 for padding alone."""
    x_BLD = F.layer_norm(x_BLD.float(), x_BLD.shape[-1:], eps=EPSILON)
    if valid_BL is None:
        return x_BLD.mean(dim=1)
    return (x_BLD * valid_BL[..., None]).sum(dim=1) / valid_BL.sum(dim=1, keepdim=True).clamp(min=1)
