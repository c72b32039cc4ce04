"""The training loop by hand: roll-backs, the numbers of all ranks, counters, log lines, and the order of a step."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from mm_ldlm.training.losses import Tally
from mm_ldlm.training.tracker import Silent
from parts import ALONE, Heard

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import loop
from mm_ldlm.training.batches import Planned
from mm_ldlm.training.build import build
from mm_ldlm.training.config import GuardConfig
from mm_ldlm.training.guard import Guard, Verdict
from mm_ldlm.training.loop import Agreed
from mm_ldlm.training.state import TrainingState


def test_a_roll_back_keeps_what_was_seen_and_restores_what_was_learned() -> None:
    """Every counter before the roll-back, in the checkpoint, and after it."""
    before = TrainingState(
        step=90, draw=95, epoch=7, batch_in_epoch=8, examples=900, tokens=9000, skipped=9, rollbacks=1, lr_scale=0.5,
        seconds=900.0, ema_updates=81, best=0.9,
    )  # fmt: skip
    saved = TrainingState(
        step=60, draw=61, epoch=4, batch_in_epoch=3, examples=600, tokens=6000, skipped=6, rollbacks=0, lr_scale=1.0,
        seconds=600.0, ema_updates=54, best=0.6,
    )  # fmt: skip
    state = dataclasses.replace(before)

    def restore() -> int:
        for field in dataclasses.fields(saved):
            setattr(state, field.name, getattr(saved, field.name))
        guard.rollbacks = 5
        return 60

    guard, heard = Guard(GuardConfig()), Heard()
    guard.consecutive_skips = 4
    parts: Any = SimpleNamespace(
        state=state, guard=guard, tracker=heard, checkpointer=SimpleNamespace(restore=restore),
        config=SimpleNamespace(guard=GuardConfig(rollback_lr_factor=0.25)),
    )  # fmt: skip
    loop.roll_back(parts, Verdict("rollback", "why"))
    assert state == TrainingState(
        step=60, draw=95, epoch=7, batch_in_epoch=8, examples=600, tokens=6000, skipped=9, rollbacks=2, lr_scale=0.125,
        seconds=900.0, ema_updates=54, best=0.6,
    )  # fmt: skip
    assert (guard.rollbacks, guard.consecutive_skips) == (2, 0)
    assert heard.events == [(90, "rollback", {"to_step": 60, "lr_scale": 0.125, "reason": "why"})]


def test_a_skipped_step_is_counted_and_named() -> None:
    state, heard = TrainingState(step=8, skipped=3), Heard()
    parts: Any = SimpleNamespace(state=state, tracker=heard, guard=SimpleNamespace(consecutive_skips=2))
    planned = Planned(4, 6, np.arange(100, 200), 12, 100, 999)
    loop.skipped(parts, planned, Verdict("skip", "why"))
    assert state.skipped == 4
    ((step, kind, more),) = heard.events
    assert (step, kind) == (7, "skip")
    assert more == {
        "reason": "why", "epoch": 4, "batch": 6, "examples": list(range(100, 164)), "consecutive": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("time", [False, True])
def test_all_ranks_read_the_same_numbers(rank: int, stop: bool, time: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of the other rank are added: loss 2, norm, flags of its own, and a loss that is not finite."""
    tally = Tally()
    one = {"text": (torch.tensor(3.0), torch.tensor(4.0)), "length": (torch.tensor(5.0), torch.tensor(6.0))}
    tally.add(one, torch.tensor(1.0 if rank else math.inf))
    given: list[torch.Tensor] = []

    def sum_(numbers: torch.Tensor) -> torch.Tensor:
        given.append(numbers.clone())
        numbers[torch.isinf(numbers)] = 1.0
        return numbers + torch.tensor([0, 0, 0, 0, 0, 0.25, 2.0, 30.0, 50.0, 40.0, 60.0], dtype=torch.float64)

    monkeypatch.setattr(loop.collectives, "sum_", sum_)
    parts: Any = SimpleNamespace(
        process=Process(RankInfo(rank=rank, world=2), torch.device("cpu"), None), stop_requested=lambda: stop,
        optimization=SimpleNamespace(norm=lambda: torch.tensor(1.5)),
        checkpointer=SimpleNamespace(minutes_over=lambda: time),
    )  # fmt: skip
    found = loop.agree(parts, tally, out_of_time=time)
    main = rank == 0
    assert found == Agreed(
        loss=3.0, losses={"text": (33.0, 44.0), "length": (55.0, 66.0)}, grad_norm=1.0,
        bad_ranks=[0] if main else [], stop=stop, out_of_time=time and main, minutes=time and main,
    )  # fmt: skip
    assert given[0][5].item() == 0.75, "each rank adds its part of the norm"


