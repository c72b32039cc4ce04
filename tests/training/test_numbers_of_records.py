"""The numbers in alerts, events, records and refusals of a training, and the limits at which they appear."""

from __future__ import annotations

import itertools
import logging
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from mm_ldlm.training.remaining import Remaining
from mm_ldlm.training.tracker import Silent
from parts import ALONE, Heard
from test_checkpointer import made

from mm_ldlm.core.errors import CheckpointError, ConfigurationError
from mm_ldlm.extras.foreign_checkpoints import importing
from mm_ldlm.extras.foreign_checkpoints.importing import read_names
from mm_ldlm.training import batches, memory, preflight, preview, sanity, session, trial
from mm_ldlm.training.alerts import Alerts
from mm_ldlm.training.batches import BatchPlan, Loader
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import BatchConfig, GuardConfig
from mm_ldlm.training.guard import Guard
from mm_ldlm.training.sanity import SanityConfig
from mm_ldlm.training.state import seed_everything
from mm_ldlm.training.status import read_status, write_status

# -- alerts and the guard ----------------------------------------------------------------------------------------------


def test_a_loss_that_rises_is_reported_with_its_means_in_their_order() -> None:
    watch = Alerts(heard := Heard())
    for step in range(1000):
        watch.stepped(step, kind="l2t", loss=(2.0 if step < 500 else 3.0) + 0.002 * (step % 2), grad_norm=1.0)
    ((step, kind, words),) = heard.events
    assert (step, kind, words["name"]) == (999, "alert", "stalled_loss/l2t")
    assert "did not fall: 2.001 and then 3.001 are its means over 500 steps each" in words["reason"]


@pytest.mark.parametrize(("lost", "expected"), [(0.2, 0), (0.21, 1)])
def test_a_fifth_of_the_gradients_may_underflow(lost: float, expected: int) -> None:
    watch = Alerts(heard := Heard())
    watch.diagnosed(3, {"fp16_underflow": lost, "fp16_scale": 65536.0})
    assert len(heard.events) == expected


def test_24_overflows_in_a_row_are_explained_by_the_loss_scale() -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=1))
    overflow = {"kind": "a", "loss": 1.0, "grad_norm": float("inf"), "bad_ranks": [], "overflow": True}
    assert [guard.judge(**overflow).action for _ in range(25)] == [*["skip"] * 24, "rollback"]


@pytest.mark.parametrize(("window", "before"), [(8, 8), (32, 8), (40, 10), (128, 32)])
def test_a_spike_is_seen_after_a_quarter_of_the_window_and_at_least_eight_steps(window: int, before: int) -> None:
    for count, spike in ((before - 1, False), (before, True)):
        guard = Guard(GuardConfig(spike_window=window))
        for number in range(count):
            guard.judge(kind="a", loss=1.0 + 0.01 * (number % 2), grad_norm=1.0, bad_ranks=[])
        assert guard.judge(kind="a", loss=100.0, grad_norm=1.0, bad_ranks=[]).spike is spike


def test_losses_of_exactly_zero_have_a_score() -> None:
    guard = Guard(GuardConfig(spike_window=8))
    for _ in range(8):
        guard.judge(kind="a", loss=0.0, grad_norm=0.0, bad_ranks=[])
    assert not guard.judge(kind="a", loss=1e-12, grad_norm=0.0, bad_ranks=[]).spike
    assert guard.judge(kind="a", loss=1.0, grad_norm=0.0, bad_ranks=[]).spike


# -- events and metrics ------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_recorded_with_its_milliseconds_and_its_finite_metrics(tmp_path: Path) -> None:
    found, heard = made(tmp_path, best_metric="loss")
    found._report(7, 1.23456, None)
    assert heard.events.pop() == (7, "checkpoint", {"seconds": 1.235, "folder": "step-00000007"})
    found._report(8, 1.0, CheckpointError("no room"))
    assert heard.events.pop() == (8, "checkpoint_failed", {"reason": "no room"})
    found.save({"loss": 2.0, "nan": float("nan"), "inf": float("inf"), "low": -float("inf")})
    path = found.directory / folder.name_of(0)
    assert folder.document(path, "training_state.json")["metrics"] == {"loss": 2.0}


