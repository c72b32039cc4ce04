"""The folder of a run at the start of a session, and the result of one."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch

import mm_ldlm
from mm_ldlm.core.errors import WorkerFailed
from mm_ldlm.distributed.environment import RankInfo
from mm_ldlm.distributed.process import Process
from mm_ldlm.training import status, worker
from mm_ldlm.training.jsonl import read_events
from mm_ldlm.training.worker import Result, train

CPU = torch.device("cpu")


def rank(number: int = 0, *, attempt: int = 0) -> Process:
    return Process(RankInfo(rank=number, world=2, attempt=attempt), CPU, "gloo")


def test_the_configuration_is_written_with_the_versions_and_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    run, spec = tmp_path / "run", helpers.spec()
    (run / "checkpoints" / ".tmp-1-step-00000005").mkdir(parents=True)
    (run / ".tmp-2-status.json").touch()
    (run / "checkpoints" / "step-00000004").mkdir()
    worker._open_folder(run, spec, rank()).close()
    assert sorted(path.name for path in run.rglob("*")) == [
        "checkpoints", "config.json", "step-00000004", "training_log.jsonl"
    ]  # fmt: skip
    found = json.loads((run / "config.json").read_text())
    assert found.pop("versions") == {
        "mm_ldlm": mm_ldlm.__version__, "torch": torch.__version__, "python": platform.python_version()
    }  # fmt: skip
    assert found == json.loads(json.dumps(spec.to_dict()))


@pytest.mark.parametrize(
    ("resume", "attempt", "number", "moved"),
    [("never", 0, 0, True), ("never", 1, 0, False), ("auto", 0, 0, False), ("never", 0, 1, False)],
    ids=["anew", "restarted", "resumed", "another rank"],
)
def test_an_earlier_run_is_moved_aside_once_to_the_next_free_number(
    resume: str, attempt: int, number: int, moved: bool, tmp_path: Path
) -> None:
    for name in ("run", "run.old-1", "run.old-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text(name)
    worker._open_folder(tmp_path / "run", helpers.spec(resume=resume), rank(number, attempt=attempt)).close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["run", "run.old-1", *["run.old-2"] * moved, "run.old-3"]
    assert (tmp_path / "run" / "mine").exists() is not moved
    if moved:
        assert (tmp_path / "run.old-2" / "mine").read_text() == "run"


def test_a_session_returns_where_how_and_at_which_step_it_ended(tmp_path: Path) -> None:
    spec = helpers.spec(model={"depth": 1}, max_steps=4, checkpoint={"every_steps": 2, "background": False})
    found = train(spec, root=tmp_path, data=helpers.data(), pause_at=3)
    path = tmp_path / "run" / "checkpoints" / "step-00000003"
    metrics = json.loads((path / "training_state.json").read_text())["metrics"]
    assert metrics["loss"] > 0
    assert found == Result(tmp_path / "run", "paused", 3, path, metrics)
    (start,) = read_events(tmp_path / "run" / "training_log.jsonl", "start")
    assert {key: start[key] for key in ("step", "resumed_from", "world", "attempt", "precision")} == {
        "step": 0, "resumed_from": None, "world": 1, "attempt": 0, "precision": "fp32"
    }  # fmt: skip
    (end,) = read_events(tmp_path / "run" / "training_log.jsonl", "end")
    assert (end["step"], end["ending"]) == (3, "paused")


def test_the_start_of_a_restarted_rank_names_its_attempt_and_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = helpers.spec(model={"depth": 1}, max_steps=3, precision={"autocast": "bf16"})
    train(spec, root=tmp_path, data=helpers.data(), pause_at=2)
    given = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_RESTART_COUNT": 4, "TORCHELASTIC_RUN_ID": "x"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    train(spec, root=tmp_path, data=helpers.data())
    start = read_events(tmp_path / "run" / "training_log.jsonl", "start")[-1]
    assert (start["step"], start["resumed_from"], start["attempt"], start["precision"]) == (
        2, "step-00000002", 4, "bf16"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "a/file"), "the disk is full at a/file (No space left on device)"),
        (PermissionError(13, "Permission denied", "b"), "expected a file or folder with permission to read and write"),
    ],
)
def test_an_error_of_the_disk_becomes_one_with_its_remedy_and_keeps_its_cause(
    error: OSError, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(worker, "build", fails)
    noted: list[Any] = []
    monkeypatch.setattr(worker.failure, "note", lambda error, *, step: noted.append((type(error), step)))
    with pytest.raises(WorkerFailed) as raised:
        train(helpers.spec(), root=tmp_path, data=helpers.data())
    assert str(raised.value).startswith(words)
    assert raised.value.__cause__ is error
    assert noted == [(WorkerFailed, None)]
    other = OSError(5, "Input/output error")
    assert worker._known(other) is other
    assert worker._known(plain := ValueError("x")) is plain


def test_a_rank_that_does_not_hold_the_lock_ends_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank takes no lock of its own, and learns from the first one that the run is taken."""
    for taken in (0.0, 1.0):
        asked: list[float] = []

        def max_(mine: torch.Tensor, taken: float = taken, asked: Any = asked) -> torch.Tensor:
            asked.append(float(mine))
            return torch.tensor(taken)

        monkeypatch.setattr(worker, "collectives", SimpleNamespace(max_=max_))
        for number in (0, 1):
            if taken:
                with (
                    pytest.raises(WorkerFailed, match=r"another training is writing to .*/run"),
                    worker._alone(tmp_path, "run", rank(number)),
                ):
                    pytest.fail("it trained")
            else:
                with worker._alone(tmp_path, "run", rank(number)):
                    assert (tmp_path / ".run.lock").exists()
        assert asked == [0.0, 0.0]


