"""Features of a sentence latent without a text model, and heads on features: over classes, and over two items.

B batch, d latent dimension, D dimension of the features, K classes.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import Fraction, LayersOrNone, Ratio, Size, config
from mm_ldlm.models.attention import EPSILON
from mm_ldlm.models.base import DataShape, FeatureModel, build_on_meta
from mm_ldlm.models.blocks import Linear
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
        dropout: of the latent, and of the output of each block.
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

    def build(self, shape: DataShape, *, generator: torch.Generator) -> "LatentMLP":
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
    """Features (B, D) of latents (B, d); `models.base.FeatureModel`."""

    feature_parts = frozenset({"backbone"})

    def __init__(self, config: LatentMLPConfig, shape: DataShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        latent_dim = shape.dim("latents")
        self.feature_dim = config.dim if config.depth else latent_dim
        self.dropout = nn.Dropout(config.dropout)
        self.input = tag(Linear(latent_dim, config.dim), "backbone") if config.depth else None
        self.blocks = tag(nn.ModuleList(LatentBlock(config) for _ in range(config.depth)), "backbone")

    def forward(self, latents_Bd: Tensor) -> Tensor:
        latents_Bd = self.dropout(latents_Bd)
        if self.input is None:
            return latents_Bd.float()
        x_BD = self.input(latents_Bd).float()
        for block in self.blocks:
            x_BD = block(x_BD)
        return F.layer_norm(x_BD, x_BD.shape[-1:], eps=EPSILON)

    def features(self, inputs: Tensor, *, valid_BL: Tensor | None = None) -> Tensor:
        return self(inputs)


# -- heads -------------------------------------------------------------------------------------------------------------


class ClassHead(nn.Module):
    """Linear layer from features to logits over K classes; all equal at the start."""

    def __init__(self, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.linear = Linear(feature_dim, classes, gain=0.0)

    def forward(self, features_BD: Tensor) -> Tensor:
        return self.linear(features_BD).float()


class ComparisonHead(nn.Module):
    """MLP from the features of two items to the logits of first, second and similar; all equal at the start.

    With h(u, v) in R², the logits are a, −a and b, where a = h₁(u, v) − h₁(v, u) and b = h₂(u, v) + h₂(v, u) + bias.
    Exchanging the items exchanges the logits of first and second, and leaves the logit of similar as it is.
    """

    def __init__(self, feature_dim: int, *, hidden_dim: int) -> None:
        super().__init__()
        self.inner = Linear(2 * feature_dim, hidden_dim)
        self.outer = Linear(hidden_dim, 2, gain=0.0, bias=False)
        self.similar_bias = nn.Parameter(torch.empty(1))

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.zeros_(self.similar_bias)

    def forward(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        """Compute the logits (B, 3)."""
        one_B2, other_B2 = self._scores(first_BD, second_BD), self._scores(second_BD, first_BD)
        first_B = one_B2[:, 0] - other_B2[:, 0]
        similar_B = one_B2[:, 1] + other_B2[:, 1] + self.similar_bias
        return torch.stack([first_B, -first_B, similar_B], dim=1)

    def _scores(self, one_BD: Tensor, other_BD: Tensor) -> Tensor:
        return self.outer(F.gelu(self.inner(torch.cat([one_BD, other_BD], dim=1)))).float()
