"""Forward and backward passes of a rank: noise, kinds and dropout of micro-batches, and the scale of their losses."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training.batches import BatchPlan, deal
from mm_ldlm.training.config import BatchConfig, PrecisionConfig
from mm_ldlm.training.stepper import Stepper

WORLD = 2
FIELDS = ("latents",)


class _Objective:
    """Its loss is the weight times the uniform numbers of the examples; it records what it receives."""

    weights, units, kinds, fields = {"noise": 1.0}, {"noise": "examples"}, ("a", "b"), FIELDS

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def kind(self, generator: Any, *, step: int) -> str:
        self.seen.append(("kind", step))
        return self.kinds[len(self.seen) > 1]  # another one at a second call

    def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        numbers = generator.uniform()[batch.real_B]
        examples = batch.examples_B[batch.real_B].tolist()
        self.seen.append((kind, step, dict(zip(examples, numbers.tolist(), strict=True)), float(torch.rand(()))))
        return {"noise": (model.weight.sum() * numbers.sum(), torch.tensor(len(numbers)))}


class _Parallel:
    """One of two ranks without a group."""

    gradient_scale = float(WORLD)

    def __init__(self, objective: _Objective) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.model.weight)
        self.last: list[bool] = []
        self.inner = SimpleNamespace(objective=objective)
        self.module = lambda batch, generator, kind, step: objective(self.model, batch, generator, kind=kind, step=step)

    @contextlib.contextmanager
    def accumulate(self, *, last: bool) -> Any:
        self.last.append(last)
        yield


def step(*, accumulation: int, rank: int, draw: int = 5, step: int = 9, seed: int = 3, scaler: Any = None) -> Any:
    """One step on 16 examples; return what the objective saw, the gradient, and the numbers of the tally."""
    rows = helpers.Rows(16)
    plan = BatchPlan(rows.lengths, BatchConfig(examples=16, accumulation=accumulation), seed=0, max_length=12)
    micros = deal(
        next(plan.from_(0, 0)), rows, fields=FIELDS, rank=rank, world=WORLD, accumulation=accumulation, fill=False
    )
    objective = _Objective()
    parallel: Any = _Parallel(objective)
    process = Process(RankInfo(rank=rank, world=WORLD), torch.device("cpu"), None)
    made = Stepper(parallel, process, precision=PrecisionConfig(), scaler=scaler, seed=seed)
    kind, tally = made.forward_backward(micros, draw=draw, step=step)
    assert kind == "a"
    assert parallel.last == [*[False] * (accumulation - 1), True], "gradients are exchanged with the last one"
    return objective.seen, float(parallel.model.weight.grad), tally.tensor().tolist()


def noise(**options: Any) -> dict[int, float]:
    """The uniform number of each example, over all ranks and micro-batches."""
    found: dict[int, float] = {}
    for rank in range(WORLD):
        for seen in step(rank=rank, **options)[0][1:]:
            found |= seen[2]
    return found


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_the_noise_of_an_example_depends_on_seed_and_draw_alone(accumulation: int) -> None:
    plain = noise(accumulation=1)
    assert len(plain) == 16
    assert noise(accumulation=accumulation, step=700) == plain
    assert len({*noise(accumulation=accumulation, draw=6).values(), *plain.values()}) == 32
    assert len({*noise(accumulation=accumulation, seed=4).values(), *plain.values()}) == 32


def test_all_micro_batches_of_a_step_have_the_kind_of_the_first() -> None:
    seen, _, _ = step(accumulation=4, rank=1)
    assert [each[0] for each in seen] == ["kind", *"aaaa"]
    assert {each[1] for each in seen} == {9}


def test_dropout_follows_the_draw_and_the_rank_and_not_the_step() -> None:
    """After a roll-back a step comes again with another draw."""

    def masks(**options: Any) -> list[float]:
        return [each[3] for each in step(accumulation=2, **options)[0][1:]]

    plain = masks(rank=0)
    assert len(set(plain)) == 2, "micro-batches have masks of their own"
    assert masks(rank=0, step=700) == plain
    assert not set(plain) & {*masks(rank=1), *masks(rank=0, draw=6), *masks(rank=0, seed=4)}


@pytest.mark.parametrize("accumulation", [1, 4])
def test_gradients_are_those_of_the_global_mean_times_the_ranks_that_average_them(accumulation: int) -> None:
    mean = sum(noise(accumulation=1).values()) / 16
    found = [step(accumulation=accumulation, rank=rank) for rank in range(WORLD)]
    assert np.mean([gradient for _, gradient, _ in found]) == pytest.approx(mean)
    scaled = step(accumulation=accumulation, rank=0, scaler=SimpleNamespace(scale=lambda loss: loss * 8))
    assert scaled[1] == pytest.approx(8 * found[0][1])
    assert scaled[2] == found[0][2], "the logged loss is neither scaled nor multiplied"
    assert sum(numbers[2] for *_, numbers in found) == 16, "the counts of all micro-batches"
