"""Averages of frozen and trained weights, and the weights that come back after a swap, also after an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mm_ldlm.training.config import EmaConfig
from mm_ldlm.training.ema import Ema


def made(*, enabled: bool = True) -> tuple[nn.Linear, Ema]:
    """A trained matrix of ones and a frozen bias of twos, whose averages are 10 and 20."""
    module = nn.Linear(2, 3)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(2.0)
    module.bias.requires_grad_(False)
    ema = Ema(module, EmaConfig(enabled=enabled, decay=0.5))
    for name, value in (("weight", 10.0), ("bias", 20.0)):
        if enabled:
            ema.values[name].fill_(value)
    return module, ema


def numbers(module: nn.Linear) -> tuple[float, float]:
    (weight,), (bias,) = module.weight.unique().tolist(), module.bias.unique().tolist()
    return weight, bias


def test_frozen_weights_are_kept_with_the_averages_and_do_not_move() -> None:
    module, ema = made()
    ema.update(1000)
    assert {name: value.unique().tolist() for name, value in ema.values.items()} == {"weight": [5.5], "bias": [20.0]}
    assert numbers(module) == (1.0, 2.0), "an update of the averages changes no weight"


def test_the_averages_are_copies_of_the_weights() -> None:
    module = nn.Linear(2, 2)
    ema = Ema(module, EmaConfig())
    before = {name: value.clone() for name, value in ema.values.items()}
    with torch.no_grad():
        module.weight.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in ema.values.items())
    assert not any(value.requires_grad for value in ema.values.values())


def test_every_weight_is_swapped_and_comes_back_also_after_an_error() -> None:
    module, ema = made()
    with ema.swapped():
        assert numbers(module) == (10.0, 20.0)
        assert {name: value.unique().tolist() for name, value in ema.values.items()} == {"weight": [10], "bias": [20]}
    assert numbers(module) == (1.0, 2.0)
    with pytest.raises(ValueError, match="of the validation"), ema.swapped():
        raise ValueError("of the validation")
    assert numbers(module) == (1.0, 2.0)
    assert module.weight.requires_grad


def test_without_averages_the_weights_themselves_are_used() -> None:
    module, ema = made(enabled=False)
    with ema.swapped():
        assert numbers(module) == (1.0, 2.0)
    assert numbers(module) == (1.0, 2.0)
