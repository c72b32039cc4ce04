"""Heads on features: logits over classes, and over the answers of a comparison.

B batch, D dimension of the features, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.models.layers import Linear


class ClassHead(nn.Module):
    """Linear layer from features to logits over K classes; all equal at the start."""

    def __init__(self, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.linear = Linear(feature_dim, classes, gain=0.0)

    def forward(self, features_BD: Tensor) -> Tensor:
        return self.linear(features_BD).float()


class ComparisonHead(nn.Module):
    """MLP from the features of two items to the logits of first, second and similar; all equal at the start.

    With h(u, v) in R², the logits are a, −a and b, where a = h₁(u, v) − h₁(v, u) and b = h₂(u, v) + h₂(v, u). If the
    items are exchanged, the logits of first and second are exchanged, and that of similar is the same.
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
        scores_B2: Tensor = self.outer(F.gelu(self.inner(torch.cat([one_BD, other_BD], dim=1))))
        return scores_B2.float()