def test_the_counters_and_lines_of_the_loop(tmp_path: Path) -> None:
    """Six steps on 16 of 40 examples: two batches and a rest in each epoch; every line has its own losses."""
    heard = Heard()
    spec = helpers.spec(
        max_steps=6, log_every=2, validate_every=4, validation_examples=16,
        batch={"examples": 16, "length_multiple": 12}, checkpoint={"every_steps": 4, "background": False},
        model={"depth": 1},
    )  # fmt: skip
    parts = build(spec, root=tmp_path, data=helpers.data(40), process=ALONE, tracker=heard)
    saved: list[tuple[int, dict[str, float]]] = []
    parts.checkpointer.save = lambda line: saved.append((parts.state.step, line))  # type: ignore[method-assign]
    steps: list[float] = []
    parts.alerts.stepped = lambda step, **given: steps.append(given["loss"])  # type: ignore[method-assign]
    assert loop.run(parts) == "finished"
    plan = parts.loader.plan
    batches = [plan.epoch(epoch)[index][0] for epoch in (0, 1) for index in (0, 1, 2)]
    assert [len(batch) for batch in batches] == [16, 16, 8] * 2
    state = parts.state
    assert (state.step, state.draw, state.epoch, state.batch_in_epoch) == (6, 6, 1, 3)
    assert (state.examples, state.ema_updates, state.skipped) == (80, 6, 0)
    assert state.tokens == sum(int(plan.lengths[batch].sum()) for batch in batches)
    assert [(step, line["epoch"], line["batch_in_epoch"]) for step, line in heard.lines] == [
        (2, 0, 1),
        (4, 1, 0),
        (6, 1, 2),
    ]
    assert [step for step, line in heard.lines if "validation/loss" in line] == [4, 6], "and at the end"
    assert [step for step, _ in saved] == [4, 6]
    assert all("validation/loss" in line for _, line in saved)
    assert all(line["lr"] > 0 and line["skipped"] == 0 for _, line in heard.lines)
    means = [sum(steps[at : at + 2]) / 2 for at in (0, 2, 4)]
    assert [line["loss"] for _, line in heard.lines] == pytest.approx(means), "the averages begin anew with each line"


def test_a_pause_and_a_signal_end_the_loop_with_a_checkpoint(tmp_path: Path) -> None:
    spec = helpers.spec(max_steps=6, model={"depth": 1})
    parts = build(spec, root=tmp_path / "a", data=helpers.data(), process=ALONE, tracker=Heard())
    assert loop.run(parts, pause_at=3) == "paused"
    assert parts.state.step == 3
    heard = Heard()
    parts = build(spec, root=tmp_path / "b", data=helpers.data(), process=ALONE, tracker=heard)
    parts.stop_requested = lambda: parts.state.step == 1
    assert loop.run(parts) == "stopped"
    assert parts.state.step == 2
    assert heard.events[-1][1:] == ("ended_early", {"reason": "stop requested"})
    heard = Heard()
    spec = helpers.spec(max_steps=6, max_minutes=1e-9, model={"depth": 1})
    parts = build(spec, root=tmp_path / "c", data=helpers.data(), process=ALONE, tracker=heard)
    assert loop.run(parts) == "finished"
    assert (parts.state.step, heard.events[-1][1]) == (1, "ended_early")
    parts = build(spec, root=tmp_path / "d", data=helpers.data(), process=ALONE, tracker=Heard())
    parts.stop_requested = lambda: True
    assert loop.run(parts) == "stopped", "a signal has priority over the minutes: the same command continues"


