"""Whole sessions of a run, in one and several processes: equal numbers, equal decisions, kills, restarts, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.training import task
from tests.training.ranks import train_forked, train_on_ranks
from tests.training.test_loop import EVERY_STEP, faulty

from mm_ldlm.core import CheckpointError, WorkerFailed
from mm_ldlm.core.files import write_json
from mm_ldlm.distributed import failure
from mm_ldlm.training import session as status
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.session import read_status, sole_writer
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import train

LOSS, WEIGHT = 1e-4, 1e-4
"""Documented tolerance between numbers of processes: relative for losses, absolute for weights"""


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{project / 'src'}{os.pathsep}{project}")


def go(spec: TrainingSpec, root: Path) -> Path:
    train(spec, root=root, data=task.data(spec))
    return root / "run"


# -- several processes -------------------------------------------------------------------------------------------------


POISON = {"kind": "nan_loss", "step": 3}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks in which rank 1 is poisoned in one step."""
    root = tmp_path_factory.mktemp("two")
    train_forked(task.spec(faulty({**POISON, "ranks": [1]}), batch={"accumulation": 2}, checkpoint=EVERY_STEP), root)
    return root


def test_pitfall_08_poison_on_one_rank_moves_nothing_anywhere(two_ranks: Path) -> None:
    assert task.largest_difference(task.saved(two_ranks, 3), task.saved(two_ranks, 4)) == 0
    assert task.largest_difference(task.saved(two_ranks, 4), task.saved(two_ranks, 5)) > 0
    (skip,) = read_events(two_ranks / "run" / status.LOG, "skip")
    assert skip["step"] == 3
    assert "(rank 1)" in skip["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_poison_on_any_ranks_moves_nothing_anywhere(accumulation: int, tmp_path: Path) -> None:
    kinds = [(kind, ranks) for kind in ("nan_loss", "inf_gradient") for ranks in ((0,), (1,), (0, 1))]
    faults = [{"kind": kind, "ranks": ranks, "step": 2 * n + 1} for n, (kind, ranks) in enumerate(kinds)]
    batch = {"accumulation": accumulation}
    train_on_ranks(task.spec(faulty(*faults), max_steps=14, checkpoint=EVERY_STEP, batch=batch), tmp_path)
    for fault in faults:
        before, after = (task.saved(tmp_path, fault["step"] + more) for more in (0, 1))
        assert task.largest_difference(before, after) == 0, fault
    skips = read_events(tmp_path / "run" / status.LOG, "skip")
    assert [skip["step"] for skip in skips] == [fault["step"] for fault in faults]
    assert task.largest_difference(task.saved(tmp_path, 12), task.saved(tmp_path, 13)) > 0


def test_two_ranks_train_like_one(two_ranks: Path, tmp_path: Path) -> None:
    run = go(task.spec(faulty(POISON), batch={"accumulation": 2}), tmp_path)
    pairs = [(task.saved(root, 10), read_metrics(root / "run" / status.LOG)) for root in (two_ranks, run.parent)]
    weights = [{key: value for key, value in tensors.items() if key.startswith("model")} for tensors, _ in pairs]
    assert task.largest_difference(*weights) < WEIGHT
    for name in ("loss", "grad_norm"):
        found = [[float(line[name]) for line in lines if name in line] for _, lines in pairs]
        assert found[0] == pytest.approx(found[1], rel=LOSS, nan_ok=True)


def test_two_ranks_resume_to_the_bit(two_ranks: Path, tmp_path: Path) -> None:
    faults = [{**POISON, "ranks": [1]}, {"kind": "stop", "step": 5, "times": 1, "ranks": [1]}]
    train_forked(task.spec(faulty(*faults), batch={"accumulation": 2}), tmp_path)
    assert read_status(tmp_path / "run").status == "stopped"
    train_forked(task.spec(faulty(faults[0]), batch={"accumulation": 2}), tmp_path)
    assert task.largest_difference(task.saved(two_ranks, 10), task.saved(tmp_path, 10)) == 0


@pytest.mark.slow
def test_a_lost_rank_is_started_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    lost = faulty({"kind": "kill", "step": 5, "ranks": [1], "every_attempt": False}, mode="mixed")
    train_on_ranks(task.spec(lost, checkpoint={"every_steps": 2}), tmp_path / "lost", restarts=1)
    train_on_ranks(task.spec(faulty(mode="mixed"), checkpoint={"every_steps": 2}), tmp_path / "whole")
    start = read_events(tmp_path / "lost/run" / status.LOG, "start")[-1]
    assert (start["attempt"], start["resumed_from"]) == (1, "step-00000004")
    assert task.largest_difference(task.saved(tmp_path / "lost", 10), task.saved(tmp_path / "whole", 10)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.5, 4.0])
