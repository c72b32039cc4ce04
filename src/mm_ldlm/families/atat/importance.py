"""Importance estimator of adaptive masking (ATAT): a small transformer that gives every token a number in [0, 1].

B batch, L text length, E dimension of the estimator, H heads, e dimension of a head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import Layers, Size, config, refuse_if
from mm_ldlm.models.attention import EPSILON, Attention, key_mask
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.blocks import Linear
from mm_ldlm.models.embeddings import TokenTable
from mm_ldlm.models.parts import tag


@config
class ImportanceConfig:
    """The shape of the estimator.

    Attributes:
        dim: dimension of its token embedding and of its blocks; the MLP of a block has four times as many units.
    """

    dim: Size = 256
    depth: Layers = 2
    heads: Size = 4

    def __post_init__(self) -> None:
        refuse_if(
            self.dim % self.heads,
            f"dim must be divisible by heads, found dim {self.dim} and {self.heads} heads",
            "dim",
            "heads",
        )


class ImportanceBlock(nn.Module):
    """Attention over all tokens, then the MLP, each on a normalised input and added to the residual."""

    def __init__(self, config: ImportanceConfig) -> None:
        super().__init__()
        self.heads, dim = config.heads, config.dim
        self.attention_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.qkv = Linear(dim, 3 * dim, bias=False)
        self.attention = Attention(softcap=None)
        self.out = Linear(dim, dim, bias=False)
        self.mlp_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.up, self.down = Linear(dim, 4 * dim), Linear(4 * dim, dim)

    def forward(self, x_BLE: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L, E) float32. `mask` (B, 1, 1, L) is true at positions that may be read."""
        qkv_BL3He = self.qkv(self.attention_norm(x_BLE)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv_BL3He.permute(2, 0, 3, 1, 4).unbind(0)
        attended_BLE = self.attention(q, k, v, mask).transpose(1, 2).flatten(2)
        x_BLE = x_BLE + self.out(attended_BLE).float()
        return x_BLE + self.down(F.gelu(self.up(self.mlp_norm(x_BLE)))).float()


class ImportanceEstimator(nn.Module):
    """Token embedding and learned positions, transformer, LayerNorm-Linear-GELU-Linear, sigmoid; 0.5 at the start."""

    def __init__(self, config: ImportanceConfig, shape: DataShape) -> None:
        super().__init__()
        self.tokens = TokenTable(shape.first_noise_id, config.dim)
        self.positions = TokenTable(shape.max_length, config.dim)
        self.blocks = nn.ModuleList(ImportanceBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim, eps=EPSILON)
        self.hidden, self.output = Linear(config.dim, config.dim), Linear(config.dim, 1, gain=0.0)
        tag(self, "importance")

    def forward(self, tokens_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Estimate the importance (B, L) float32 of every token from its entire text; pads are not read."""
        x_BLE = (self.tokens(tokens_BL) + self.positions.weight[: tokens_BL.shape[1]]).float()
        mask = key_mask(valid_BL)
        for block in self.blocks:
            x_BLE = block(x_BLE, mask)
        return torch.sigmoid(self.output(F.gelu(self.hidden(self.norm(x_BLE)))).float().squeeze(-1))
