"""Groups and states of the optimizers by hand: shared and frozen weights, and where each state is restored to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.training.config import OptimizerConfig
from mm_ldlm.training.optimizer import Optimization, parameter_groups


class Model(nn.Module):
    """Two blocks, a table that is also the output, a frozen matrix, and a vector named like a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3, bias=False)])
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.table.weight
        self.head = nn.Linear(3, 2)
        self.fixed = nn.Linear(3, 3, bias=False)
        self.fixed.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(3)
        self.free = nn.Parameter(torch.ones(2, 2))


CONFIG = OptimizerConfig(name="muon", lr=1e-3, muon_lr=2e-3, weight_decay=0.5, clip=2.0)


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_every_trained_weight_is_in_one_group_under_its_name(name: Any) -> None:
    """A shared table is decided on where it comes first, and only matrices of layers decay."""
    blocks = ["blocks.0.weight", "blocks.1.weight"]
    plain = ["free", "table.weight", "blocks.0.bias", "head.bias", "norm.weight", "norm.bias"]
    config = OptimizerConfig(name=name, lr=1e-3, muon_lr=2e-3, weight_decay=0.5)
    found = [
        (group["kind"], group["base_lr"], group["weight_decay"], [name for name, _ in group["params"]])
        for group in parameter_groups(Model(), config)
    ]
    decayed = ["head.weight"] if name == "muon" else [*blocks, "head.weight"]
    expected = [("muon", 2e-3, 0.5, blocks)] if name == "muon" else []
    assert found == [*expected, ("adamw", 1e-3, 0.5, decayed), ("adamw", 1e-3, 0.0, plain)]


def test_every_parameter_of_a_group_is_the_one_of_its_name() -> None:
    model = Model()
    parameters = dict(model.named_parameters())
    for group in parameter_groups(model, CONFIG):
        assert all(parameter is parameters[name] for name, parameter in group["params"])
    made = Optimization(model, CONFIG, max_steps=9)
    assert {made.names[id(parameter)] for parameter in made.parameters} == parameters.keys() - {"fixed.weight"}
    held = [
        id(p) for optimizer in made.optimizers.values() for group in optimizer.param_groups for p in group["params"]
    ]
    assert sorted(held) == sorted(id(p) for name, p in parameters.items() if name != "fixed.weight")


def stepped() -> Optimization:
    """After one step with gradients of ones."""
    made = Optimization(Model(), CONFIG, max_steps=9)
    for parameter in made.parameters:
        parameter.grad = torch.ones_like(parameter)
    made.step()
    return made


def test_states_are_named_by_optimizer_parameter_and_entry() -> None:
    found = stepped().tensors()
    adamw = ["free", "table.weight", "blocks.0.bias", "head.weight", "head.bias", "norm.weight", "norm.bias"]
    assert set(found) == {
        *(f"adamw/{name}/{entry}" for name in adamw for entry in ("step", "exp_avg", "exp_avg_sq")),
        *(f"muon/blocks.{number}.weight/momentum_buffer" for number in (0, 1)),
    }


def test_each_state_is_restored_to_its_parameter_and_single_numbers_are_copied() -> None:
    before, made = stepped(), Optimization(Model(), CONFIG, max_steps=9)
    parameters = {name: parameter for group in made.groups for name, parameter in group["params"]}
    tensors = before.tensors()
    assigned: list[tuple[Any, Any]] = []

    def assign(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        assigned.append((parameter, value))
        return value + 1

    made.load(tensors, assign)
    again = made.tensors()
    assert again.keys() == tensors.keys()
    for key, value in tensors.items():
        if value.ndim == 0:
            assert torch.equal(again[key], value)
            assert again[key] is not value, "later steps count on in place"
        else:
            assert torch.equal(again[key], value + 1)
            place = next(parameter for parameter, given in assigned if given is value)
            assert place is parameters[key.split("/")[1]]
    assert len(assigned) == sum(value.ndim > 0 for value in tensors.values())


@pytest.mark.parametrize("key", ["other/free/step", "muon/free/momentum_buffer", "adamw/of_another_model/step"])
def test_a_state_of_another_optimizer_or_parameter_is_refused(key: str) -> None:
    made = Optimization(Model(), OptimizerConfig(), max_steps=9)
    with pytest.raises(KeyError):
        made.load({key: torch.ones(())}, lambda parameter, value: value)


@pytest.mark.parametrize(("norm", "factor"), [(2.0, 1.0), (2.5, 0.8), (8.0, 0.25)])
def test_gradients_are_scaled_to_the_largest_norm(norm: float, factor: float) -> None:
    """The norm is handed over: that of all ranks."""
    made = Optimization(Model(), CONFIG, max_steps=9)
    with_gradient = made.parameters[::2]
    for parameter in with_gradient:
        parameter.grad = torch.full_like(parameter, 4.0)
    assert made.clip(norm) is (factor < 1)
    found = [float(p.grad.unique()) for p in with_gradient if p.grad is not None]
    assert found == pytest.approx([4 * factor] * len(with_gradient), rel=1e-5)
    made.drop_gradients()
    assert all(parameter.grad is None for parameter in made.parameters)


def test_without_a_largest_norm_nothing_is_clipped() -> None:
    made = Optimization(Model(), OptimizerConfig(clip=None), max_steps=9)
    made.parameters[0].grad = torch.full_like(made.parameters[0], 1e9)
    assert made.clip(1e9) is False
    assert float(made.parameters[0].grad.unique()) == 1e9


def test_the_norm_of_sharded_gradients_is_that_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped()

    class Sharded:
        @staticmethod
        def full_tensor() -> torch.Tensor:
            return torch.tensor(7.0)

    given: list[int] = []
    monkeypatch.setattr(nn.utils, "get_total_norm", lambda grads: given.append(len(grads)) or Sharded())
    made.parameters[0].grad = None
    assert float(made.norm()) == 7.0
    assert given == [len(made.parameters) - 1]
