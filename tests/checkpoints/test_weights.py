"""Loading of weights by name, and errors that list every difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.checkpoints.weights import load_parameters, load_tensors


def test_parameters_are_copied_by_name_and_keep_their_type() -> None:
    module = nn.Linear(2, 3).to(torch.bfloat16)
    tensors = {"weight": torch.arange(6.0).reshape(3, 2), "bias": torch.ones(3)}
    load_parameters(module, tensors, Path("model.safetensors"))
    assert module.weight.dtype == torch.bfloat16
    torch.testing.assert_close(module.weight.float(), tensors["weight"])
    torch.testing.assert_close(module.bias.float(), tensors["bias"])


def test_every_difference_is_named_and_nothing_is_copied() -> None:
    targets = {"a": torch.zeros(2), "b": torch.zeros(3), "d": torch.zeros(1)}
    with pytest.raises(CheckpointError) as caught:
        load_tensors(targets, {"b": torch.ones(4), "c": torch.ones(1), "d": torch.ones(1)}, Path("x.safetensors"))
    message = str(caught.value)
    assert "x.safetensors does not fit this model" in message
    assert "Missing: ['a']" in message
    assert "Unknown: ['c']" in message
    assert "b: expected (3,), found (4,)" in message
    assert not targets["d"].any()


def test_a_matrix_that_is_turned_does_not_fit() -> None:
    with pytest.raises(CheckpointError, match=r"a: expected \(2, 3\), found \(3, 2\)"):
        load_tensors({"a": torch.zeros(2, 3)}, {"a": torch.ones(3, 2)}, Path("x.safetensors"))
