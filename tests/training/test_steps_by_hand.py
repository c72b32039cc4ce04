"""Steps of the loop whose numbers, verdicts and flags are given: what they record, and what a roll-back keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from parts import ALONE, Heard

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import loop
from mm_ldlm.training.batches import Planned
from mm_ldlm.training.build import build
from mm_ldlm.training.guard import Verdict
from mm_ldlm.training.state import TrainingState


def made(root: Path, monkeypatch: pytest.MonkeyPatch, *, agreed: Any = None, **settings: Any) -> Any:
    """The components of a run that computes nothing: the loss of step n is n, unless `agreed` says otherwise."""
    spec = helpers.spec(**{"model": {"depth": 1}, "checkpoint": {"every_steps": None, "background": False}, **settings})
    parts: Any = build(spec, root=root, data=helpers.data(), process=ALONE, tracker=Heard())
    parts.stepper.forward_backward = lambda micros, **_: ("l2t", None)
    parts.optimization.step = lambda scaler: None
    parts.checkpointer.save = lambda line: None
    plain = {"losses": {}, "grad_norm": 1.0, "bad_ranks": [], "stop": False, "out_of_time": False, "minutes": False}
    number = iter(range(1000))

    def agree(of: Any, tally: Any, *, out_of_time: bool) -> loop.Agreed:
        count = next(number)
        return loop.Agreed(**{"loss": float(count), **plain, **(agreed(count) if agreed else {})})

    monkeypatch.setattr(loop, "agree", agree)
    return parts


def test_the_losses_before_a_roll_back_are_in_no_line_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [100.0, 50.0, 3.0, 5.0]
    parts = made(tmp_path, monkeypatch, agreed=lambda n: {"loss": losses[n]}, max_steps=4, log_every=10)
    verdicts = iter(["apply", "rollback", "apply", "apply"])
    parts.guard.judge = lambda **_: Verdict(next(verdicts), "why")
    parts.checkpointer.restore = lambda: 0
    assert loop.run(parts) == "finished"
    ((step, line),) = parts.tracker.lines
    assert (step, line["loss"], line["l2t/loss"]) == (4, 4.0, 4.0)


def test_every_line_has_the_place_of_its_batch_and_a_new_epoch_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 examples in batches of 16 and of one length."""
    parts = made(tmp_path, monkeypatch, max_steps=9, batch={"examples": 16, "length_multiple": 12})
    begun: list[int] = []
    parts.diagnostics.new_epoch = lambda: begun.append(parts.state.step)
    loop.run(parts)
    places = [(line["epoch"], line["batch_in_epoch"]) for _, line in parts.tracker.lines]
    assert places == [(n // 4, n % 4) for n in range(9)]
    assert begun == [5, 9]
    assert (parts.state.epoch, parts.state.batch_in_epoch) == (2, 1)
    assert [line["loss"] for _, line in parts.tracker.lines] == [float(n) for n in range(9)]
    assert {line["mode"] for _, line in parts.tracker.lines} == {"l2t"}


def test_operations_are_counted_once_in_a_session_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = made(tmp_path, monkeypatch, max_steps=9, diagnose_every=2)
    parts.state.step = 4
    counted: list[int] = []

    def count(stepper: Any, batch: Any) -> None:
        counted.append(parts.state.step)
        parts.diagnostics.flops_per_token = 1.0

    parts.diagnostics.count_flops = count
    loop.run(parts)
    assert counted == [5]


@pytest.mark.parametrize(("pause_at", "ending", "last"), [(3, "paused", 0), (None, "finished", 5), (9, "finished", 5)])
def test_a_sentence_may_come_after_every_step_and_comes_after_the_last_of_the_run(
    pause_at: int | None, ending: str, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = made(tmp_path, monkeypatch, max_steps=5)
    shown: list[tuple[int, bool]] = []
    parts.preview = lambda step, *, last: shown.append((step, last))
    assert loop.run(parts, pause_at=pause_at) == ending
    assert shown == [(step, step == last) for step in range(1, min(pause_at or 5, 5) + 1)]


@pytest.mark.parametrize(
    ("flags", "ending", "reason"),
    [
        ({"stop": True}, "stopped", "stop requested"),
        ({"stop": True, "out_of_time": True}, "stopped", "stop requested"),
        ({"out_of_time": True}, "finished", "max_minutes (3.0) have passed"),
    ],
)  # fmt: skip
def test_a_signal_comes_before_the_end_of_the_time(
    flags: dict[str, bool], ending: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = made(tmp_path, monkeypatch, agreed=lambda n: flags if n == 1 else {}, max_steps=5, max_minutes=3.0)
    saved: list[int] = []
    order: list[str] = []
    parts.checkpointer.save = lambda line: (saved.append(parts.state.step), order.append("save"))
    parts.diagnostics.verify_freezing = lambda: order.append("verify")
    assert loop.run(parts) == ending
    assert (saved, order) == ([2], ["verify", "save"])
    assert parts.tracker.events[-1] == (2, "ended_early", {"reason": reason})


# -- what all ranks agree on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("loss", "bad"), [(1.5, []), (float("nan"), [1]), (float("inf"), [1]), (-float("inf"), [1])])
def test_only_the_clock_of_the_first_rank_counts_and_every_rank_reports_its_loss(
    rank: int, loss: float, bad: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in the sum: the norm is a half of it on each of two ranks, which have the same."""
    monkeypatch.setattr(loop.collectives, "sum_", lambda numbers: numbers)
    tally = loop.Tally()
    tally.add({"text": (torch.tensor(6.0), torch.tensor(2.0))}, torch.tensor(loss))
    parts: Any = SimpleNamespace(
        process=Process(RankInfo(rank=rank, world=2), torch.device("cpu"), None), stop_requested=lambda: rank == 1,
        optimization=SimpleNamespace(norm=lambda: torch.tensor(4.0)),
        checkpointer=SimpleNamespace(minutes_over=lambda: True),
    )  # fmt: skip
    found = loop.agree(parts, tally, out_of_time=True)
    assert found == loop.Agreed(
        loss=pytest.approx(loss, nan_ok=True), losses={"text": (6.0, 2.0)}, grad_norm=2.0,  # type: ignore[arg-type]
        bad_ranks=[rank] if bad else [], stop=rank == 1, out_of_time=rank == 0, minutes=rank == 0,
    )  # fmt: skip


def test_a_skipped_step_is_recorded_with_its_batch_and_its_first_examples() -> None:
    heard = Heard()
    parts: Any = SimpleNamespace(
        state=TrainingState(step=8, skipped=3), tracker=heard, guard=SimpleNamespace(consecutive_skips=2)
    )
    planned = Planned(4, 6, np.arange(500, 600), 12, 100, 700)
    loop.skipped(parts, planned, Verdict("skip", "loss is nan"))
    assert parts.state == TrainingState(step=8, skipped=4)
    assert heard.events == [
        (7, "skip", {"reason": "loss is nan", "epoch": 4, "batch": 6, "examples": list(range(500, 564)),
                     "consecutive": 2})
    ]  # fmt: skip


def test_a_roll_back_restores_the_step_and_keeps_data_counts_and_time() -> None:
    before = TrainingState(
        step=41, draw=43, epoch=5, batch_in_epoch=7, examples=600, tokens=7000, skipped=9, rollbacks=1, lr_scale=0.5,
        seconds=88.0, ema_updates=30, best=0.25,
    )  # fmt: skip
    saved = TrainingState(
        step=20, draw=20, epoch=2, batch_in_epoch=3, examples=300, tokens=3500, skipped=4, rollbacks=0, lr_scale=1.0,
        seconds=40.0, ema_updates=16, best=0.75,
    )  # fmt: skip
    state, rolled, heard = dataclasses.replace(before), list[int](), Heard()

    def restore() -> int:
        for name, value in saved.to_dict().items():
            setattr(state, name, value)
        guard.rollbacks = 0
        return 20

    guard = SimpleNamespace(rollbacks=1, rolled_back=lambda: rolled.append(guard.rollbacks))
    parts: Any = SimpleNamespace(
        state=state, guard=guard, tracker=heard, checkpointer=SimpleNamespace(restore=restore),
        config=SimpleNamespace(guard=SimpleNamespace(rollback_lr_factor=0.25)),
    )  # fmt: skip
    loop.roll_back(parts, Verdict("rollback", "too many skips"))
    assert state == dataclasses.replace(
        saved, draw=43, epoch=5, batch_in_epoch=7, skipped=9, seconds=88.0, rollbacks=2, lr_scale=0.125
    )
    assert rolled == [1], "the guard counts on from the roll-backs before"
    assert heard.events == [(41, "rollback", {"to_step": 20, "lr_scale": 0.125, "reason": "too many skips"})]