def test_the_order_of_a_checkpoint_and_the_lines_after_a_roll_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds and frozen weights come before the checkpoint; of undone steps nothing enters the next line."""
    heard, order = Heard(), []
    spec = helpers.spec(
        max_steps=7, log_every=100, batch={"examples": 16, "length_multiple": 12}, model={"depth": 1},
        checkpoint={"every_steps": 6, "background": False},
    )  # fmt: skip
    parts: Any = build(spec, root=tmp_path, data=helpers.data(48), process=ALONE, tracker=heard)
    judge, seen = parts.guard.judge, []

    def fourth(*, loss: float, **more: Any) -> Verdict:
        seen.append(loss)
        return Verdict("rollback", "why") if len(seen) == 4 else judge(loss=loss, **more)

    parts.guard.judge = fourth
    monkeypatch.setattr(loop, "roll_back", lambda parts, verdict: order.append((parts.state.step, "back")))
    for part, name in ((parts.throughput, "count_seconds"), (parts.diagnostics, "verify_freezing"),
                       (parts.checkpointer, "save"), (parts.diagnostics, "new_epoch")):  # fmt: skip
        monkeypatch.setattr(part, name, lambda *_, name=name: order.append((parts.state.step, name)))
    shown: list[tuple[int, bool]] = []
    parts.preview = lambda step, last: shown.append((step, last))
    assert loop.run(parts) == "finished"
    saves = [(step, name) for step in (6, 7) for name in ("count_seconds", "verify_freezing", "save")]
    of_saves = [each for each in order if each[1] in ("verify_freezing", "save")]
    assert of_saves == [each for each in saves if each[1] != "count_seconds"]
    for step in (6, 7):
        assert (step, "count_seconds") in order[: order.index((step, "save"))]
    assert (4, "back") in order
    assert [step for step, name in order if name == "new_epoch"] == [4, 7], "counted before the epoch is taken over"
    ((step, line),) = heard.lines
    assert step == 7
    assert line["loss"] == pytest.approx(sum(seen[4:]) / 3)
    assert line["skipped"] == 1
    assert shown == [(1, False), (2, False), (3, False), (5, False), (6, False), (7, True)]


def test_a_step_runs_in_the_order_of_its_definition(tmp_path: Path) -> None:
    """Gradients are unscaled before their norm is measured, clipped before the update, and averaged after it."""
    order: list[str] = []

    def noted(name: str, plain: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            order.append(name)
            return plain(*given, **more)

        return call

    parts: Any = build(
        helpers.spec(max_steps=1, model={"depth": 1}, optimizer={"warmup_steps": 0}), root=tmp_path,
        data=helpers.data(), process=ALONE, tracker=Silent(),
    )  # fmt: skip
    parts.stepper.scaler = SimpleNamespace(
        scale=lambda loss: loss, unscale_=lambda optimizer: None, step=lambda optimizer: optimizer.step(),
        update=lambda: None, state_dict=dict,
    )  # fmt: skip
    for name, place, method in (
        ("lr", parts.optimization, "set_lr"), ("passes", parts.stepper, "forward_backward"),
        ("unscale", parts.stepper.scaler, "unscale_"), ("norm", parts.optimization, "norm"),
        ("judge", parts.guard, "judge"), ("clip", parts.optimization, "clip"), ("step", parts.optimization, "step"),
        ("average", parts.ema, "update"), ("scale", parts.stepper.scaler, "update"),
        ("clear", parts.optimization, "drop_gradients"), ("save", parts.checkpointer, "save"),
    ):  # fmt: skip
        setattr(place, method, noted(name, getattr(place, method)))
    assert loop.run(parts) == "finished"
    assert order == ["lr", "passes", "unscale", "norm", "judge", "clip", "step", "average", "scale", "clear", "save"]
    assert all(parameter.grad is None for parameter in parts.stepper.root.parameters())


def test_each_row_of_steps_that_are_not_finite_is_diagnosed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spikes that are skipped are not diagnosed, and a second row is another cause."""
    parts: Any = build(
        helpers.spec(max_steps=6, model={"depth": 1}), root=tmp_path, data=helpers.data(), process=ALONE,
        tracker=Silent(),
    )  # fmt: skip
    rows = iter([(1, True), (2, True), (0, False), (1, False), (0, False), (1, True)])  # skips in a row, not finite

    def judge(**given: Any) -> Verdict:
        parts.guard.consecutive_skips, bad = next(rows)
        return Verdict("skip" if parts.guard.consecutive_skips else "apply", "why", non_finite=bad)

    parts.guard.judge = judge
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(loop, "diagnose", lambda *_, step, draw, **__: found.append((step, draw)))
    parts.state.draw = 10  # as after a roll-back
    assert loop.run(parts) == "finished"
    assert found == [(0, 10), (5, 15)], "with the noise of the step that failed"
    assert (parts.state.skipped, parts.state.ema_updates) == (4, 2)


def test_a_spike_that_is_applied_is_named_and_a_failed_last_checkpoint_ends_the_run(tmp_path: Path) -> None:
    heard = Heard()
    parts: Any = build(
        helpers.spec(max_steps=4, model={"depth": 1}, batch={"examples": 32, "length_multiple": 12}), root=tmp_path,
        data=helpers.data(64), process=ALONE, tracker=heard,
    )  # fmt: skip
    spikes = iter([False, False, True, False])
    parts.guard.judge = lambda **_: Verdict("apply", "why", spike=next(spikes))
    parts.checkpointer.folders = {"tokenizer": tmp_path / "nowhere"}
    with pytest.raises(CheckpointError, match="was deleted or moved during the training"):
        loop.run(parts)
    assert (2, "spike", {"reason": "why", "epoch": 1, "batch": 0}) in heard.events
    assert [kind for _, kind, _ in heard.events].count("spike") == 1
    assert parts.state.ema_updates == 4