PLACES = ("_open_folder", "build", "start", "loop.run", "folder.newest_whole", "a failed status")
"""Parts of a session, in the order in which they run; the last one is that of a session that fails."""


@pytest.mark.parametrize("place", PLACES)
def test_a_second_training_of_a_folder_is_refused_from_the_start_to_the_end_of_the_first(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of another name trains meanwhile, and the folder is free when the first training has ended."""
    monkeypatch.setattr(status, "LOCK_SECONDS", 0.0)
    fails = place == "a failed status"
    *owner, name = ("write_status" if fails else place).split(".")
    module = getattr(worker, owner[0]) if owner else worker
    real, refused, run = getattr(module, name), list[str](), worker.loop.run
    one, data = helpers.spec(model={"depth": 1}, max_steps=2), helpers.data()
    other = helpers.spec(model={"depth": 1}, max_steps=2, run_name="other")

    def meanwhile(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(module, name, real)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(WorkerFailed) as second:
            train(one, root=tmp_path, data=data)
        refused.append(str(second.value))
        assert sorted(tmp_path.rglob("*")) == before, "the second one changes nothing"
        assert train(other, root=tmp_path, data=data).ending == "finished"
        return real(*given, **named)

    def breaks(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(worker.loop, "run", run)
        monkeypatch.setattr(module, name, meanwhile)
        raise WorkerFailed("no room")

    if fails:
        monkeypatch.setattr(worker.loop, "run", breaks)
        with pytest.raises(WorkerFailed, match="no room"):
            train(one, root=tmp_path, data=data)
    else:
        monkeypatch.setattr(module, name, meanwhile)
        train(one, root=tmp_path, data=data)
    assert refused == [
        f"another training is writing to {tmp_path / 'run'} (it holds the lock .run.lock). Wait for it, stop it, or "
        "set training.run_name to another name."
    ]
    assert train(one, root=tmp_path, data=data).step == 2


def test_the_other_ranks_are_waited_for_when_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first rank that left at once would take their connection with it."""
    seen: list[tuple[str, str]] = []
    run = tmp_path / "run"

    def barrier() -> None:
        last = json.loads((run / "training_log.jsonl").read_text().splitlines()[-1])
        seen.append((json.loads((run / "status.json").read_text())["status"], last.get("event", "")))

    monkeypatch.setattr(worker, "collectives", SimpleNamespace(max_=lambda mine: mine, barrier=barrier))
    train(helpers.spec(model={"depth": 1}, max_steps=2), root=tmp_path, data=helpers.data())
    assert seen == [("finished", "end")]


def test_a_rank_prepares_its_end_and_its_output_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("die_with_parent", "append_output"):
        monkeypatch.setattr(worker, name, lambda name=name: order.append(name))

    def read(path: Path) -> Any:
        order.append(f"reads {path}")
        raise WorkerFailed("no spec")

    monkeypatch.setattr(worker.TrainingSpec, "read", read)
    monkeypatch.setattr(worker.failure, "record", lambda error: order.append(str(error)))
    assert worker.main(["the.json"]) == 1
    assert order == ["die_with_parent", "append_output", "reads the.json", "no spec"]


@pytest.mark.parametrize(("error", "kept"), [(WorkerFailed("no room"), True), (RuntimeError("a peer is gone"), False)])
def test_only_errors_that_would_recur_are_kept_for_restarted_ranks(
    error: Exception, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of every failed session has its reason; a restart repeats the errors of this project alone."""

    def fails(parts: Any, **_: Any) -> Any:
        parts.state.step = 7
        raise error

    given = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_RUN_ID": "a-launch"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(worker.loop, "run", fails)
    with pytest.raises(type(error), match=str(error)):
        train(helpers.spec(model={"depth": 1}), root=tmp_path, data=helpers.data())
    run = tmp_path / "run"
    found = json.loads((run / "status.json").read_text())
    assert (found["status"], found["step"], found["reason"]) == ("failed", 7, str(error))
    assert (run / "failure.json").exists() is kept
    assert not kept or json.loads((run / "failure.json").read_text()) == {"launch": "a-launch", "text": "no room"}
    (event,) = read_events(run / "training_log.jsonl", "failed")
    assert (event["step"], event["reason"]) == (7, f"{type(error).__name__}: {error}")
