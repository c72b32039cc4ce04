"""Packed linear layers have the same results as plain ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mm_ldlm.data.encoders.onednn import PackedLinear, pack_linear_layers


class Attending(nn.Linear):
    """Not the plain layer: it may do anything in its forward pass."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Sequential(nn.Linear(40, 16, bias=False)), Attending(16, 8))


@pytest.mark.parametrize("rows", [1, 7, 1500])
def test_packed_layers_give_what_plain_ones_give(rows: int) -> None:
    plain = network()
    packed = pack_linear_layers(copy.deepcopy(plain))
    assert [type(module) for module in packed] == [PackedLinear, nn.GELU, nn.Sequential, Attending]
    x = torch.randn(rows, 24)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(packed(x[None]), plain(x[None]), atol=1e-5, rtol=1e-5)


def test_other_types_are_left_alone() -> None:
    assert next(type(module) for module in pack_linear_layers(network().bfloat16())) is nn.Linear
