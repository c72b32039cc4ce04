"""Limits of the checks before a run: room on the disk, and examples for every micro-batch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.training.tracker import Silent

from mm_ldlm.core.config import parse
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import preflight
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.checkpoints import folder
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


@pytest.mark.parametrize(("steps", "done"), [((), 0), ((4, 40), 40)])
def test_checkpoints_that_exist_need_no_more_room(
    steps: tuple[int, ...], done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks run before anything is resumed, so the counter of steps is 0 then."""
    for step in steps:
        folder.write(tmp_path / "checkpoints", step, folder.Contents({}, {"a.json": {}}))
    parts: Any = SimpleNamespace(
        process=Process(RankInfo(), torch.device("cpu"), None), loader=SimpleNamespace(plan=None),
        config=SimpleNamespace(precision=SimpleNamespace(compile=False)), ema=SimpleNamespace(values={"w": 1}),
        stepper=SimpleNamespace(objective=SimpleNamespace(fields=())), state=SimpleNamespace(step=0, epoch=0),
        tracker=Silent(),
    )  # fmt: skip
    for name in ("device", "versions", "all_reduce", "configuration", "shared_folder", "data_shape", "batches",
                 "dry_step"):  # fmt: skip
        monkeypatch.setattr(preflight, name, lambda *_, **__: preflight.Check("a", "b"))
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(preflight, "disk", lambda *_, **more: given.append(more) or preflight.Check("disk", "enough"))
    preflight.preflight(parts, None, None, tmp_path)  # type: ignore[arg-type]
    assert given == [{"averaged": True, "done": done}]


def test_the_smallest_batch_of_a_budget_of_tokens_has_an_example_for_every_micro_batch() -> None:
    """32 tokens are eight texts of 4 tokens, but only two of 16."""
    process = Process(RankInfo(), torch.device("cpu"), None)
    for lengths, ok in (([4] * 9, True), ([4] * 9 + [16], False)):
        config = BatchConfig(tokens=32, accumulation=4, length_multiple=4, example_multiple=1)
        plan = BatchPlan(np.array(lengths), config, seed=0, max_length=16)
        found = preflight.batches(plan, process, epoch=0)
        assert found.ok == ok
        assert f"{len(lengths)} examples, {len(plan.epoch(0))} batches an epoch" in found.found


# -- the dry step, and what all ranks agree on -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "room", "words"),
    [
        (7, 3, "3 examples × 12 tokens fit: set training.batch.accumulation to 6, or batch.tokens to 36"),
        (16, 9, "8 examples × 12 tokens fit: set training.batch.accumulation to 4, or batch.tokens to 96"),
        (9, 2, "2 examples × 12 tokens fit: set training.batch.accumulation to 10"), (8, 1, "not even one example"),
    ],
)  # fmt: skip
def test_so_many_micro_batches_are_proposed_that_each_fits(
    size: int, room: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def passes(stepper: Any, data: Any, size: int, length: int, accumulation: int) -> None:
        asked.append(size)
        if size > room:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(preflight, "_passes", passes)
    monkeypatch.setattr(preflight, "_free_memory", lambda stepper: None)
    plan = BatchPlan(np.array([12] * 32), BatchConfig(examples=size, accumulation=2), seed=0, max_length=12)
    stepper: Any = SimpleNamespace(process=Process(RankInfo(world=2), torch.device("cpu"), None))
    found = preflight.dry_step(stepper, plan, None, filled=False)  # type: ignore[arg-type]
    assert words in found.remedy
    assert found.found == f"out of memory at {size} examples × 12 tokens"
    assert asked[0] == size


def test_the_dry_step_has_texts_as_long_as_its_batch_and_every_kind_of_step() -> None:
    """Texts that are cut short would need less memory than the training does."""
    seen: list[tuple[str, int, int]] = []

    def total(batch: Any, *, kind: str, draw: int, step: int) -> str:
        seen.append((kind, int(batch.valid_BL.sum()), batch.tokens_BL.shape[1]))
        return "a loss"

    lengths = np.array([8, 12, 3, 8, 5])
    rows: Any = SimpleNamespace(
        lengths=lengths, pad_id=0,
        tokens=lambda rows, *, length: np.where(np.arange(length) < lengths[rows][:, None], 5, 0),
    )  # fmt: skip
    stepper: Any = SimpleNamespace(
        process=Process(RankInfo(), torch.device("cpu"), None), total=total,
        objective=SimpleNamespace(fields=(), kinds=("a", "b")), parallel=SimpleNamespace(gradients=lambda loss: {}),
    )  # fmt: skip
    preflight._passes(stepper, SimpleNamespace(train=rows), 6, 8, 1)  # type: ignore[arg-type]
    assert seen == [("a", 8 + 3 + 3 + 8 + 5 + 8, 8), ("b", 8 + 3 + 3 + 8 + 5 + 8, 8)], "the longer text is replaced"


def test_the_first_rank_with_a_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = preflight.Check("disk", "much"), preflight.Check("device", "CPU")

    def everyone(text: str, *, device: torch.device) -> list[str]:
        ranks = [json.loads(text) for _ in range(4)]
        for rank in (1, 3):
            ranks[rank][1] |= {"found": f"broken {rank}", "remedy": f"mend {rank}"}
        return [json.dumps(each) for each in ranks]

    monkeypatch.setattr(preflight.collectives, "gather_texts", everyone)
    process = Process(RankInfo(world=4), torch.device("cpu"), None)
    found = preflight._agreed(list(fine), process)
    assert found[0] == fine[0]
    assert found[1] == preflight.Check("device (rank 1)", "broken 1", "mend 1")
