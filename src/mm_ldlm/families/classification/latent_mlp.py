"""Residual MLP over a sentence latent: features for a head, without a text model.

B batch, d latent dimension, D dim.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core.config import Fraction, LayersOrNone, Ratio, Size, config
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.interfaces import FeatureModel
from mm_ldlm.models.layers import EPSILON, Linear
from mm_ldlm.models.parts import tag


class LatentFeatures(FeatureModel, Protocol):
    """Model of features of clean latents."""


@config
class LatentMLPConfig:
    """Kind `latent_mlp`: features of a standardised latent.

    Attributes:
        depth: number of residual blocks. At 0 the features are the latent itself, so that the head is a linear
            classifier.
        dim: dimension of the features; not used at depth 0.
        dropout: of the output of each block.
    """

    interface: ClassVar[type] = LatentFeatures
    kind: str = "latent_mlp"
    dim: Size = 256
    depth: LayersOrNone = 2
    mlp_ratio: Ratio = 2.0
    dropout: Fraction = 0.0

    @property
    def stores(self) -> tuple[str, ...]:
        return ()

    def build(self, shape: DataShape, *, generator: torch.Generator, token_vectors: Tensor | None = None) -> LatentMLP:
        """Build the model on the CPU in float32; see `models.base.ModelConfig.build`."""
        shape.require("latents", kind=self.kind)
        return build_on_meta(lambda: LatentMLP(self, shape), generator)


class LatentBlock(nn.Module):
    """x + W₂·GELU(W₁·LayerNorm(x)); the identity at the start."""

    def __init__(self, config: LatentMLPConfig) -> None:
        super().__init__()
        hidden = max(1, round(config.dim * config.mlp_ratio))
        self.inner, self.outer = Linear(config.dim, hidden), Linear(hidden, config.dim, gain=0.0)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BD: Tensor) -> Tensor:
        normed_BD = F.layer_norm(x_BD.float(), x_BD.shape[-1:], eps=EPSILON)
        return x_BD + self.dropout(self.outer(F.gelu(self.inner(normed_BD)))).float()


class LatentMLP(nn.Module):
    """Features (B, D) of latents (B, d); `models.interfaces.FeatureModel`."""

    feature_parts = frozenset({"backbone"})

    def __init__(self, config: LatentMLPConfig, shape: DataShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        latent_dim = shape.dim("latents")
        self.feature_dim = config.dim if config.depth else latent_dim
        self.input = tag(Linear(latent_dim, config.dim), "backbone") if config.depth else None
        self.blocks = tag(nn.ModuleList(LatentBlock(config) for _ in range(config.depth)), "backbone")

    def forward(self, latents_Bd: Tensor) -> Tensor:
        if self.input is None:
            return latents_Bd.float()
        x_BD = self.input(latents_Bd).float()
        for block in self.blocks:
            x_BD = block(x_BD)
        return F.layer_norm(x_BD, x_BD.shape[-1:], eps=EPSILON)

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        features_BD: Tensor = self(inputs)
        return features_BD
