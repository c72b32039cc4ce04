"""Batches of random examples for every field."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch


def random_batch(shape: DataShape, *, examples: int = 4, filling: int = 0, seed: int = 0, **fields: Any) -> Batch:
    """Make a batch of random texts of 1 to max_length words, with standard normal fields; the last rows are filling."""
    draw, B, L = torch.Generator().manual_seed(seed), examples + filling, shape.max_length
    length_B = torch.randint(1, L + 1, (B,), generator=draw)
    length_B[0] = L
    length_B[examples:] = 0
    valid_BL = torch.arange(L) < length_B[:, None]
    words = torch.tensor(shape.word_ids)
    tokens_BL = torch.where(valid_BL, words[torch.randint(len(words), (B, L), generator=draw)], shape.pad_id)
    made = {name: torch.randn(B, shape.dim(name), generator=draw) for name in shape.fields if name != "token_states"}
    if "token_states" in shape.fields:
        made["token_states"] = torch.randn(B, L, shape.dim("token_states"), generator=draw)
    position_B = torch.arange(B)
    return Batch(
        tokens_BL, valid_BL, {**made, **fields}, torch.where(position_B < examples, position_B, -1), position_B,
        global_size=examples, global_tokens=int(valid_BL.sum()),
    )  # fmt: skip


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """`random_batch`"""
    return random_batch
