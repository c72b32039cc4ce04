"""Limits of the checks before a run: room on the disk, and examples for every micro-batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.config import parse
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import preflight
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.config import BatchConfig, TrainingConfig


@pytest.mark.parametrize(
    ("settings", "averaged", "kept"),
    [({"keep_last": 2}, True, 3), ({"keep_last": 2}, False, 3), ({"keep_last": 1, "best_metric": "loss"}, True, 3),
     ({"keep_last": 2, "keep_every": 30}, True, 3 + 2)],
)  # fmt: skip
def test_the_disk_holds_the_checkpoints_that_are_kept_and_one_more(
    settings: dict[str, Any], averaged: bool, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, two moments, and the average: four or three float32 numbers for each parameter."""
    stepper: Any = SimpleNamespace(root=torch.nn.Linear(10, 9, bias=False))
    training = parse(
        TrainingConfig, {"batch": {"examples": 4}, "max_steps": 100, "checkpoint": settings}, at="training"
    )
    needed = kept * 4 * 90 * (4 if averaged else 3)
    for free, ok in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        found = preflight.disk(stepper, training, Path(), averaged=averaged, done=40)
        assert found.ok == ok
        assert f"{kept} checkpoints" in found.found


@pytest.mark.parametrize(("size", "ok"), [(7, False), (8, True)])
def test_a_batch_has_an_example_for_every_micro_batch_of_every_rank(size: int, ok: bool) -> None:
    plan = BatchPlan(np.array([3] * 16), BatchConfig(examples=size, accumulation=4), seed=0, max_length=12)
    process = Process(RankInfo(world=2), torch.device("cpu"), None)
    assert preflight.batches(plan, process, epoch=0).ok == ok
