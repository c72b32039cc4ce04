"""Output heads: the last adaLN of a stream, and logits over the vocabulary and lengths.

B batch, L text length, V vocabulary, D model dimension, d latent dimension, K latent tokens, N longest length.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.models.attention import EPSILON
from mm_ldlm.models.blocks import Linear, ModulatedOptions, modulate
from mm_ldlm.models.embeddings import TokenTable

ROWS = 64
"""The chosen positions are padded to a multiple of it: on a CPU each new size of a bf16 product is compiled, for ten
times as long as the product takes"""


class Modulated(nn.Module):
    """Last adaLN of a stream (shift and scale from c) and optionally a linear layer; both start at zero."""

    def __init__(self, config: ModulatedOptions, inputs: int, outputs: int | None) -> None:
        super().__init__()
        self.modulation = Linear(config.condition_dim, 2 * config.dim, gain=0.0)
        self.linear: Any = None if outputs is None else Linear(inputs, outputs, gain=0.0)

    def norm(self, x_BLD: Tensor, silu_c_BC: Tensor) -> Tensor:
        """Normalise and modulate the output of the blocks."""
        shift_BD, scale_BD = self.modulation(silu_c_BC).chunk(2, dim=-1)
        return modulate(x_BLD, shift_BD, scale_BD)

    def forward(self, x_BLD: Tensor, silu_c_BC: Tensor) -> Tensor:
        """Map each position to outputs, float32."""
        return self.linear(self.norm(x_BLD, silu_c_BC)).float()


class TextHead(Modulated):
    """Logits over the vocabulary, by a linear layer or by a table of token vectors.

    Args:
        table_dim: dimension of the token vectors, for a separate table; None for a linear layer.
        table_bias: whether logits of a table have a bias.
    """

    def __init__(
        self, config: ModulatedOptions, vocab_size: int, *, table_dim: int | None = None, table_bias: bool = False
    ) -> None:
        tied, encoded = config.tied_embeddings, table_dim is not None
        super().__init__(config, config.dim, table_dim if encoded else None if tied else vocab_size)
        self.vocab_size, self.reads_table = vocab_size, tied or encoded
        self.table = None if tied or table_dim is None else TokenTable(vocab_size, table_dim)
        self.bias = nn.Parameter(torch.empty(vocab_size)) if self.reads_table and table_bias else None

    def init_weights(self, generator: torch.Generator) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def logits(self, x_BLD: Tensor, silu_c_BC: Tensor, *, at: Tensor | None, embedding: TokenTable) -> Tensor:
        """Compute logits (B, L, V), or (M, V) at the chosen positions; `embedding` is the table of the input."""
        x_BLD = self.norm(x_BLD, silu_c_BC)
        if at is None:
            return self._classes(x_BLD, embedding)
        x_MD = x_BLD[at]
        return self._classes(F.pad(x_MD, (0, 0, 0, -len(x_MD) % ROWS)), embedding)[: len(x_MD)]

    def _classes(self, x: Tensor, embedding: TokenTable) -> Tensor:
        if self.linear is not None:
            x = self.linear(x)
        if not self.reads_table:
            return x
        table = embedding if self.table is None else self.table
        return F.linear(x, table.weight[: self.vocab_size], self.bias)


class LatentHead(Modulated):
    """Prediction of a latent (B, d) from all of its K tokens, float32."""

    def __init__(self, config: ModulatedOptions, *, tokens: int, dim: int) -> None:
        super().__init__(config, tokens * config.dim, dim)

    def forward(self, latent_BKD: Tensor, silu_c_BC: Tensor) -> Tensor:
        return self.linear(self.norm(latent_BKD, silu_c_BC).flatten(1)).float()


class LengthHead(nn.Module):
    """MLP from the latent to logits over the lengths 1..N; all equal at the start."""

    def __init__(self, latent_dim: int, *, hidden_dim: int, max_length: int) -> None:
        super().__init__()
        self.inner = Linear(latent_dim, hidden_dim)
        self.middle = Linear(hidden_dim, hidden_dim)
        self.outer = Linear(hidden_dim, max_length, gain=0.0)

    def forward(self, latents_Bd: Tensor) -> Tensor:
        return self.outer(F.gelu(self.middle(F.gelu(self.inner(latents_Bd))))).float()


class LengthPrior(nn.Module):
    """Learned categorical distribution over the lengths 1..N of a text; uniform at the start."""

    def __init__(self, max_length: int) -> None:
        super().__init__()
        self.logits_N = nn.Parameter(torch.empty(max_length))

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.zeros_(self.logits_N)

    def forward(self) -> Tensor:
        """Return the logits (N,) in float32."""
        return self.logits_N.float()


def mean_features(x_BLD: Tensor, valid_BL: Tensor | None) -> Tensor:
    """Average the normalised hidden states of the real tokens of each text, (B, D) float32; 0 if all are padding."""
    x_BLD = F.layer_norm(x_BLD.float(), x_BLD.shape[-1:], eps=EPSILON)
    if valid_BL is None:
        return x_BLD.mean(dim=1)
    return (x_BLD * valid_BL[..., None]).sum(dim=1) / valid_BL.sum(dim=1, keepdim=True).clamp(min=1)
