"""The loop: exact resume for every kind of objective, steps that are refused, roll-backs, endings."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import task
from tests.training.faults import KIND

from mm_ldlm.core import CheckpointError, FreezingError, TrainingDiverged
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training import loop
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import latest
from mm_ldlm.training.checkpoints.weights import persistent_buffers
from mm_ldlm.training.observers import Observer

KINDS = [kind for kind in OBJECTIVES.known]
STEPS = 5
EVERY_STEP = {"every_steps": 1, "keep_last": 100, "background": False}


def faulty(*faults: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"kind": KIND, "faults": list(faults), **options}


# -- conformance: every kind of objective ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pitfall_16_training_moves_exactly_what_is_trained_and_resumes_to_the_bit(kind: str, tmp_path: Path) -> None:
    """An epoch has three steps, so that the second part of a run ends one and begins another; also pitfall 31."""
    keys: dict[str, Any] = {"optimizer": {"lr": 1e-2}, "ema": {"decay": 0.5}, "validate_every": STEPS - 1}
    spec = task.spec(kind, model={"dropout": 0.02}, max_steps=STEPS, **keys)
    run = task.built(spec, tmp_path / "whole")
    root, first = run.learner.root, run.validate(0)["loss"]
    assert run.validate(0)["loss"] == first
    before = {name: p.detach().clone() for name, p in root.named_parameters()}
    loop.train(run)
    assert {line["mode"] for line in run.tracker.lines} <= set(run.stepper.objective.kinds)
    assert run.tracker.lines[-1]["validation/loss"] < first, "of the same examples with the same noise"
    moved = {name for name, p in root.named_parameters() if not torch.equal(p, before[name])}
    assert not {name for name, p in root.named_parameters() if not p.requires_grad} & moved
    own = {name for name, p in root.named_parameters() if name.startswith("objective.") and p.requires_grad}
    assert own <= moved
    assert not [name for name in own if torch.equal(run.learner.ema.values[name], before[name])]
    whole = task.saved(tmp_path / "whole", STEPS)
    names = {*before, *persistent_buffers(root)}
    assert {f"{file}.safetensors/{name}" for file in ("model", "ema") for name in names} <= whole.keys()
    assert task.train_until(task.built(spec, tmp_path / "parts"), 2) == "stopped"
    again = task.built(spec, tmp_path / "parts")
    assert again.checkpointer.resume("auto", tmp_path / "parts") == "step-00000002"
    assert task.train_until(again, STEPS) == "finished"
    assert task.largest_difference(whole, task.saved(tmp_path / "parts", STEPS)) == 0


# -- a step is one global batch ----------------------------------------------------------------------------------------


def test_micro_batches_give_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    found = []
    for accumulation in (1, 2, 4):
        spec = task.spec(max_steps=4, batch={"examples": 16, "accumulation": accumulation})
        run = task.built(spec, tmp_path / str(accumulation))
        loop.train(run)
        found.append((task.held(run), [line["loss"] for line in run.tracker.lines]))
    for held, losses in found[1:]:
        assert losses == pytest.approx(found[0][1], rel=1e-5)
        assert all(torch.allclose(held[name], found[0][0][name], atol=1e-5) for name in held)


def test_log_lines_count_what_was_trained(tmp_path: Path) -> None:
    spec = task.spec(max_steps=8, log_every=3, batch={"examples": 16}, ema={"decay": 0.0})
    run, observed = task.built(spec, tmp_path), list[int]()
    run.stepper.objective.observe = lambda losses, *, step: observed.append(step)  # type: ignore[method-assign]
    for name in "ab":
        run.observers[name] = Observer()
        run.observers[name].after_update = lambda step, *, applied, name=name: {name: 1.0} if step == 3 else {}  # type: ignore[method-assign]
    loop.train(run)
    lines, state = run.tracker.lines, run.learner.state
    assert all(torch.equal(run.learner.ema.values[name], p) for name, p in run.learner.root.named_parameters())
    assert observed == list(range(8))
    assert lines[0].keys() >= {"a", "b"}
    assert [line["step"] for line in lines] == [3, 6, 8]  # of the interval, the last one
    each = task.built(task.spec(max_steps=8, log_every=1, batch={"examples": 16}), tmp_path / "each")
    loop.train(each)
    assert lines[0]["loss"] == pytest.approx(sum(line["loss"] for line in each.tracker.lines[:3]) / 3)
    tokens = [int(planned.tokens) for planned in run.loader.plan.first(8)]
    assert state.tokens == lines[-1]["tokens"] == sum(tokens)
    assert (state.step, state.draw, state.examples) == (8, 8, 8 * 16)
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert all(math.isfinite(value) for line in lines for value in line.values() if not isinstance(value, str))


# -- steps that are refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["nan_loss", "inf_gradient"])
def test_a_step_that_is_not_finite_changes_nothing(fault: str, tmp_path: Path) -> None:
    run = task.built(task.spec(faulty({"kind": fault, "step": 3})), tmp_path)
    task.train_until(run, 3)
    before = task.held(run)
    task.train_until(run, 4)
    assert task.largest_difference(before, task.held(run)) == 0
    (skip,) = run.tracker.of("skip")
    assert (skip["step"], run.learner.state.skipped) == (3, 1)
    assert loop.train(dataclasses.replace(run, stop_requested=lambda: False)) == "finished"
    assert task.largest_difference(before, task.held(run)) > 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_rolls_back_lowers_its_rate_and_continues_with_other_data(times: int, tmp_path: Path) -> None:
    faults = [{"kind": "nan_loss", "step": step, "times": times} for step in (4, 5)]
    guard = {"max_consecutive_skips": 2, "rollback_lr_factor": 0.5}
    spec = task.spec(faulty(*faults, mode="l2t"), checkpoint={"every_steps": 3}, guard=guard, log_every=6)
    run, applied = task.built(spec, tmp_path), list[tuple[float, float]]()
    run.stepper.objective.observe = lambda losses, *, step: applied.append(losses["text_nll"])  # type: ignore[method-assign]
    draws: list[int] = []
    seconds: list[float] = []
    forward_backward = run.stepper.forward_backward
    run.stepper.forward_backward = lambda micros, *, draw, step: (  # type: ignore[method-assign]
        draws.append(draw)
        or seconds.append(run.learner.state.seconds)
        or forward_backward(micros, draw=draw, step=step)
    )
    task.train_until(run, 6)
    back, state = run.tracker.of("rollback"), run.learner.state
    assert [(each["to_step"], each["lr_scale"]) for each in back] == [(3, 0.5), (3, 0.25)][:times]
    assert (state.rollbacks, state.lr_scale) == (times, 0.5**times)
    assert state.skipped == len(run.tracker.of("skip")) == 2 * times, "also of undone steps"
    assert state.draw == state.step + 3 * times  # the three batches since the checkpoint are not seen again
    assert draws == list(range(state.draw)), "nor is their noise"
    assert seconds == sorted(seconds), "the time of undone steps has passed"
    rates = run.tracker.lines[-1]["lr"], run.learner.optimization.optimizer.param_groups[0]["lr"]
    assert {*rates} == {run.learner.optimization.set_lr(5, scale=0.5**times)}
    nll, count = (sum(each) for each in zip(*applied[-3:], strict=True))
    assert run.tracker.lines[-1]["text_nll"] == pytest.approx(nll / count), "of the steps since the checkpoint"


def test_pitfall_08_a_run_that_goes_on_failing_stops_and_says_why(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    faults = [{"kind": "nan_loss", "step": step} for step in range(4, 10)]
    guard = {"max_consecutive_skips": 2, "max_rollbacks": 1}
    run = task.built(task.spec(faulty(*faults), checkpoint={"every_steps": 3}, guard=guard), tmp_path)
    run.observers.clear()
    with refuses(TrainingDiverged, "step-00000003", "guard.max_rollbacks (1)"):
        loop.train(run)


@pytest.mark.parametrize("limits", [{"guard": {"max_consecutive_skips": 2}}, {"max_steps": 2}])
def test_a_run_that_fails_before_its_first_checkpoint_stops(limits: dict[str, Any], tmp_path: Path) -> None:
    faults = [{"kind": "nan_loss", "step": step} for step in range(2)]
    run = task.built(task.spec(faulty(*faults), **limits), tmp_path)
    with pytest.raises(TrainingDiverged, match="none yet"):
        loop.train(run)


@pytest.mark.parametrize("step", [4, 9])
def test_pitfall_39_nothing_that_is_not_finite_is_committed(step: int, tmp_path: Path) -> None:
    """Loss and gradient are finite, but a weight is not after the update; also at the last step."""
    spec = task.spec(faulty({"kind": "inf_weight", "step": step}), checkpoint=EVERY_STEP)
    run, counted = task.built(spec, tmp_path), list[int]()

    def count_seconds() -> None:
        run.learner.state.seconds += 1
        counted.append(1)

    run.throughput.count_seconds = count_seconds  # type: ignore[method-assign]
    with pytest.raises(TrainingDiverged, match="after the update") as raised:
        loop.train(run)
    assert run.learner.state.seconds == len(counted), "the time of undone steps has passed"
    last = latest(tmp_path / "run/checkpoints")
    assert last.name == f"step-{step:08d}"
    assert last.name in str(raised.value)
    assert len(run.tracker.of("rollback")) == spec.training.guard.max_rollbacks
    assert all(bool(torch.isfinite(value).all()) for value in task.saved(tmp_path, step).values())


def test_a_frozen_weight_that_moves_ends_the_run(tmp_path: Path) -> None:
    run = task.built(task.spec({"kind": "multimodal", "mode": "l2t"}, max_steps=2), tmp_path)
    frozen = next(p for p in run.learner.root.parameters() if not p.requires_grad)
    run.throughput.stepped = lambda planned: frozen.data.add_(1.0)  # type: ignore[method-assign]
    with pytest.raises(FreezingError):
        loop.train(run)


# -- endings -----------------------------------------------------------------------------------------------------------


def test_a_request_to_stop_saves_and_the_minutes_finish(tmp_path: Path) -> None:
    assert task.train_until(task.built(task.spec(), tmp_path / "stopped"), 4) == "stopped"
    assert task.saved(tmp_path / "stopped", 4)
    timed = task.built(task.spec(max_minutes=1e-9, log_every=100), tmp_path / "timed")
    assert loop.train(timed) == "finished"
    assert timed.learner.state.step == 1
    path = folder.find(tmp_path / "timed" / "run", which="1")
    assert folder.document(path, "training_state.json")["state"]["seconds"] > 0
    assert timed.tracker.of("ended_early")


def test_a_checkpoint_that_cannot_be_written_is_an_error_at_the_end_only(tmp_path: Path) -> None:
    spec = task.spec(max_steps=4, checkpoint={"every_steps": 1, "background": True})
    run = task.built(spec, tmp_path)
    run.checkpointer.folders["gone"] = tmp_path / "gone"
    with pytest.raises(CheckpointError, match="gone"):
        loop.train(run)
    assert run.learner.state.step == 4
    assert len(run.tracker.of("checkpoint_failed")) == 4
