"""What a run keeps and measures: averaged weights, the warm-up of the averages, and every counter at a resume."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from mm_ldlm.training.tracker import Silent
from torch import nn

from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import preflight
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import BatchConfig, EmaConfig, GuardConfig
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.guard import Guard
from mm_ldlm.training.state import TrainingState
from mm_ldlm.training.validation import Validation

ALONE = Process(RankInfo(), torch.device("cpu"), None)


class _Objective(SimpleNamespace):
    def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        count = batch.valid_BL.sum()
        return {"loss": (model.weight.detach().sum() * count, count)}


class Root(nn.Module):
    """One weight, which is its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1, bias=False)
        self.objective = _Objective(kinds=("a",), fields=(), weights={"loss": 1.0})


def test_validation_and_so_best_measure_the_averaged_weights() -> None:
    root = Root()
    ema = Ema(root, EmaConfig(decay=0.5))
    with torch.no_grad():
        root.model.weight.fill_(2.0)
        ema.values["model.weight"].fill_(5.0)
    validation = Validation(
        helpers.Rows(8), root, ema, ALONE, batch=BatchConfig(examples=4), examples=8, seed=0,  # type: ignore[arg-type]
        max_length=helpers.LONGEST, fill=False,
    )  # fmt: skip
    root.train()
    assert validation(3)["loss"] == pytest.approx(5.0)
    assert root.model.weight.item() == 2.0, "the weights that train come back"
    assert root.training


def test_the_noise_of_validation_is_that_of_the_seed_and_the_kind_at_every_step() -> None:
    """The loss of this objective is its noise, so two passes agree only if their noise does."""

    class Noise(_Objective):
        def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
            return {"loss": (generator.uniform().sum(), torch.tensor(len(generator)))}

    def losses(seed: int, *steps: int) -> list[dict[str, float]]:
        root = Root()
        root.objective = Noise(kinds=("a", "b"), fields=(), weights={"loss": 1.0})
        validation = Validation(
            helpers.Rows(8), root, Ema(root, EmaConfig()), ALONE, batch=BatchConfig(examples=4), examples=8,
            seed=seed, max_length=helpers.LONGEST, fill=False,  # type: ignore[arg-type]
        )  # fmt: skip
        return [validation(step) for step in steps]

    first, again, later = losses(1, 3, 3, 700)
    assert first == again == later
    assert first["a/loss"] != first["b/loss"]
    assert losses(2, 3)[0]["a/loss"] != first["a/loss"]


@pytest.mark.parametrize("decay", [0.15, 0.9, 0.9999])
def test_the_average_has_a_warm_up(decay: float) -> None:
    """Of a weight that jumps from 0 to 1, 1 − Π min(decay, (1 + n)/(10 + n)) has arrived after some updates."""
    made = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        made.weight.fill_(0.0)
    ema = Ema(made, EmaConfig(decay=decay))
    with torch.no_grad():
        made.weight.fill_(1.0)
    left = 1.0
    for update in range(20):
        ema.update(update)
        left *= min(decay, (1 + update) / (10 + update))
        assert ema.values["weight"].item() == pytest.approx(1 - left, abs=1e-5), update
    assert decay < 0.9 or left < 1e-3, "without the warm-up the initial weights would still weigh most"


def other_than_default(value: Any, number: int) -> Any:
    """A value of the same type that differs from every default and from that of other fields."""
    return number + 0.5 if isinstance(value, float) or value is None else number + 100


def test_every_counter_of_guard_and_state_comes_back() -> None:
    guard, again = Guard(GuardConfig(spike_window=8)), Guard(GuardConfig(spike_window=8))
    plain = guard.to_dict()
    for number, name in enumerate(sorted(plain)):
        plain[name] = {"a/loss": [1.0, 2.5], "b/loss": [3.0]} if name == "windows" else number + 2
    assert all(value != Guard(GuardConfig()).to_dict()[name] for name, value in plain.items())
    again.load(json.loads(json.dumps(plain)))
    assert again.to_dict() == plain
    counters = {name for name, value in vars(Guard(GuardConfig())).items() if isinstance(value, int)}
    assert counters == plain.keys() - {"windows"}, "a new counter is kept too"
    made = {
        field.name: other_than_default(getattr(TrainingState(), field.name), number)
        for number, field in enumerate(dataclasses.fields(TrainingState))
    }
    assert TrainingState.from_dict(json.loads(json.dumps(TrainingState(**made).to_dict()))) == TrainingState(**made)