def test_every_damaged_checkpoint_that_is_passed_over_is_recorded(tmp_path: Path) -> None:
    found, heard = made(tmp_path, keep_last=5)
    for step in (1, 2, 3):
        found.state.step = step
        found.save({})
    for step in (2, 3):
        (found.directory / folder.name_of(step) / "model.safetensors").unlink()
    heard.events.clear()
    assert found.newest() == found.directory / folder.name_of(1)
    assert [(step, kind) for step, kind, _ in heard.events] == [(0, "checkpoint_damaged")] * 2
    for (_, _, about), step in zip(heard.events, (3, 2), strict=True):
        assert folder.name_of(step) in about["reason"]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_seconds_of_all_batches_are_counted_as_waiting(prefetch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(batches, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    source = helpers.Rows(40)
    plan = BatchPlan(source.lengths, BatchConfig(examples=8, prefetch=prefetch), seed=0, max_length=12)
    loader = Loader(plan, source, fields=(), rank=0, world=1, fill=False)
    given = loader.from_(0, 0)
    for number in range(1, 4):
        next(given)
        assert loader.waited == number
    given.close()


@pytest.mark.parametrize(("cost", "seconds", "due"), [(0.12345, 0.123, 160.12345), (2.0, 2.0, 302.0)])
def test_a_sentence_is_recorded_with_its_milliseconds_and_the_next_one_waits(
    cost: float, seconds: float, due: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute, or a hundred times as long as the sentence took."""
    now = iter([100.0, 100.0, 100.0 + cost])
    monkeypatch.setattr(preview, "time", SimpleNamespace(monotonic=lambda: next(now)))
    shows: Any = SimpleNamespace(
        _failed=False, _due=0.0, _tokenizer="t", every=60.0, tracker=Heard(), _texts=lambda tokenizer: ("a", "b")
    )
    preview.Preview.__call__(shows, 3, last=False)
    assert shows.tracker.events == [(3, "preview", {"original": "a", "text": "b", "seconds": seconds})]
    assert shows._due == pytest.approx(due)


def test_a_status_has_the_time_since_the_epoch(tmp_path: Path) -> None:
    write_status(tmp_path, "running", 3)
    assert abs(read_status(tmp_path)["time"] - time.time()) < 60


def test_a_session_says_what_it_trains_where_and_on_how_many_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(session, "launch", lambda *given, **named: write_status(tmp_path / "run", "finished", 1234))
    monkeypatch.setattr(session, "_refuse_beyond_memory", lambda spec, runs: "the sizes")
    monkeypatch.setattr(session, "reference", lambda spec, runs: {})
    monkeypatch.setenv("NODE_RANK", "1")
    (tmp_path / "run").mkdir()
    spec = helpers.spec(max_steps=1234, launch={"nodes": 2, "processes": 3, "rendezvous": "head:1"})
    session.run_session(spec.to_dict(), tmp_path)
    log = tmp_path / "run" / "training_log.jsonl"
    assert f"training run: 1,234 steps, the sizes, 2 × 3 processes; log in {log}" in caplog.messages


def test_an_unfinished_run_names_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (2, 4):
        folder.write(tmp_path / "run/checkpoints", step, folder.Contents({}, {"a.json": {}}))
    words = session._how_to_continue(helpers.spec(), tmp_path / "run")
    assert words.startswith("; its newest checkpoint is step-00000004 of 10 steps. ")


def test_the_disk_is_described_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 2**29))
    stepper: Any = SimpleNamespace(root=torch.nn.Linear(2**13, 2**13, bias=False))
    found = preflight.disk(stepper, helpers.spec().training, Path(), averaged=True, done=0)
    assert found.found == "2.5 GiB free, 3 checkpoints of 1.00 GiB at most"
    assert found.remedy.startswith("free some space")


def test_the_memory_of_an_encoder_of_unknown_dimension_is_not_overestimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_of", lambda device: ("CPU", 4096 * 4 * 8))
    encoder = SimpleNamespace(device="cpu", dim=None, max_length=None, batch_tokens=4096, batch_rows=64)
    memory.refuse_large_batch(encoder)
    encoder.dim = 2
    with pytest.raises(ConfigurationError, match=r"encoder\.batch_tokens"):
        memory.refuse_large_batch(encoder)


# -- random numbers, imports, estimates --------------------------------------------------------------------------------


def test_every_global_generator_is_seeded_by_the_seed() -> None:
    def drawn(seed: int) -> list[float]:
        seed_everything(seed)
        return [random.random(), float(np.random.random()), float(torch.rand(()))]  # noqa: NPY002

    first, same, other = drawn(5), drawn(5), drawn(2**40 + 6)
    assert first == same
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_names_of_a_mapping_have_at_most_500_letters_and_three_stars(tmp_path: Path) -> None:
    file = tmp_path / "n.yml"
    file.write_text(f"names: {{'a*b*c*': {'x' * 500}}}")
    assert read_names(file).names == {"a*b*c*": "x" * 500}
    file.write_text(f"names: {{a: {'x' * 501}}}")
    with pytest.raises(CheckpointError, match="expected names of parameters as texts"):
        read_names(file)


@pytest.mark.parametrize(("rows", "added"), [(26, 0), (24, 0), (23, 1), (22, 2), (21, 0)])
def test_at_most_two_ids_are_added_to_those_of_a_checkpoint(
    rows: int, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pad and the mask, which other trainers may lack; more would be another vocabulary."""
    asked: list[int] = []

    def convert(*_: Any, added_ids: int, **__: Any) -> Any:
        asked.append(added_ids)
        raise InterruptedError

    monkeypatch.setattr(importing, "convert", convert)
    found: Any = SimpleNamespace(tensors={"vocab_embed.embedding": torch.zeros(rows, 2)}, file=Path("f"))
    with pytest.raises(InterruptedError):
        importing._load(torch.nn.Linear(1, 1), found, {"shape": helpers.SHAPE, "model": {}}, None)
    assert asked == [added]


def test_an_estimate_is_that_of_the_newest_200_steps_without_those_beyond_three_times_the_median() -> None:
    plan = BatchPlan(np.full(4000, 8), BatchConfig(examples=4), seed=0, max_length=8)
    steps = list(plan.first(301))

    def measured(seconds: Any) -> float:
        found, now = Remaining(plan), 0.0
        for number, planned in enumerate(steps):
            now += seconds(number)
            found.stepped(planned, now)
        return found.per_step() or 0.0

    assert measured(lambda number: 5.0 if number <= 100 else 1.0) == pytest.approx(1.0)
    assert measured(lambda number: 1.5 if number <= 101 else 1.0) == pytest.approx((199 + 1.5) / 200)
    assert measured(lambda number: 3.1 if number == 300 else 1.0) == pytest.approx(1.0)
    assert measured(lambda number: 2.9 if number == 300 else 1.0) == pytest.approx((199 + 2.9) / 200)


# -- sanity checks and trial steps -------------------------------------------------------------------------------------


def test_overfitting_ends_with_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(sanity, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    spec = helpers.spec(model={"depth": 1}, objective={"mode": "l2t"}, optimizer={"lr": 1e-9, "warmup_steps": 0})
    parts = build(spec, root=tmp_path, data=helpers.data(), process=ALONE, tracker=Silent())
    batch = sanity._batch(parts, helpers.data(), 4)
    found = sanity.learning(parts, batch, SanityConfig(max_steps=50, max_seconds=4.0))[-1]
    assert " in 3 steps on one batch of 4 examples" in found.found


@pytest.mark.parametrize(("count", "listed"), [(1, "p0 moved"), (4, "p0, p1, p2, p3 moved"),
                                               (7, "p0, p1, p2, p3 and 3 more moved")])  # fmt: skip
def test_four_faulty_parameters_are_named_and_the_others_counted(count: int, listed: str) -> None:
    names = [f"p{number}" for number in range(9)]
    found = sanity._listed("frozen", names, names[:count], "moved", "freeze it")
    assert (found.name, found.found, found.remedy) == ("frozen", listed, "freeze it")
    assert sanity._listed("frozen", names, [], "moved", "freeze it").found == "9 parameters as expected"


def test_a_trial_step_has_every_part_of_a_step_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = trial._Rank(helpers.spec(model={"depth": 1}, ema={"decay": 0.5}), helpers.data(), ALONE)
    done: list[Any] = []
    for part, name in ((rank.stepper, "forward_backward"), (rank.optimization, "clip"), (rank.optimization, "step"),
                       (rank.ema, "update"), (rank.optimization, "drop_gradients")):  # fmt: skip
        plain = getattr(part, name)
        monkeypatch.setattr(
            part, name, lambda *a, name=name, plain=plain, **k: (done.append((name, k or a)), plain(*a, **k))[1]
        )
    rank.step(rank.loader.plan.epoch(0)[0], draw=3)
    assert [name for name, _ in done] == ["forward_backward", "clip", "step", "update", "drop_gradients"]
    assert done[0][1] == {"draw": 3, "step": 3}
    assert done[3][1] == (3,)
    assert all(parameter.grad is None for parameter in rank.stepper.root.parameters())
