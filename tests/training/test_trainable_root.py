"""Parameters of an objective are optimised, averaged, saved, restored, frozen, diagnosed and guarded like the model's.

Pitfall 31: a second learnable module gets gradients, but no optimizer, average or checkpoint knows it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import faults
import helpers
import numpy as np
import pytest
import torch
from torch import nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, FreezingError, TrainingDiverged
from mm_ldlm.families.atat.objective import frequency_prior
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.worker import train


class Planted(nn.Module):
    """The multimodal objective with a learnable scale and shift, which its own loss moves."""

    def __init__(self, inner: Any, *, frozen: bool = False, poison: bool = False) -> None:
        super().__init__()
        self.inner, self.frozen, self.poison = [inner], frozen, poison  # a list: no submodule, no attribute look-up
        self.scale = nn.Parameter(torch.ones(3))
        self.weights, self.units = {**inner.weights, "planted": 1.0}, {**inner.units, "planted": "examples"}
        self.fields, self.kinds = inner.fields, inner.kinds

    def kind(self, generator: Any, *, step: int) -> str:
        return self.inner[0].kind(generator, step=step)

    def forward(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        losses = self.inner[0](model, batch, generator, kind=kind, step=step)
        value = (self.scale - 2.0).square().sum() * batch.real_B.sum()
        if self.poison and step == 3:
            value = value * torch.nan
        return {**losses, "planted": (value, batch.real_B.sum())}

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        return self.inner[0].frozen_parts(trained=trained) | ({"objective"} if self.frozen else set())

    @property
    def idle_parts(self) -> frozenset[str]:
        return self.inner[0].idle_parts


def run(root: Path, *, frozen: bool = False, poison: bool = False, **training: Any) -> Any:
    settings = {"diagnose_every": 2, **training}
    return train(
        helpers.spec(**settings), root=root, data=helpers.data(),
        wrap_objective=lambda inner: Planted(inner, frozen=frozen, poison=poison),
    )  # fmt: skip


def scale(root: Path, step: int, name: str = "model") -> torch.Tensor:
    return helpers.tensors(root / "run", step, name)["objective.scale"]


def test_pitfall_31_it_is_optimised_averaged_and_saved(tmp_path: Path) -> None:
    run(tmp_path)
    assert not torch.equal(scale(tmp_path, 10), torch.ones(3))  # optimised, saved
    averaged = scale(tmp_path, 10, "ema")
    assert not torch.equal(averaged, torch.ones(3))
    assert not torch.equal(averaged, scale(tmp_path, 10))  # averaged: behind the weights
    state = helpers.tensors(tmp_path / "run", 10, "optimizer")
    assert any(key.startswith("adamw/objective.scale/") for key in state)


def test_pitfall_31_it_is_restored_bit_for_bit(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    train(helpers.spec(), root=tmp_path / "parts", data=helpers.data(), pause_at=5, wrap_objective=Planted)
    run(tmp_path / "parts", diagnose_every=0)
    for name in ("model", "ema", "optimizer"):
        whole, parts = (helpers.tensors(tmp_path / place / "run", 10, name) for place in ("whole", "parts"))
        assert helpers.same_bits(whole, parts), name


def test_pitfall_31_it_is_frozen_by_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, frozen=True)
    assert torch.equal(scale(tmp_path, 10), torch.ones(3))
    (event,) = read_events(tmp_path / "run" / "training_log.jsonl", "trains")
    assert event["parts"]["objective"] == {"trains": 0, "frozen": 3}
    assert set(event) == {"event", "step", "time", "parameters", "objective_parameters", "parts"}, "each number once"
    assert event["objective_parameters"] == 3

    class Moves(Planted):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            with torch.no_grad():
                self.scale += 1.0
            return super().forward(*arguments, **named)

    with pytest.raises(FreezingError, match=r"objective\.scale \(objective\) is frozen and has moved"):
        train(
            helpers.spec(), root=tmp_path / "moves", data=helpers.data(),
            wrap_objective=lambda inner: Moves(inner, frozen=True),
        )  # fmt: skip


def test_pitfall_31_it_is_diagnosed(tmp_path: Path) -> None:
    run(tmp_path)
    lines = read_metrics(tmp_path / "run" / "training_log.jsonl")
    assert any("grad_norm/objective" in line and "update_ratio/objective" in line for line in lines)
    (event,) = read_events(tmp_path / "run" / "training_log.jsonl", "trains")
    assert event["parts"]["objective"] == {"trains": 3, "frozen": 0}


def test_pitfall_31_it_is_guarded(tmp_path: Path) -> None:
    """A poisoned step changes neither it nor the model, and weights of it that are not finite are named."""
    run(tmp_path, poison=True, checkpoint={"every_steps": 1, "keep_last": 20, "background": False})
    for name in ("model", "ema", "optimizer"):
        before, after = (helpers.tensors(tmp_path / "run", step, name) for step in (3, 4))
        assert helpers.same_bits(before, after), name

    class Breaks(Planted):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            if named["step"] >= 4:
                with torch.no_grad():
                    self.scale[0] = torch.inf
            return super().forward(*arguments, **named)

    with pytest.raises(TrainingDiverged, match=r"objective\.scale"):
        train(
            helpers.spec(guard={"max_rollbacks": 0, "max_consecutive_skips": 2}), root=tmp_path / "breaks",
            data=helpers.data(), wrap_objective=Breaks,
        )  # fmt: skip


ADAPTIVE: dict[str, Any] = {
    "kind": "adaptive_masking", "estimator": {"dim": 8, "depth": 1, "heads": 2}, "warmup_steps": 2,
    "curriculum": {"steps": 10, "pace": "dynamic", "window": 3},
}  # fmt: skip


def adaptive(root: Path, *, pause_at: int | None = None, **training: Any) -> Any:
    spec = helpers.spec(model={"kind": "dit", "dim": 16, "depth": 1, "heads": 2}, **training)
    objective = parse_kind(OBJECTIVES, ADAPTIVE, at="objective")
    return train(dataclasses.replace(spec, objective=objective), root=root, data=helpers.data(), pause_at=pause_at)


def test_pitfall_31_its_buffers_are_saved_and_restored_bit_for_bit(tmp_path: Path) -> None:
    """Token frequencies and the state of a curriculum that follows the loss; 10 steps are 5 and 5."""
    adaptive(tmp_path / "whole")
    adaptive(tmp_path / "parts", pause_at=5)
    adaptive(tmp_path / "parts")
    for name in ("model", "ema", "optimizer"):
        whole, parts = (helpers.tensors(tmp_path / place / "run", 10, name) for place in ("whole", "parts"))
        assert helpers.same_bits(whole, parts), name
    found = helpers.tensors(tmp_path / "whole" / "run", 10)
    rows = helpers.Rows()
    tokens = rows.tokens(np.arange(len(rows.lengths)), length=helpers.LONGEST)
    counts = torch.from_numpy(np.bincount(tokens[tokens != rows.pad_id], minlength=helpers.VOCAB))
    assert torch.equal(found["objective.prior_V"], frequency_prior(counts, mask_id=helpers.SHAPE.mask_id))
    halfway = helpers.tensors(tmp_path / "parts" / "run", 5)
    assert not torch.equal(found["objective.plateau_4"], halfway["objective.plateau_4"])
    averages = helpers.tensors(tmp_path / "whole" / "run", 10, "ema")
    assert torch.equal(averages["objective.prior_V"], found["objective.prior_V"])


def test_its_initial_values_come_from_the_seed_of_the_run(tmp_path: Path) -> None:
    found = {}
    for seed in (1, 2):
        adaptive(tmp_path / str(seed), seed=seed, max_steps=2)
        found[seed] = helpers.tensors(tmp_path / str(seed) / "run", 2)["objective.estimator.blocks.0.qkv.weight"]
    assert float((found[1] - found[2]).abs().mean()) > 0.05


def test_a_run_that_starts_from_a_checkpoint_makes_its_own_buffers(tmp_path: Path) -> None:
    adaptive(tmp_path)
    start = {"init_from": "run/checkpoints/step-00000010", "run_name": "next", "max_steps": 2}
    adaptive(tmp_path, **start)
    first, second = (helpers.tensors(tmp_path / name, step) for name, step in (("run", 10), ("next", 2)))
    assert float(second["objective.plateau_4"][0]) == 0.0 < float(first["objective.plateau_4"][0])
    weight = "objective.estimator.blocks.0.qkv.weight"
    torch.testing.assert_close(second[weight], first[weight], rtol=0.5, atol=0.05)


def test_a_warning_of_an_objective_is_logged(tmp_path: Path) -> None:
    class Warns(Planted):
        def observe(self, losses: Any, *, step: int) -> str | None:
            value, count = losses["planted"]
            return f"planted {value / count:.1f}" if step == 1 else None

    train(helpers.spec(max_steps=3), root=tmp_path, data=helpers.data(), wrap_objective=Warns)
    (event,) = read_events(tmp_path / "run" / "training_log.jsonl", "objective_warning")
    assert event["step"] == 1
    assert event["reason"].startswith("planted 3.")


def test_a_wrapped_objective_that_is_no_module_adds_nothing(tmp_path: Path) -> None:
    train(helpers.spec(max_steps=2), root=tmp_path, data=helpers.data(), wrap_objective=faults.Faulty)
    assert all(name.startswith("model.") for name in helpers.tensors(tmp_path / "run", 2))


def test_sharding_refuses_an_objective_with_parameters(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'training\.parallel' is 'fsdp'.*Set training\.parallel to ddp"):
        run(tmp_path, parallel="fsdp")