def test_a_resume_restores_scale_counters_weights_and_averages(tmp_path: Path) -> None:
    """Each of them has a value of its own before the checkpoint, and the initial one in the new process."""
    spec = helpers.spec(precision={"autocast": "bf16"}, checkpoint={"every_steps": 5, "background": False})
    made = []
    for seed in (1, 2):
        parts = build(
            dataclasses.replace(spec, seed=seed), root=tmp_path, data=helpers.data(), process=ALONE, tracker=Silent()
        )
        parts.checkpointer.scaler = torch.amp.GradScaler("cpu", init_scale=256.0 * seed)
        made.append(parts)
    new, old = made
    for parameter in old.stepper.root.parameters():
        parameter.grad = torch.ones_like(parameter)
    old.optimization.step()
    counters = {"consecutive_skips": 2, "consecutive_spikes": 3, "consecutive_overflows": 4, "rollbacks": 1}
    old.guard.load({**counters, "windows": {"mixed/loss": [1.5, 2.5]}})
    state = {
        f.name: other_than_default(getattr(TrainingState(), f.name), i)
        for i, f in enumerate(dataclasses.fields(TrainingState))
    }
    for name, value in state.items():
        setattr(old.state, name, value)
    for number, value in enumerate(old.ema.values.values()):
        value.fill_(number + 0.25)
    told: list[tuple[Any, ...]] = []
    new.checkpointer.tracker = SimpleNamespace(event=lambda step, kind, **more: told.append((step, kind, more)))
    old.checkpointer.save({"loss": 2.5, "grad_norm": math.nan, "perplexity": math.inf})
    old.checkpointer.wait()
    newest = old.checkpointer.newest()
    assert newest is not None
    document = folder.document(newest, "training_state.json")
    assert document["metrics"] == {"loss": 2.5}, "JSON has no other numbers"
    assert new.checkpointer.restore() == state["step"]
    assert told == [(state["step"], "resume_differs", {"fields": ["seed: checkpoint has 2, this run 1"]})]
    assert new.checkpointer.scaler.state_dict()["scale"] == 512.0
    assert new.guard.to_dict() == {**counters, "windows": {"mixed/loss": [1.5, 2.5]}}
    assert new.state == TrainingState(**state)
    assert helpers.same_bits(new.ema.values, old.ema.values)
    assert helpers.same_bits(new.optimization.tensors(), old.optimization.tensors())
    root, before = dict(new.stepper.root.named_parameters()), dict(old.stepper.root.named_parameters())
    assert helpers.same_bits(root, before)
    # weights that start another run are the averaged ones
    again = dataclasses.replace(spec, training=dataclasses.replace(spec.training, init_from="run"))
    started = build(again, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Silent())
    for number, parameter in enumerate(started.stepper.root.parameters()):
        assert torch.equal(parameter, torch.full_like(parameter, number + 0.25))


@pytest.mark.parametrize(("best_is", "expected"), [("min", [True, False, True]), ("max", [True, True, False])])
def test_best_is_the_smallest_or_the_largest(best_is: str, expected: list[bool], tmp_path: Path) -> None:
    checkpoint = {"every_steps": 5, "background": False, "best_metric": "loss", "best_is": best_is}
    parts = build(
        helpers.spec(checkpoint=checkpoint), root=tmp_path, data=helpers.data(), process=ALONE, tracker=Silent()
    )
    assert [parts.checkpointer._is_best({"loss": value}) for value in (2.0, 3.0, 1.0)] == expected
    assert parts.state.best == (1.0 if best_is == "min" else 3.0)
    assert not parts.checkpointer._is_best({"loss": parts.state.best}), "of equal ones the first stays the best"


def test_minutes_between_checkpoints_are_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("mm_ldlm.training.checkpointer.time", SimpleNamespace(monotonic=lambda: clock[0]))
    checkpoint = {"every_steps": None, "every_minutes": 2.5, "background": False}
    parts = build(
        helpers.spec(checkpoint=checkpoint), root=tmp_path, data=helpers.data(), process=ALONE, tracker=Silent()
    )
    for seconds, over in ((0, False), (149, False), (151, True)):
        clock[0] = 1000.0 + seconds
        assert parts.checkpointer.minutes_over() is over
    parts.checkpointer.save({})
    assert not parts.checkpointer.minutes_over(), "they are counted from the last checkpoint"
    clock[0] += 149
    assert not parts.checkpointer.minutes_over()
    clock[0] += 2
    assert parts.checkpointer.minutes_over()


def test_batches_are_not_ordered_by_length_within_an_epoch() -> None:
    lengths = np.repeat(np.arange(1, 33), 40)
    plan = BatchPlan(lengths, BatchConfig(examples=8, length_multiple=4), seed=0, max_length=32)
    for epoch in range(3):
        found = np.array([length for _, length in plan.epoch(epoch)])
        assert abs(np.corrcoef(np.arange(len(found)), found)[0, 1]) < 0.25, "the length says nothing about the step"
        half = len(found) // 2
        assert abs(found[:half].mean() - found[half:].mean()) < 3
        assert (np.diff(found) < 0).sum() > len(found) // 4
    first, second = ([tuple(batch) for batch, _ in plan.epoch(number)] for number in (0, 1))
    assert first != second, "each epoch has an order of its own"
    following = plan.from_(0, len(first) - 1)
    assert [next(following).epoch for _ in range(3)] == [0, 1, 1]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_check_that_fails_on_any_rank_fails(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = preflight.Check("disk", "enough"), preflight.Check("disk", "none", "free some")
    texts = [json.dumps([dataclasses.asdict(bad if number == rank else good)]) for number in range(3)]
    monkeypatch.setattr(preflight.collectives, "gather_texts", lambda text, *, device: texts)
    (found,) = preflight._agreed([good], ALONE)
    assert not found.ok
    assert (found.name, found.found, found.remedy) == (f"disk (rank {rank})", "none", "free some")


@pytest.mark.parametrize(("longest", "ok"), [(11, True), (12, True), (13, False)])
def test_a_text_of_exactly_the_maximum_length_fits(longest: int, ok: bool) -> None:
    plan = BatchPlan(np.array([2, 3, longest]), BatchConfig(examples=2), seed=0, max_length=12)
    assert preflight.batches(plan, ALONE, epoch=0).ok == ok


def test_the_guard_waits_for_a_window_before_it_sees_spikes() -> None:
    config = GuardConfig(spike_window=64)
    for seen, spike in ((15, False), (16, True)):
        guard = Guard(config)
        for number in range(seen):
            guard.judge(kind="a", loss=1.0 + 0.01 * (number % 3), grad_norm=1.0, bad_ranks=[])
        assert guard.judge(kind="a", loss=50.0, grad_norm=1.0, bad_ranks=[]).spike == spike
    assert not math.isnan(guard.config.spike_z)
