"""Features of a text for a head; the comparison head is antisymmetric in its two texts."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mm_ldlm.models.heads import EPSILON, ComparisonHead, mean_features


def test_swapped_texts_swap_first_and_second_and_keep_similar() -> None:
    """Of logits (first, second, similar): second = −first, the first changes its sign, similar stays."""
    head = ComparisonHead(4, hidden_dim=8)
    with torch.no_grad():
        for number, parameter in enumerate(head.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    one, two = (torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)) for seed in (10, 11))
    forth, back = head(one, two), head(two, one)
    torch.testing.assert_close(forth[:, 0], -forth[:, 1])
    torch.testing.assert_close(forth[:, 0], back[:, 1])
    torch.testing.assert_close(forth[:, 2], back[:, 2])
    assert forth[:, 0].abs().min() > 1e-4
    torch.testing.assert_close(head(one, one)[:, 0], torch.zeros(5))


def test_features_are_the_mean_over_the_tokens_without_the_padding() -> None:
    hidden_BLD = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    valid_BL = torch.arange(6) < torch.tensor([[2], [6]])
    found_BD = mean_features(hidden_BLD, valid_BL)
    for row, length in enumerate((2, 6)):
        torch.testing.assert_close(found_BD[row], F.layer_norm(hidden_BLD[row, :length], (4,), eps=EPSILON).mean(dim=0))
    assert not mean_features(hidden_BLD, torch.zeros_like(valid_BL)).any()
