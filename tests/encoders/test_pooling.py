"""Pooling by hand: the first, the last and the mean of the tokens of a text, wherever its padding is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mm_ldlm.data.encoders.pooling import finish, pool

HIDDEN = torch.arange(24.0).reshape(3, 4, 2)
VALID = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]], dtype=torch.bool)
"""Padding on the right, on the left, and on both sides"""


@pytest.mark.parametrize(("how", "places"), [("cls", (0, 2, 1)), ("last", (2, 3, 1))])
def test_one_token_of_each_text_is_read(how: Any, places: tuple[int, ...]) -> None:
    expected = torch.stack([HIDDEN[row, place] for row, place in enumerate(places)])
    assert torch.equal(pool(HIDDEN, VALID, how=how), expected)


def test_the_mean_is_that_of_the_tokens_alone() -> None:
    expected = torch.stack([HIDDEN[0, :3].mean(0), HIDDEN[1, 2:].mean(0), HIDDEN[2, 1]])
    assert torch.equal(pool(HIDDEN, VALID, how="mean"), expected)


def test_a_vector_is_cut_before_it_is_normalised() -> None:
    vectors = torch.tensor([[3.0, 4.0, 12.0]])
    assert torch.allclose(finish(vectors, truncate_dim=2, normalised=True), torch.tensor([[0.6, 0.8]]))
    assert torch.equal(finish(vectors, truncate_dim=None, normalised=False), vectors)
