"""Starts and ends of a rank by hand: what is written for others to read, and what a restarted rank repeats."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from mm_ldlm.training.tracker import Silent

from mm_ldlm.core.errors import CheckpointError, ConfigurationError, PreflightError, WorkerFailed
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import status, worker
from mm_ldlm.training.jsonl import read_events
from mm_ldlm.training.status import read_failure, read_status, sole_writer, write_status
from mm_ldlm.training.worker import train

SMALL = {"depth": 1}


def launched(monkeypatch: pytest.MonkeyPatch, *, attempt: int = 0, launch: str = "a-launch") -> None:
    given = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_RESTART_COUNT": attempt,
             "TORCHELASTIC_RUN_ID": launch}  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("error", "repeats"), [(PreflightError("no room"), True), (RuntimeError("a peer is gone"), False)]
)
def test_only_an_error_that_would_recur_ends_a_restarted_rank(
    error: Exception, repeats: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(parts: Any, **_: Any) -> Any:
        parts.state.step = 7
        raise error

    monkeypatch.setattr(worker.loop, "run", fails)
    launched(monkeypatch)
    with pytest.raises(type(error), match=str(error)):
        train(helpers.spec(model=SMALL), root=tmp_path, data=helpers.data())
    run = tmp_path / "run"
    (event,) = read_events(run / "training_log.jsonl", "failed")
    assert (event["step"], event["reason"]) == (7, f"{type(error).__name__}: {error}")
    found = read_status(run)
    assert (found["status"], found["step"], found["reason"]) == ("failed", 7, str(error))
    assert read_failure(run, "a-launch") == ("no room" if repeats else None)
    launched(monkeypatch, attempt=1)
    with pytest.raises(WorkerFailed if repeats else RuntimeError, match=str(error)):
        train(helpers.spec(model=SMALL), root=tmp_path, data=helpers.data())
    launched(monkeypatch, attempt=1, launch="another")
    with pytest.raises(type(error)):
        train(helpers.spec(model=SMALL), root=tmp_path, data=helpers.data())


def test_the_status_of_a_run_that_goes_on_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    plain = worker.loop.run

    def watched(parts: Any, **given: Any) -> Any:
        seen.append((read_status(tmp_path / "run")["status"], read_status(tmp_path / "run")["step"]))
        return plain(parts, **given)

    monkeypatch.setattr(worker.loop, "run", watched)
    spec = helpers.spec(model=SMALL, max_steps=4, checkpoint={"every_steps": 2, "background": False})
    paused = train(spec, root=tmp_path, data=helpers.data(), pause_at=2)
    assert (read_status(tmp_path / "run")["status"], paused.step, paused.ending) == ("paused", 2, "paused")
    ended = train(spec, root=tmp_path, data=helpers.data())
    found = read_status(tmp_path / "run")
    assert seen == [("running", 0), ("running", 2)]
    assert (found["status"], found["step"], ended.ending) == ("finished", 4, "finished")
    assert found["metrics"] == ended.metrics
    assert ended.metrics["loss"] > 0
    events = [(event["event"], event["step"]) for event in read_events(tmp_path / "run" / "training_log.jsonl")]
    sessions = [each for each in events if each[0] in ("start", "end")]
    assert sessions == [("start", 0), ("end", 2), ("start", 2), ("end", 4)]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["versions"]["torch"] == torch.__version__
    assert {key: value for key, value in config.items() if key != "versions"} == json.loads(json.dumps(spec.to_dict()))


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    process = Process(RankInfo(rank=1, world=2), torch.device("cpu"), None)
    assert isinstance(worker._open_folder(tmp_path / "run", helpers.spec(), process), Silent)
    worker._status(tmp_path / "run", process, "running", 0)
    assert list(tmp_path.iterdir()) == []


def test_outside_the_main_thread_no_signal_is_handled() -> None:
    found: list[Any] = []

    def work() -> None:
        with worker.stop_on_signal() as requested:
            found.append(requested())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_lock_is_waited_for_as_long_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True, False, False, False])
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += 7.0

    monkeypatch.setattr(status, "try_lock", lambda handle: next(answers))
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(status.time, "sleep", sleep)
    monkeypatch.setattr(status, "LOCK_SECONDS", 10.0)
    with sole_writer(tmp_path / "new", "run") as held:
        assert held
    with sole_writer(tmp_path / "new", "run") as held:
        assert not held
    assert now[0] == 100.0 + 2 * 7 + 2 * 7


def test_a_status_that_is_none_is_absent_and_one_without_numbers_is_whole(tmp_path: Path) -> None:
    assert read_status(tmp_path) == {"status": "absent", "step": 0}
    write_status(tmp_path, "stopped", 3)
    assert read_status(tmp_path)["step"] == 3
    (tmp_path / status.STATUS).write_text('{"status": "stopped"}')
    with pytest.raises(CheckpointError, match="expected a status, a step and metrics"):
        read_status(tmp_path)


def test_a_validation_without_examples_is_refused(tmp_path: Path) -> None:
    without = helpers.data()
    object.__setattr__(without, "validation", None)
    with pytest.raises(ConfigurationError, match=r"'training\.validate_every' is 3, but the split 'validation' has no"):
        train(helpers.spec(model=SMALL, validate_every=3), root=tmp_path, data=without)
    assert train(helpers.spec(model=SMALL, max_steps=2), root=tmp_path, data=without).step == 2


def test_a_failure_without_a_launch_or_a_run_is_not_recorded(tmp_path: Path) -> None:
    """No restarted rank could read it, and a folder would be taken for a run."""
    status.write_failure(tmp_path, "", PreflightError("no room"))
    status.write_failure(tmp_path / "none", "a-launch", PreflightError("no room"))
    assert not list(tmp_path.iterdir())
    status.write_failure(tmp_path, "a-launch", PreflightError("no room"))
    assert read_failure(tmp_path, "a-launch") == "no room"
