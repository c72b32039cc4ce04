"""The trainable root: which model a step calls, which parameters it has under which names, and their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.parts import tag, tagged_parameters
from mm_ldlm.objectives.root import TrainableRoot


class Recorder(nn.Module):
    """An objective with one parameter that keeps what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.head = tag(nn.Linear(1, 1, bias=False), "head")
        self.seen: tuple[Any, ...] = ()

    def forward(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> dict[str, Any]:
        self.seen = (model, batch, generator, kind, step)
        return {"loss": (torch.ones(()), torch.ones(()))}


def root(objective: Any) -> TrainableRoot:
    return TrainableRoot(tag(nn.Linear(2, 1), "model"), objective)


def test_a_step_calls_the_objective_with_the_model_that_stands_in_for_the_trained_one() -> None:
    made, draws = root(Recorder()), RowGenerator(0, torch.arange(2))
    batch: Any = object()
    assert made.forward_model is made.model
    for called in (made.model, nn.Identity()):
        if called is not made.model:
            made.forward_model = called
        assert made(batch, draws, "a kind", 7).keys() == {"loss"}
        found = made.objective.seen
        assert (found[0] is called, found[1] is batch, found[2] is draws) == (True, True, True)
        assert found[3:] == ("a kind", 7)


def test_every_parameter_is_registered_once_under_the_model_or_the_objective() -> None:
    made = root(Recorder())
    names = ["model.weight", "model.bias", "objective.scale", "objective.head.weight"]
    assert [name for name, _ in made.named_parameters()] == list(made.state_dict()) == names
    assert [name for name, _ in made.named_children()] == ["model", "objective"]


@pytest.mark.parametrize("own", [None, "a part of its own"])
def test_an_objective_is_the_part_objective_unless_it_names_another(own: str | None) -> None:
    objective = Recorder() if own is None else tag(Recorder(), own)
    found = {name: part.name for name, part, _ in tagged_parameters(root(objective))}
    assert found == {
        "model.weight": "model", "model.bias": "model", "objective.scale": own or "objective",
        "objective.head.weight": "head",
    }  # fmt: skip


def test_an_objective_without_parameters_is_no_module_of_the_root() -> None:
    class Plain:
        """No module."""

    made = root(Plain())
    assert [name for name, _ in made.named_children()] == ["model"]
    assert isinstance(made.objective, Plain)
