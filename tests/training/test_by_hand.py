"""Decisions and sums of training by hand: the guard, a roll-back, the loop's counters, losses, and names of runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch

from mm_ldlm.config import parse, parse_kind, to_dict
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.tracking.base import Silent
from mm_ldlm.training import loop, preflight, resuming, throughput
from mm_ldlm.training.alerts import UNDERFLOW, WINDOW, ZERO_DIAGNOSES, ZERO_STEPS, Alerts
from mm_ldlm.training.batches import BatchPlan, Planned
from mm_ldlm.training.build import build
from mm_ldlm.training.config import BatchConfig, CheckpointConfig, EmaConfig, GuardConfig, TrainingConfig
from mm_ldlm.training.diagnostics import Diagnostics
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.guard import Guard, Verdict
from mm_ldlm.training.loop import Agreed
from mm_ldlm.training.losses import Averages, Tally, total
from mm_ldlm.training.spec import _FREE, TrainingSpec
from mm_ldlm.training.state import TrainingState
from mm_ldlm.training.validation import Subset, Validation

ALONE = Process(RankInfo(), torch.device("cpu"), None)


# -- the guard -------------------------------------------------------------------------------------------------------


def filled(**settings: Any) -> Guard:
    """A guard whose windows have the median 10 and the median absolute deviation 2 (loss), 1 and 0.5 (norm)."""
    guard = Guard(GuardConfig(spike_window=8, **settings))
    for loss, norm in ((6, 0.0), (8, 0.5), (8, 0.5), (10, 1.0), (10, 1.0), (12, 1.5), (12, 1.5), (14, 2.0)):
        guard._admit("a/loss", loss)
        guard._admit("a/gradient norm", norm)
    return guard


@pytest.mark.parametrize(
    ("loss", "norm", "named"),
    [
        (10 + 4 * 1.4826 * 2 - 0.01, 1.0, []), (10 + 4 * 1.4826 * 2 + 0.01, 1.0, ["loss"]),
        (10.0, 1 + 4 * 1.4826 * 0.5 - 0.01, []), (10.0, 1 + 4 * 1.4826 * 0.5 + 0.01, ["gradient norm"]),
        (1e3, 1e3, ["loss", "gradient norm"]), (-1e3, 0.0, []),
    ],
)  # fmt: skip
def test_a_spike_is_so_many_robust_standard_deviations_above_the_median(
    loss: float, norm: float, named: list[str]
) -> None:
    verdict = filled(spike_z=4.0).judge(kind="a", loss=loss, grad_norm=norm, bad_ranks=[])
    assert verdict.spike == bool(named)
    assert verdict.action == "apply"
    assert [name for name in ("loss", "gradient norm") if f"{name} " in verdict.reason] == named


def test_equal_losses_have_a_spread_of_a_hundredth_of_their_median() -> None:
    for loss, spike in ((5.0 + 10 * 0.05 - 0.001, False), (5.0 + 10 * 0.05 + 0.001, True)):
        guard = Guard(GuardConfig(spike_window=8))
        for _ in range(8):
            guard._admit("a/loss", 5.0)
        assert guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]).spike == spike


def test_the_window_holds_the_last_steps_spikes_included() -> None:
    guard = filled()
    guard.judge(kind="a", loss=500.0, grad_norm=7.0, bad_ranks=[])
    windows = guard.to_dict()["windows"]
    assert windows["a/loss"] == [8, 8, 10, 10, 12, 12, 14, 500.0]
    assert windows["a/gradient norm"][-1] == 7.0


def test_only_spikes_in_a_row_are_divergence_and_only_skips_in_a_row() -> None:
    guard = filled(spike_patience=2)
    actions = [
        guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]).action for loss in (1e3, 10, 1e6, 10, 1e9, 1e12)
    ]
    assert actions == ["apply"] * 5 + ["rollback"]
    guard = filled(spike_action="skip", max_consecutive_skips=2)
    judge = [guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]) for loss in (1e3, 10, 1e6, 1e9)]
    assert [(verdict.action, verdict.spike) for verdict in judge] == [
        ("skip", True), ("apply", False), ("skip", True), ("rollback", True)
    ]  # fmt: skip
    assert "2 steps skipped in a row" in judge[-1].reason
    assert not judge[-1].non_finite


def test_an_applied_spike_ends_a_row_of_skips() -> None:
    guard = filled(max_consecutive_skips=2)
    values = [(math.nan, 1.0), (1e6, 1.0), (math.nan, 1.0), (1.0, math.inf)]
    found = [guard.judge(kind="a", loss=loss, grad_norm=norm, bad_ranks=[]) for loss, norm in values]
    assert [verdict.action for verdict in found] == ["skip", "apply", "skip", "rollback"]
    assert [verdict.non_finite for verdict in found] == [True, False, True, True]


@pytest.mark.parametrize(("rollbacks", "action"), [(0, "rollback"), (1, "rollback"), (2, "stop"), (3, "stop")])
def test_the_roll_back_after_the_last_stops(rollbacks: int, action: str) -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=1, max_rollbacks=2))
    guard.rollbacks = rollbacks
    verdict = guard.judge(kind="a", loss=1.0, grad_norm=1.0, bad_ranks=[0, 2])
    assert (verdict.action, verdict.non_finite) == (action, True)
    assert "(rank 0, 2)" in verdict.reason
    guard.rolled_back()
    assert guard.rollbacks == rollbacks + 1
    assert (guard.consecutive_skips, guard.consecutive_spikes, guard.consecutive_overflows) == (0, 0, 0)


# -- the loop --------------------------------------------------------------------------------------------------------


class Heard(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.lines: list[tuple[int, dict[str, Any]]] = []

    def event(self, step: int, kind: str, **more: Any) -> None:
        self.events.append((step, kind, more))

    def metrics(self, step: int, values: Any) -> None:
        self.lines.append((step, dict(values)))


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


# -- losses ----------------------------------------------------------------------------------------------------------


def test_the_total_divides_each_loss_by_its_global_count_and_weighs_it() -> None:
    objective: Any = SimpleNamespace(weights={"a": 2.0, "b": 0.5, "c": 0.0, "d": 3.0},
                                     units={"a": "tokens", "b": "examples", "c": "tokens", "d": "tokens"})  # fmt: skip
    batch: Any = SimpleNamespace(normaliser=lambda unit: {"tokens": 40, "examples": 0}[unit])
    count = torch.tensor(7.0)
    losses = {"a": (torch.tensor(10.0), count), "b": (torch.tensor(6.0), count), "c": (torch.tensor(math.inf), count)}
    assert total(losses, objective, batch).item() == pytest.approx(2 * 10 / 40 + 0.5 * 6 / 1)


def test_averages_are_ratios_of_sums_for_all_and_for_each_kind() -> None:
    averages = Averages()
    averages.add("x", 1.0, {"text": (6.0, 2.0), "none": (0.0, 0.0)})
    averages.add("y", 4.0, {"text": (6.0, 4.0)})
    averages.add("y", 7.0, {"text": (0.0, 4.0)})
    assert averages.take() == pytest.approx({
        "loss": 4.0, "x/loss": 1.0, "y/loss": 5.5, "text": 1.2, "x/text": 3.0, "y/text": 0.75
    })  # fmt: skip
    assert averages.take() == {}


def test_a_tally_adds_micro_batches() -> None:
    tally = Tally()
    for factor in (1.0, 10.0):
        pair = (torch.tensor(2.0) * factor, torch.tensor(3.0) * factor)
        tally.add({"a": pair, "b": (pair[1], pair[0])}, torch.tensor(5.0) * factor)
    assert tally.tensor().tolist() == [55.0, 22.0, 33.0, 33.0, 22.0]
    assert tally.split([55.0, 22.0, 33.0, 44.0, 66.0]) == (55.0, {"a": (22.0, 44.0), "b": (33.0, 66.0)})


class _Objective(SimpleNamespace):
    def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        count = batch.real_B.sum().double()
        values = {"a": (2.0, 5.0), "b": (3.0, 7.0)}[kind]
        one = {"text": (values[0] * count, count), "length": (values[1] * count, count)}
        return one if kind == "a" else {**one, "rare": (0.0 * count, 0.0 * count)}


class Root(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)
        self.objective = _Objective(kinds=("a", "b"), fields=(), weights={"text": 2.0, "length": 0.5, "absent": 9.0})


def test_the_validation_loss_is_the_mean_over_kinds_of_the_weighted_losses() -> None:
    root: Any = Root()
    validation = Validation(
        helpers.Rows(20), root, Ema(root, EmaConfig()), ALONE, batch=BatchConfig(examples=4), examples=10,  # type: ignore[arg-type]
        seed=0, max_length=helpers.LONGEST, fill=True,
    )  # fmt: skip
    found = validation(3)
    assert found == pytest.approx({
        "loss": ((2 * 2 + 0.5 * 5) + (2 * 3 + 0.5 * 7)) / 2, "a/text": 2.0, "a/length": 5.0, "b/text": 3.0,
        "b/length": 7.0,
    })  # fmt: skip


def test_the_subset_of_the_validation_is_drawn_once() -> None:
    rows: Any = helpers.Rows(50)
    one, again, other = (Subset(rows, 20, seed=seed) for seed in (3, 3, 4))
    assert one.examples.tolist() == again.examples.tolist() == sorted(one.examples.tolist())
    assert one.examples.tolist() != other.examples.tolist()
    assert len(set(one.examples.tolist())) == 20
    assert one.lengths.tolist() == rows.lengths[one.examples].tolist()
    some = np.array([4, 2])
    assert (one.tokens(some, length=12) == rows.tokens(one.examples[some], length=12)).all()
    assert (one.field("latents", some) == rows.field("latents", one.examples[some])).all()
    assert len(Subset(rows, 99, seed=0).examples) == 50


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "multiple", "length", "size"),
    [
        (100, 8, 12, 8),
        (96, 8, 12, 8),
        (95, 8, 12, 8),
        (192, 8, 12, 16),
        (191, 8, 12, 8),
        (10, 8, 12, 8),
        (100, 1, 12, 8),
    ],
)
def test_the_examples_of_a_budget_of_tokens(tokens: int, multiple: int, length: int, size: int) -> None:
    config = BatchConfig(tokens=tokens, example_multiple=multiple)
    assert BatchPlan(np.array([5]), config, seed=0, max_length=12).size_of(length) == size


@pytest.mark.parametrize(("length", "padded"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, 10), (10, 10)])
def test_lengths_are_padded_to_a_multiple_within_the_model(length: int, padded: int) -> None:
    plan = BatchPlan(np.array([length]), BatchConfig(examples=1, length_multiple=4), seed=0, max_length=10)
    assert plan.padded(length) == padded
    assert plan.shapes() == [(1, padded)]


# -- alerts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "heard"), [(ZERO_STEPS - 1, 0), (ZERO_STEPS, 1)])
def test_so_many_steps_without_a_gradient_are_an_alert(steps: int, heard: int) -> None:
    tracker = Heard()
    watch = Alerts(tracker)
    for step in range(steps):
        watch.stepped(step, kind="a", loss=1.0 + step, grad_norm=0.0)
    assert len(tracker.events) == heard


@pytest.mark.parametrize(
    ("line", "count", "heard"),
    [({"grad_zeros/x": 1.0}, ZERO_DIAGNOSES - 1, 0), ({"grad_zeros/x": 1.0}, ZERO_DIAGNOSES, 1),
     ({"grad_zeros/x": 0.99}, 9, 0), ({"fp16_underflow": UNDERFLOW}, 1, 0),
     ({"fp16_underflow": UNDERFLOW + 0.01}, 1, 1)],
)  # fmt: skip
def test_limits_of_diagnosed_steps(line: dict[str, float], count: int, heard: int) -> None:
    tracker = Heard()
    watch = Alerts(tracker)
    for step in range(count):
        watch.diagnosed(step, line)
    assert len(tracker.events) == heard


@pytest.mark.parametrize(("fall", "heard"), [(0.9, ["stalled_loss/a"]), (1.1, [])])
def test_a_loss_falls_where_its_means_differ_by_more_than_their_errors(fall: float, heard: list[str]) -> None:
    """Losses alternate between the mean ± 1, so the error of a mean is 1 / √WINDOW."""
    tracker = Heard()
    watch = Alerts(tracker)
    difference = fall * math.sqrt(2 / WINDOW)
    for step in range(2 * WINDOW):
        mean = 5.0 if step < WINDOW else 5.0 - difference
        watch.stepped(step, kind="a", loss=mean + (1 if step % 2 else -1), grad_norm=1.0)
    assert [more["name"] for _, _, more in tracker.events] == heard


# -- names of runs ---------------------------------------------------------------------------------------------------


def changed(value: Any, name: str) -> Any:
    """Another value that the option accepts."""
    choices = {
        "device": "cuda:1", "parallel": "fsdp", "resume": "never", "init_from": "run-x", "run_name": "other",
        "seed": 5, "name": "muon", "schedule": "linear", "autocast": "bf16", "spike_action": "skip", "best_is": "max",
        "betas": [0.8, 0.9], "best_metric": "loss", "max_minutes": 3.0, "validation_batch": 4, "keep_every": 50,
        "job": "j", "every_steps": 20, "every_minutes": 7, "clip": 0.5, "epochs": 3, "max_tokens": 999,
        "show_every_seconds": 9.0, "init_vocabulary": None, "tokens": None, "tokens_per_device": None,
        "examples_per_device": None,
    }  # fmt: skip
    if name in choices:
        return choices[name]
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2


OF_THE_RESULT = {
    "batch": {"examples", "accumulation", "length_multiple", "example_multiple"},
    "optimizer": {"name", "lr", "betas", "eps", "weight_decay", "muon_lr", "muon_momentum", "schedule", "warmup_steps",
                  "min_lr_ratio", "clip"},
    "ema": {"enabled", "decay"},
    "precision": {"autocast", "tf32", "compile", "detect_anomaly"},
    "guard": {"max_consecutive_skips", "max_rollbacks", "rollback_lr_factor", "spike_z", "spike_window", "spike_action",
              "spike_patience"},
}  # fmt: skip
"""Options of the sections of training that determine the result, and so the name of the run."""


def test_the_name_of_a_run_follows_every_option_that_determines_its_result_and_no_other() -> None:
    spec = helpers.spec(run_name=None, optimizer={"warmup_steps": 2}, diagnose_every=5)
    plain = to_dict(spec.training)
    followed = set()
    for key, value in plain.items():
        if key in ("launch", "checkpoint"):
            continue
        for name, inner in (value if isinstance(value, dict) else {key: value}).items():
            if (other := changed(inner, name)) is None:
                continue
            settings = {**plain, key: {**value, name: other}} if isinstance(value, dict) else {**plain, key: other}
            training = parse(TrainingConfig, settings, at="training")
            same = dataclasses.replace(spec, training=training).fingerprint == spec.fingerprint
            determines = name in OF_THE_RESULT[key] if key in OF_THE_RESULT else key not in _FREE
            assert same != determines, f"{key}.{name}"
            followed |= set() if same else {key}
    assert followed == {*OF_THE_RESULT, "max_steps", "validate_every", "validation_examples", "validation_batch",
                        "init_from"}  # fmt: skip
    for more in ({"seed": 8}, {"fingerprints": {"tokenizer": "u"}}):
        assert dataclasses.replace(spec, **more).fingerprint != spec.fingerprint  # type: ignore[arg-type]
    objective = to_dict(spec.objective)
    for process, same in (({"loss_weighting": "constant"}, False), ({"loss_weighting": "elbo"}, True)):
        other = parse_kind(OBJECTIVES, objective | {"process": objective["process"] | process}, at="objective")
        assert (dataclasses.replace(spec, objective=other).fingerprint == spec.fingerprint) is same
    for more in ({"dataset": "elsewhere"}, {"tracking": {"a": 1}}, {"encoder": {"name": "b"}}):
        assert dataclasses.replace(spec, **more).fingerprint == spec.fingerprint  # type: ignore[arg-type]
    assert spec.name == f"run-{spec.fingerprint[:12]}"


def test_every_field_of_a_spec_comes_back() -> None:
    spec = dataclasses.replace(
        helpers.spec(seed=11, max_minutes=3.0), encoder={"name": "e"}, tracking={"run_id": "r"}, dataset="elsewhere"
    )
    again = TrainingSpec.from_dict(spec.to_dict())
    assert again == spec
    assert spec.to_dict()["name"] == "run"
    assert {field.name for field in dataclasses.fields(spec)} <= spec.to_dict().keys()


# -- resuming, preflight, throughput ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("best_is", "name", "value"), [("min", "step-00000020", 1.0), ("max", "step-00000010", 3.0)])
def test_the_best_checkpoint_up_to_a_step(
    best_is: Any, name: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {10: {"m": 3.0}, 20: {"m": 1.0}, 30: {"other": 0.0}, 40: {"m": 2.0}, 50: {"m": 9.0}, 60: {"m": 0.5}}
    monkeypatch.setattr(resuming.folder, "all_in", lambda path: [path / f"step-{step:08}" for step in metrics])
    monkeypatch.setattr(
        resuming.folder, "document", lambda path, file: {"metrics": metrics[resuming.folder.step_of(path)]}
    )
    config = CheckpointConfig(best_metric="m", best_is=best_is)
    assert resuming._best(tmp_path, config, upto=40) == (name, value)
    assert resuming._best(tmp_path, config, upto=10) == ("step-00000010", 3.0), "the step itself counts"
    assert resuming._best(tmp_path, config, upto=5) == (None, None)
    assert [path.name for path in resuming.later(tmp_path / "step-00000040")] == ["step-00000050", "step-00000060"]


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


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12),
     ("NVIDIA A10G", 70e12), ("NVIDIA A10", 125e12), ("NVIDIA L40S", 362e12), ("NVIDIA L4", 121e12), ("Radeon", None),
     ("NVIDIA B200", 2250e12), ("NVIDIA H200 NVL", 835e12), ("NVIDIA H200", 989e12), ("NVIDIA H100 NVL", 835e12),
     ("NVIDIA L40", 181e12), ("NVIDIA GeForce RTX 4090", 165e12), ("NVIDIA A40", 150e12), ("NVIDIA A30", 165e12),
     ("Tesla T4", 65e12)],
)  # fmt: skip
def test_the_peak_of_a_gpu_is_that_of_the_first_fitting_name(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert throughput.peak_flops(torch.device("cuda")) == peak
    assert throughput.peak_flops(torch.device("cpu")) is None


def test_diagnosed_steps_are_the_first_and_every_so_many() -> None:
    made = [Diagnostics(every, Root(), compiled=False, scaler=None, device=torch.device("cpu")) for every in (0, 3)]  # type: ignore[arg-type]
    assert [step + 1 for step in range(9) if made[1].due(step)] == [1, 3, 6, 9]
    assert not any(made[0].due(step) for step in range(9))


# -- what reads each parameter ---------------------------------------------------------------------------------------

SET: dict[str, Any] = {
    "max_steps": 84, "max_minutes": 33.0, "diagnose_every": 5, "parameter_gradients": True, "validate_every": 6,
    "validation_examples": 11, "validation_batch": 3, "log_every": 3,
    "batch": {"examples": 16, "accumulation": 2, "length_multiple": 6, "example_multiple": 4, "prefetch": 3},
    "optimizer": {"lr": 7e-4, "betas": [0.81, 0.72], "eps": 3e-5, "weight_decay": 0.31, "schedule": "linear",
                  "warmup_steps": 9, "min_lr_ratio": 0.23, "clip": 0.37},
    "ema": {"decay": 0.77},
    "precision": {"tf32": True},
    "guard": {"max_consecutive_skips": 6, "max_rollbacks": 4, "rollback_lr_factor": 0.4, "spike_z": 8.5,
              "spike_window": 64, "spike_action": "skip", "spike_patience": 21},
    "checkpoint": {"every_steps": 12, "every_minutes": 9.0, "keep_last": 4, "keep_every": 24,
                   "best_metric": "validation/loss", "best_is": "max", "background": False},
}  # fmt: skip
"""Values that differ from every default and from one another."""


@pytest.fixture
def _tf32_as_found() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_tf32_as_found")
@pytest.mark.parametrize("rank", [0, 1])
def test_every_parameter_reaches_the_part_that_reads_it(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built as one rank of two, without a group: DDP is left out."""
    monkeypatch.setattr(
        "mm_ldlm.training.build.Parallel",
        lambda inner, process, *, strategy: SimpleNamespace(inner=inner, module=inner, strategy=strategy),
    )
    spec = helpers.spec(seed=99, model={"depth": 1}, **SET)
    process = Process(RankInfo(rank=rank, world=2), torch.device("cpu"), None)
    parts: Any = build(spec, root=tmp_path, data=helpers.data(), process=process, tracker=Silent())
    given = spec.training
    (adamw,) = parts.optimization.optimizers.values()
    assert {(group["betas"], group["eps"]) for group in adamw.param_groups} == {((0.81, 0.72), 3e-5)}
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.31, 0.0}
    assert (parts.optimization.config, parts.optimization.max_steps) == (given.optimizer, 84)
    assert parts.optimization.set_lr(83, scale=0.5) == pytest.approx(7e-4 * (0.23 + 0.77 / 75) * 0.5)
    assert (parts.ema.config.decay, parts.guard.config, parts.config) == (0.77, given.guard, given)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (True, True)
    assert (parts.stepper.seed, parts.stepper.parallel.strategy) == (99, "ddp")
    loader, validation = parts.loader, parts.validate
    assert (loader.plan.config, loader.plan.seed, loader.plan.max_length) == (given.batch, 99, helpers.LONGEST)
    assert (loader.rank, loader.world, loader.fill, loader.pin) == (rank, 2, False, False)
    assert loader.source is not validation.loader.source.source
    assert validation.plan.config == dataclasses.replace(given.batch, examples=3, accumulation=1)
    assert (len(validation.plan.lengths), validation.seed, validation.plan.max_length) == (11, 99, helpers.LONGEST)
    assert (validation.loader.rank, validation.loader.world, validation.ema) == (rank, 2, parts.ema)
    saves = parts.checkpointer
    assert (saves.config, saves.directory) == (given.checkpoint, tmp_path / "run" / "checkpoints")
    assert (saves._writer.keep_last, saves._writer.keep_every, saves._writer.background) == (4, 24, False)
    assert (saves.session["seed"], saves.session["world"], saves.session["max_steps"]) == (99, 2, 84)
    assert saves.session["optimizer"] == to_dict(given.optimizer)
    assert saves.session["batch"] == to_dict(given.batch)
    watch = parts.diagnostics
    assert (watch.every, watch.gradients, watch.writes, watch.compiled) == (5, tmp_path / "run", rank == 0, False)
    assert (parts.throughput.max_steps, parts.throughput.max_minutes) == (84, 33.0)
    assert parts.preview is None, "data in memory have no tokenizer"


def test_the_order_of_a_checkpoint_and_the_lines_after_a_roll_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds and frozen weights come before the checkpoint; of undone steps nothing enters the next line."""
    heard, order = Heard(), []
    spec = helpers.spec(
        max_steps=7, log_every=7, batch={"examples": 16, "length_multiple": 12}, model={"depth": 1},
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
