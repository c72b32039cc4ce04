"""Sanity checks: a sound configuration passes, and each planted fault is found by its check."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.training import task
from torch import nn

from mm_ldlm.core import PreflightError
from mm_ldlm.extras.sanity.checks import SanityConfig, _batch, check_sanity, checks_of, writing
from mm_ldlm.extras.sanity.pipeline import judge_configuration
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training import loop

QUICK = SanityConfig(examples=8, max_steps=18, fall=0.9, lr=2e-2)


@pytest.mark.parametrize("kind", OBJECTIVES.known)
def test_every_kind_of_objective_passes(kind: str, tmp_path: Path) -> None:
    spec = task.spec(kind, batch={"accumulation": 1})
    found = check_sanity(spec, root=tmp_path, config=QUICK, data=task.data(spec))
    assert [str(check) for check in found if check.remedy] == []


def overwrite(run: loop.Run) -> None:
    """A layer changes in place what its backward pass needs."""
    layer = next(m for m in run.learner.root.model.blocks.modules() if isinstance(m, nn.Linear))
    inner = layer.forward

    def spoiled(x: torch.Tensor) -> torch.Tensor:
        made = inner(x).exp()
        result = made.square()
        made.add_(1)
        return result

    layer.forward = spoiled  # type: ignore[method-assign]


def set_rates(run: loop.Run, rate: float) -> None:
    for group in run.learner.optimization.optimizer.param_groups:
        group["lr"] = rate


def double(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data.double()


FAULTS: dict[str, tuple[str, Callable[[Any, Any, Any], Any]]] = {
    "a module in evaluation mode": ("train mode", lambda run, model, adamw: model.blocks[0].eval()),
    "a parameter in float64": ("precision", lambda run, model, adamw: double(model.length_prior.logits_N)),
    "overwritten values": ("in place", lambda run, model, adamw: overwrite(run)),
    "a parameter without a group": ("optimizer groups", lambda run, *_: run.learner.optimization.parameters.pop()),
    "a parameter that is not updated": ("movement", lambda run, model, adamw: adamw.param_groups[0]["params"].pop()),
    "a first loss that is wrong": (
        "first loss",
        lambda run, model, adamw: model.text_head.linear.weight.data.normal_(),
    ),
    "a first loss that is too low": (
        "first loss",
        lambda run, model, adamw: setattr(run.stepper.objective, "expected_first_loss", lambda: {"text_loss": 9.0}),
    ),
    "hardly any learning": ("overfit one batch", lambda run, model, adamw: set_rates(run, 1e-5)),
}


@pytest.mark.filterwarnings("ignore:Error detected in")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_its_check(fault: str, tmp_path: Path) -> None:
    name, plant = FAULTS[fault]
    run = task.built(task.spec({"kind": "text_diffusion"}, optimizer={"lr": 1e-2, "warmup_steps": 0}), tmp_path)
    run.learner.optimization.set_lr(0, scale=1.0)
    run.stepper.parallel.module.train()
    plant(run, run.learner.root.model, run.learner.optimization.optimizer)
    found = checks_of(run, batch := _batch(run, 8), QUICK)
    failed = {check.name for check in found if check.remedy}
    assert name in failed, failed
    assert (len(batch.examples_B), [m for m in run.learner.root.modules() if m._forward_hooks]) == (8, [])


def test_a_failed_check_of_the_report_fails_the_pipeline_wherever_it_stands() -> None:
    good, bad = {"name": "a", "found": "1", "remedy": ""}, {"name": "b", "found": "2", "remedy": "do this"}
    judge_configuration([good])
    with pytest.raises(PreflightError, match="1 sanity checks"):
        judge_configuration([good, bad])


def test_a_sampler_that_cannot_write_is_found() -> None:
    def texts(sampler: str) -> list[str]:
        return {"good": ["a text"]}[sampler]

    run: Any = SimpleNamespace(observers={"preview": SimpleNamespace(task="l2t", texts=texts)})
    assert not writing(run, {"l2t": "good"}).remedy
    assert "KeyError" in writing(run, {"l2t": "bad"}).found