def test_a_session_that_is_killed_at_any_time_continues_to_the_same_weights(seconds: float, tmp_path: Path) -> None:
    spec = task.spec(faulty(), max_steps=200, checkpoint={"every_steps": 5, "background": True})
    write_json(tmp_path / "case.json", {"spec": spec.to_dict(), "root": str(tmp_path)})
    command = [sys.executable, "-m", "tests.training.ranks", str(tmp_path / "case.json")]
    process = subprocess.Popen(command)
    while not (tmp_path / "run" / status.LOG).exists():
        assert process.poll() is None
    time.sleep(seconds)
    process.kill()
    process.wait()
    go(spec, tmp_path)
    go(spec, tmp_path / "whole")
    assert task.largest_difference(task.saved(tmp_path, 200), task.saved(tmp_path / "whole", 200)) == 0


# -- one session -------------------------------------------------------------------------------------------------------


def test_a_run_folder_tells_its_whole_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(dist=SimpleNamespace(name="shapes-of-a-test", version="1.2"))
    monkeypatch.setattr("mm_ldlm.training.worker.registered", lambda: [package])
    run = go(task.spec(checkpoint={"every_steps": 2, "keep_last": 1, "keep_every": 4}), tmp_path)
    found = read_status(run)
    assert (found.status, found.step, found.fingerprint) == ("finished", 10, task.spec().fingerprint)
    assert found.seconds
    assert [event["event"] for event in read_events(run / status.LOG)][-1] == "end"
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == [
        f"step-{step:08d}" for step in (4, 8, 10)
    ]
    config = json.loads((run / "config.json").read_text())
    versions = config.pop("versions")
    assert (versions["torch"], versions["shapes-of-a-test"]) == (torch.__version__, "1.2")
    assert TrainingSpec.from_dict(config).fingerprint == task.spec().fingerprint


def test_a_finished_run_trains_nothing_and_a_new_one_keeps_the_old(tmp_path: Path) -> None:
    run = go(task.spec(), tmp_path)
    before = task.saved(tmp_path, 10)
    go(task.spec(), tmp_path)
    assert task.largest_difference(before, task.saved(tmp_path, 10)) == 0
    go(task.spec(resume="never", max_steps=4), tmp_path)
    assert task.saved(tmp_path, 4)
    assert task.largest_difference(before, task.saved(tmp_path, 10, name="run.old-1")) == 0
    assert len(read_metrics(run / status.LOG)) == 4


def test_another_run_can_be_continued_by_name(tmp_path: Path) -> None:
    go(task.spec(max_steps=4, run_name="first"), tmp_path)
    run = go(task.spec(resume="first", optimizer={"clip": 0.5}), tmp_path)
    assert read_events(run / status.LOG, "start")[0]["resumed_from"] == "step-00000004"
    assert read_events(run / status.LOG, "resume_differs")[0]["fields"] == [
        "max_steps: checkpoint has 4, this run 10", "optimizer.clip: checkpoint has 1.0, this run 0.5"
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    spec = task.spec(faulty({"kind": "stop", "step": 3}), max_steps=8)
    assert train(spec, root=tmp_path, data=task.data(spec)) == ("stopped", 4)
    assert signal.getsignal(number) == before
    assert task.saved(tmp_path, 4)


def test_an_error_is_noted_with_its_step_and_a_restart_continues_unless_it_would_recur(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ZeroDivisionError) as raised:
        go(task.spec(faulty({"kind": "raise", "step": 3}), checkpoint={"every_steps": 2}), tmp_path)
    assert raised.value.__dict__[failure._NOTED][0] == 3
    found = read_status(tmp_path / "run")
    assert (found.status, found.step, found.reason, found.launch) == ("failed", 3, "planted", "")
    for attempt, error in ((0, CheckpointError), (0, CheckpointError), (1, WorkerFailed)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        with pytest.raises(error):
            go(task.spec(init_from="nowhere", run_name="refused"), tmp_path)
        assert read_status(tmp_path / "refused").launch == "job"
    run = go(task.spec(faulty(), resume="never"), tmp_path)
    assert read_events(run / status.LOG, "failed")[0]["reason"] == "ZeroDivisionError: planted"
    assert read_events(run / status.LOG, "start")[-1]["resumed_from"] == "step-00000002"


def test_a_second_training_of_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOCK_SECONDS", 0.1)
    with sole_writer(tmp_path, "run"), pytest.raises(WorkerFailed, match=f"process {os.getpid()}.*/run"):
        go(task.spec(), tmp_path)
    go(task.spec(max_steps=2), tmp_path)
