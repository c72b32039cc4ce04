"""Pooling of the last hidden states to one vector per sentence. Shapes: B sentences, L tokens, d dimensions."""

from __future__ import annotations

import torch

from mm_ldlm.data.encoders.spec import Pooling


def pool(hidden_BLd: torch.Tensor, valid_BL: torch.Tensor, *, how: Pooling) -> torch.Tensor:
    """Pool to (B, d) in float32; padding is ignored on either side."""
    hidden_BLd = hidden_BLd.float()
    if how == "mean":
        weight_BL1 = valid_BL.unsqueeze(-1).to(hidden_BLd.dtype)
        return (hidden_BLd * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1)
    first_B, last_B = valid_BL.int().argmax(1), valid_BL.shape[1] - 1 - valid_BL.flip(1).int().argmax(1)
    position_B = first_B if how == "cls" else last_B
    return hidden_BLd[torch.arange(len(hidden_BLd), device=hidden_BLd.device), position_B]


def finish(vectors_Bd: torch.Tensor, *, truncate_dim: int | None, normalised: bool) -> torch.Tensor:
    """Truncate to the leading dimensions, then scale to unit length if the encoder normalises."""
    if truncate_dim is not None:
        vectors_Bd = vectors_Bd[:, :truncate_dim]
    if normalised:
        vectors_Bd = torch.nn.functional.normalize(vectors_Bd, dim=-1)
    return vectors_Bd
