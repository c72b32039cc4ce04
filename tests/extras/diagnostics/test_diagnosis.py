"""The diagnosis of a step that is not finite names the first cause, and changes nothing."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import task
from tests.training.ranks import train_forked
from tests.training.test_loop import faulty

from mm_ldlm.extras.diagnostics import diagnosis as module
from mm_ldlm.training import loop
from mm_ldlm.training.checkpoints.reference import LOG
from mm_ldlm.training.jsonl import read_events


def diagnosis(run: loop.Run, root: Path) -> str:
    planned = next(run.loader.plan.first(1))
    before = {name: p.detach().clone() for name, p in run.learner.root.named_parameters()}
    kind = run.stepper.objective.kinds[0]
    text = run.observers["diagnosis"].refused(run.loader.make(planned), kind=kind, reason="why")
    assert all(torch.equal(p, before[name], ) or not bool(torch.isfinite(before[name]).all())
               for name, p in run.learner.root.named_parameters())  # fmt: skip
    assert all(p.grad is None for p in run.learner.root.parameters())
    assert not any(module._forward_hooks for module in run.learner.root.modules())
    document = json.loads((root / "run/diagnosis-step-00000000.json").read_text())
    assert (document["reason"], document["diagnosis"], len(document["ranks"])) == ("why", text, 1)
    assert run.tracker.of("diagnosis")[-1]["reason"] == text
    return text


def built(root: Path, objective: Any = "multimodal") -> loop.Run:
    return task.built(task.spec(objective), root)


def test_poisoned_examples_are_named_by_their_numbers(tmp_path: Path) -> None:
    spec = task.spec("multimodal", batch={"accumulation": 2})
    data = task.data(spec)
    data.train.fields["latents"][[3, 4], 1] = math.inf  # type: ignore[attr-defined]
    run = task.built(spec, tmp_path, data=data)
    run.loader.plan.epoch = lambda number: [(torch.arange(8).numpy(), 12)]  # type: ignore[method-assign,assignment]
    assert re.search(r"latents of examples \[(3, 4|4, 3)\]", diagnosis(run, tmp_path)), "of both micro-batches"


def test_a_parameter_that_is_not_finite_is_named(tmp_path: Path) -> None:
    run = built(tmp_path)
    name, parameter = next(iter(run.learner.root.named_parameters()))
    parameter.data.view(-1)[0] = math.nan
    assert name in diagnosis(run, tmp_path)


def test_the_first_module_with_a_bad_output_is_named(tmp_path: Path) -> None:
    run = built(tmp_path)
    layer = run.learner.root.model.blocks[1]
    inner = layer.forward
    layer.forward = lambda *given, **more: tuple(x * math.inf for x in inner(*given, **more))
    assert "blocks.1" in diagnosis(run, tmp_path)


@pytest.mark.parametrize(
    ("fault", "words"), [("nan_loss", "not the loss"), ("inf_gradient", "loss is finite, but grad")]
)
def test_a_loss_and_a_gradient_are_told_apart(fault: str, words: str, tmp_path: Path) -> None:
    assert words in diagnosis(built(tmp_path, faulty({"kind": fault, "step": 0})), tmp_path)


def test_gradients_too_large_for_float32_are_named(tmp_path: Path) -> None:
    run = built(tmp_path)
    inner = run.stepper.objective.forward
    run.stepper.objective.forward = lambda *given, **more: {
        name: (value * 1e21, count) for name, (value, count) in inner(*given, **more).items()
    }
    assert "too large for float32" in diagnosis(run, tmp_path)


def test_the_first_gradient_in_the_order_of_the_backward_pass_and_the_largest_norm_are_kept() -> None:
    found = module.Findings(rank=0, kind="a")
    for given in (
        {"a": 3.0, "b": 4.0},
        {"a": 1.0, "b": 2.0},
        {"a": 3e30, "b": 4e30},
        {"c": math.inf, "d": math.nan},
        {"e": math.inf},
    ):
        module._gradients(found, {name: torch.tensor([value]) for name, value in given.items()})
        assert found.norm >= 5
    assert (found.norm, found.steepest, found.gradient) == (pytest.approx(5e30), "b", "d")


def test_a_step_that_cannot_be_repeated_or_is_sound_says_so(tmp_path: Path) -> None:
    assert "all values were finite on every rank" in diagnosis(built(tmp_path), tmp_path)
    assert "ZeroDivisionError: planted" in diagnosis(
        built(tmp_path, faulty({"kind": "raise", "step": 0})), tmp_path
    )  # fmt: skip


def test_pitfall_08_the_cause_on_another_rank_is_in_the_log(tmp_path: Path) -> None:
    train_forked(task.spec(faulty({"kind": "nan_loss", "step": 2, "ranks": [1]}), max_steps=4), tmp_path)
    (found,) = read_events(tmp_path / "run" / LOG, "diagnosis")
    assert found["step"] == 2
    assert found["reason"].startswith("Rank 1")
