"""The hooks of a repeated step: which tensors they read, which module they name, and that none of them stays."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parts import ALONE
from torch import nn

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training import diagnosis
from mm_ldlm.training.diagnosis import Findings


class Model(nn.Module):
    """Two layers with a function between them, which returns a mapping."""

    def __init__(self, between: Any, after: Any = lambda x: x) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        self.between, self.after = between, after
        for layer in (self.one, self.two):
            nn.init.ones_(layer.weight)

    def forward(self, first: Any, *, latents: Any) -> Any:
        return {
            "text": [self.after(self.two(self.between(self.one(latents))))],
            "empty": torch.zeros(0),
            "ids": torch.arange(3),
        }


class Objective:
    """Its loss is the sum of the outputs."""

    kinds, weights, units = ("a",), {"trained": 1.0}, {"trained": "examples"}

    def __init__(self, first: Any = None) -> None:
        self.first = first

    def __call__(self, model: Any, batch: Batch, generator: Any, *, kind: str, step: int) -> Any:
        value = model(self.first, latents=batch.fields["latents"])["text"][0].sum()
        return {"trained": (value, torch.tensor(1.0))}


def repeated(*, between: Any = lambda x: x, after: Any = lambda x: x, first: Any = None, world: int = 1) -> Any:
    """The findings of a step on one example, and its root."""
    objective: Any = Objective(first)
    root = TrainableRoot(Model(between, after), objective)
    parallel = Parallel(root, ALONE)
    parallel.process = Process(RankInfo(rank=0, world=world), torch.device("cpu"), None)
    one = torch.ones(1, 1, dtype=torch.int64)
    batch = Batch(
        tokens_BL=one, valid_BL=one > 0, fields={"latents": torch.tensor([[1.0, 2.0]])}, examples_B=torch.tensor([7]),
        position_B=torch.tensor([0]), global_size=1, global_tokens=1,
    )  # fmt: skip
    stepper: Any = SimpleNamespace(
        process=ALONE, root=root, objective=objective, parallel=parallel, scaler=None,
        losses=lambda batch, *, kind, draw, step: root(batch, None, kind, step),
    )  # fmt: skip
    return diagnosis._repeat(stepper, [batch], kind="a", step=3, draw=5), root


def derivative(value: float) -> Any:
    """A function that changes no number, and whose derivative is `value`."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * value

    return Function.apply


def test_a_sound_step_has_magnitudes_and_nothing_else() -> None:
    found, root = repeated()
    assert found == Findings(
        rank=0, kind="a", examples={}, parameters=[], norm=pytest.approx((2 * 5 + 2 * 9) ** 0.5),  # type: ignore[arg-type]
        steepest="model.two.weight", largest={"one": 3.0, "two": 6.0, "model": 6.0},
    )  # fmt: skip
    assert not found.any
    for module in root.modules():
        hooks = (*module._forward_hooks, *module._forward_pre_hooks)
        assert hooks == (), "the next step is not observed"


def test_the_module_is_named_behind_which_gradients_stop_being_finite() -> None:
    """That of the second layer is finite, and what lies before it multiplies by NaN."""
    found, _ = repeated(between=derivative(math.nan))
    assert (found.forward, found.losses, found.backward, found.gradient) == (None, [], "one", "model.one.weight")
    assert found.sentence() == (
        "Rank 0, a step of kind a: the loss is finite, but gradients became non-finite at the output of module one. "
        "The first parameter with a non-finite gradient is model.one.weight."
    )
    found, _ = repeated(after=derivative(math.nan))
    assert found.backward == "two", "the first in the order of the backward pass, which also meets the others"
    assert found.gradient == "model.two.weight"
    found, _ = repeated(between=derivative(1.0))
    assert (found.backward, found.gradient) == (None, None)


def test_the_norm_is_that_of_the_gradients_of_a_step_on_all_ranks() -> None:
    """They are averaged over ranks afterwards, so that each rank has a multiple."""
    assert repeated(world=3)[0].norm == pytest.approx(3 * 28**0.5)


def test_a_norm_beyond_float32_is_found_in_float64() -> None:
    found, _ = repeated(between=derivative(3e25))
    assert found.gradient is None
    assert found.norm == pytest.approx(3e25 * 10**0.5, rel=1e-3)
    assert (found.steepest, found.overflow, found.any) == ("model.one.weight", True, True)


@pytest.mark.parametrize("deep", [lambda x: x, lambda x: [1, {"a": (None, x)}], lambda x: (torch.ones(1), x)])
def test_arguments_are_read_however_deep_their_tensors_lie(deep: Any) -> None:
    bad = torch.tensor([1.0, math.nan])
    assert repeated(first=deep(bad))[0].inputs == ["0"]
    assert repeated(first=deep(torch.ones(2)))[0].inputs == []
    assert repeated(first=deep(torch.tensor([1, 2])))[0].inputs == [], "numbers of an integer type are finite"


def test_tensors_of_floating_point_are_found_in_their_order() -> None:
    one, two, three = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    found = list(diagnosis._floats(({"a": one, "b": [two, torch.arange(2)]}, "text", None, (three,))))
    assert [float(tensor) for tensor in found] == [0.0, 1.0, 2.0]


def test_parameters_that_are_not_finite_come_first() -> None:
    objective: Any = Objective()
    root = TrainableRoot(Model(lambda x: x), objective)
    with torch.no_grad():
        root.model.two.weight[0, 1] = math.inf  # type: ignore[union-attr,index,operator]
    stepper: Any = SimpleNamespace(process=ALONE, root=root, objective=objective)
    found = diagnosis._repeat(stepper, [], kind="a", step=3, draw=5)
    assert found.parameters == ["model.two.weight"]
    assert found.trouble is None
    assert found.sentence().endswith("1 parameters are not finite, the first of them model.two.weight.")
