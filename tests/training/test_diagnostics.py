"""Statistics of gradients that do not depend on the loss scale or on which tokens occurred."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch

from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.diagnostics import Diagnostics, part_of, underflow


def numbers(*, scale: float | None, weights: float | None = None, update: float | None = None) -> dict[str, float]:
    """One detailed step of a model whose true gradients are all 0.5, as the backward pass leaves them.

    Args:
        weights: value of all weights before the step; those of a new model by default.
        update: what the step adds to each weight; no step by default.
    """
    spec = helpers.spec()
    model = spec.model.build(spec.shape, generator=torch.Generator().manual_seed(0))
    root = TrainableRoot(model, spec.objective.build(spec.shape))
    for parameter in root.parameters():
        parameter.grad = torch.full_like(parameter, 0.5 * (scale or 1.0))
        if weights is not None:
            parameter.data.fill_(weights)
    scaler: Any = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    diagnostics = Diagnostics(1, root, compiled=False, scaler=scaler, device=torch.device("cpu"))
    diagnostics.before_update()
    for parameter in root.parameters():
        parameter.data += update or 0.0
    diagnostics.after_update(1, applied=update is not None)
    return diagnostics.take()


def test_parameters_of_blocks_are_reported_by_block_and_stream() -> None:
    assert part_of("model.blocks.3.streams.1.qkv.weight", "backbone") == "block3.stream1"
    assert part_of("model.blocks.0.mlp.up.weight", "backbone") == "block0"
    assert part_of("model.text_head.bias", "text_head") == "text_head"
    assert part_of("objective.scale", "objective") == "objective"


def test_gradient_norms_do_not_grow_with_the_loss_scale() -> None:
    plain, scaled = numbers(scale=None), numbers(scale=2.0**16)
    norms = [name for name in plain if name.startswith("grad_norm/")]
    assert norms
    assert {name: scaled[name] for name in norms} == pytest.approx({name: plain[name] for name in norms})
    assert (scaled["fp16_scale"], scaled["fp16_underflow"]) == (2.0**16, 0.0)


def test_update_ratios_are_those_to_the_weights_before_the_step_and_weights_of_zero_have_none() -> None:
    found = numbers(scale=None, weights=0.5, update=0.25)
    ratios = {name: value for name, value in found.items() if name.startswith("update_ratio/")}
    assert len(ratios) > 5
    assert ratios == pytest.approx(dict.fromkeys(ratios, 0.5))
    found = numbers(scale=None, weights=0.0, update=0.25)
    assert not any(name.startswith("update_ratio/") for name in found)
    assert len([name for name in found if name.startswith("param_norm/")]) >= len(ratios)


def test_the_peak_of_the_memory_is_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrusage", lambda who: SimpleNamespace(ru_maxrss=3 * 2**19))  # KiB
    assert numbers(scale=None)["memory_peak_gib"] == 1.5


def test_underflow_is_a_fraction_of_what_took_part() -> None:
    table = torch.zeros(10, 4)  # only words 2 and 5 occurred, and one of their eight entries is lost
    table[2], table[5] = 1.0, 1.0
    table[5, 3] = 0.0
    assert float(underflow([table])) == pytest.approx(1 / 8)
    assert float(underflow([table, torch.ones(8)])) == pytest.approx(1 / 16)
    assert float(underflow([torch.zeros(3, 3)])) == 0.0
