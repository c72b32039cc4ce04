"""When a checkpoint is due, what waits for it, and which pointers follow, with parts that are made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parts import ALONE, Heard
from torch import nn

from mm_ldlm.training import checkpointer
from mm_ldlm.training.checkpointer import Checkpointer
from mm_ldlm.training.config import CheckpointConfig
from mm_ldlm.training.state import TrainingState


def made(directory: Path, **config: Any) -> Any:
    """A checkpointer of one weight, without averages and optimizer states."""
    return Checkpointer(
        directory, CheckpointConfig(**{"background": False, **config}), root=nn.Linear(1, 1),
        ema=SimpleNamespace(values={}),  # type: ignore[arg-type]
        optimization=SimpleNamespace(tensors=dict, describe=list), guard=SimpleNamespace(to_dict=dict),  # type: ignore[arg-type]
        state=TrainingState(), scaler=None, process=ALONE, identity={"model": 1}, session={"seed": 2}, folders={},
        tracker=Heard(),
    )  # fmt: skip


@pytest.mark.parametrize(("every", "steps"), [(None, []), (2.0, [13, 26])])
def test_minutes_are_counted_from_the_last_checkpoint(
    every: float | None, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes ten seconds: two minutes have passed with the 12th, and are over with the 13th."""
    now = [50.0]
    monkeypatch.setattr(checkpointer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    saves, saved = made(tmp_path, every_steps=None, every_minutes=every), list[int]()
    for step in range(1, 30):
        now[0] += 10.0
        if saves.due(step, saves.minutes_over()):
            saves.state.step = step
            saves.save({})
            saved.append(step)
    assert saved == steps


def test_the_latest_checkpoint_is_named_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves, order = made(tmp_path), list[str]()
    saves.state.step = 3
    saves.save({})
    pointer = checkpointer.folder.pointer
    monkeypatch.setattr(saves._writer, "wait", lambda: order.append("wait"))
    monkeypatch.setattr(
        checkpointer.folder, "pointer", lambda *given: (order.append(f"reads {given[1]}"), pointer(*given))[1]
    )
    assert saves.latest() == str(tmp_path / "step-00000003")
    assert order == ["wait", "reads latest"]


def test_the_first_value_of_a_metric_is_its_best_and_only_a_better_one_replaces_it(tmp_path: Path) -> None:
    for best_is, values, best in (("min", (3.0, 4.0, 3.0, 2.0, 9.0), 4), ("max", (3.0, 2.0, 3.0, 4.0, 1.0), 4)):
        saves = made(tmp_path / best_is, best_metric="m", best_is=best_is, every_steps=1, keep_last=9)
        for step, value in enumerate(values, start=1):
            saves.state.step = step
            saves.save({"m": value, "other": -value})
            pointed = (tmp_path / best_is / "best").read_text()
            assert pointed == f"step-0000000{1 if step < best else best}\n"
        assert saves.state.best == values[best - 1]
    saves = made(tmp_path / "none")
    saves.save({"m": 1.0})
    assert (saves.state.best, (tmp_path / "none" / "best").exists()) == (None, False)


def test_a_copy_on_the_cpu_shares_no_memory_and_no_graph() -> None:
    weight = torch.ones(2, requires_grad=True)
    (found,) = checkpointer._snapshot({"w": weight * 1}).values()
    (same,) = checkpointer._snapshot({"w": weight}).values()
    assert (found.requires_grad, same.data_ptr() == weight.data_ptr()) == (False, False)
    placed = checkpointer._placed_like(
        torch.zeros(2, dtype=torch.float32), torch.tensor([1.5, 2.5], dtype=torch.float64)
    )
    assert (placed.dtype, placed.tolist()) == (torch.float64, [1.5, 2.5]), "a state keeps its precision"
