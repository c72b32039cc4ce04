"""Preflight: all ranks see one table; a machine that cannot execute the run is refused with the remedy."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import task

from mm_ldlm.core import PreflightError
from mm_ldlm.extras.sanity import preflight as checks
from mm_ldlm.extras.sanity.preflight import Check


def test_a_run_that_can_start_passes_and_nothing_moves(tmp_path: Path) -> None:
    run = task.built(task.spec(preflight=True), tmp_path)
    run.checkpointer.directory.mkdir(parents=True)
    before = task.held(run)
    run.observers["preflight"].start()
    assert task.largest_difference(before, task.held(run)) == 0
    assert all(p.grad is None for p in run.learner.root.parameters())
    (event,) = run.tracker.of("preflight")
    assert [check.partition(":")[0] for check in event["checks"]][-1] == "✓ dry step"
    assert not list(tmp_path.rglob(".preflight"))


def test_what_would_fail_in_the_first_validation_fails_before_the_first_step(tmp_path: Path) -> None:
    run = task.built(task.spec(preflight=True, validate_every=1), tmp_path)
    run.checkpointer.directory.mkdir(parents=True)
    run.learner.root.model.length_logits = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="not callable"):
        run.observers["preflight"].start()


@pytest.mark.parametrize("sizes", [{"examples": 2}, {"examples": None, "tokens": 40, "example_multiple": 1}])
def test_a_batch_with_fewer_examples_than_micro_batches_is_refused(sizes: dict[str, Any], tmp_path: Path) -> None:
    run = task.built(task.spec(batch={**sizes, "accumulation": 4}, preflight=True), tmp_path)
    run.checkpointer.directory.mkdir(parents=True)
    with pytest.raises(PreflightError, match=r"✗.*\n.*accumulation"):
        run.observers["preflight"].start()


def test_a_dry_step_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = task.built(task.spec(batch={"examples": None, "tokens": 40, "example_multiple": 1}), tmp_path)
    total, tried, full = run.stepper.total, set(), False

    def limited(batch: Any, **more: Any) -> torch.Tensor:
        tried.add((tuple(batch.tokens_BL.shape), more["kind"]))
        if full:
            raise torch.OutOfMemoryError
        return total(batch, **more)

    run.stepper.total = limited  # type: ignore[method-assign]
    assert not checks.dry_step(run).remedy
    assert max(run.loader.plan.shapes(), key=lambda shape: (math.prod(shape), shape[1])) == (5, 8)
    assert tried == {((5, 8), kind) for kind in run.stepper.objective.kinds}
    full = True
    assert "accumulation" in checks.dry_step(run).remedy


def test_a_check_that_fails_on_one_rank_fails_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = [Check("a", "1"), Check("b", "2")], [Check("a", "1"), Check("b", "3", "do this")]
    monkeypatch.setattr(checks.collectives, "gather", lambda mine: [good, bad, bad])
    assert checks._agreed(good) == [good[0], dataclasses.replace(bad[1], name="b (rank 1)")]
    monkeypatch.setattr(checks.collectives, "gather", lambda mine: [mine, "torch of another host"])
    assert "same versions" in checks.versions(task.ALONE).remedy
