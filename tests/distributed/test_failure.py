from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core.errors import TrainingDiverged, WorkerFailed
from mm_ldlm.distributed import failure, launch


def recorded(path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, *, rank: int, noted: bool = True) -> None:
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 4, "TORCHELASTIC_ERROR_FILE": path}.items():
        monkeypatch.setenv(name, str(value))
    try:
        raise error
    except Exception as caught:
        if noted:
            failure.note(caught, step=7)
        failure.record(caught)


def test_the_error_that_was_raised_first_is_reported_whichever_was_recorded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause, lost = ValueError("the cause"), RuntimeError("a peer is gone, in any words")
    failure.note(cause, step=7)  # then its group closes, and the other rank loses it
    time.sleep(0.01)
    recorded(tmp_path / "0/error.json", lost, monkeypatch, rank=0)
    recorded(tmp_path / "1/error.json", cause, monkeypatch, rank=1)
    recorded(tmp_path / "2/error.json", ValueError("later"), monkeypatch, rank=2, noted=False)
    first = failure.first_failure(tmp_path, since=0)
    assert first is not None
    assert first.error_class == "ValueError"
    text = str(first)
    assert "rank 1 on" in text
    assert "at step 7: ValueError (test_failure.py:" in text
    assert "the cause" in text
    assert str(tmp_path / "1" / "stderr.log") in text
    assert failure.first_failure(tmp_path, since=first.time + 1e6) is None


def test_our_errors_are_reported_by_class_and_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path / "0/error.json", TrainingDiverged("too far"), monkeypatch, rank=0)
    first = failure.first_failure(tmp_path, since=0)
    assert first is not None
    assert str(first).startswith(f"rank 0 on {first.host} failed at step 7: too far")
    failed = WorkerFailed(str(first), error_class=first.error_class)
    assert failed.caused_by(TrainingDiverged)
    assert not failed.caused_by(ValueError)


def test_signals_are_named_and_sigterm_comes_last() -> None:
    text = failure.describe_signals([(0, -15, "a.log"), (1, -9, "b.log")])
    assert text is not None
    assert "rank 1 was ended by SIGKILL" in text
    assert "memory" in text
    assert "b.log" in text
    assert failure.describe_signals([]) is None


def test_an_error_of_this_project_comes_before_others_that_were_raised_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "0/error.json", RuntimeError("from a host whose clock is slow"), monkeypatch, rank=0)
    time.sleep(0.01)
    recorded(tmp_path / "1/error.json", TrainingDiverged("too far"), monkeypatch, rank=1)
    first = failure.first_failure(tmp_path, since=0)
    assert first is not None
    assert first.rank == 1


def test_signals_of_the_agent_and_of_the_watchdog_are_no_cause() -> None:
    def ended(number: int, second: int) -> Any:
        return SimpleNamespace(exitcode=number, timestamp=second)

    plain, killed = ended(1, 100), ended(-signal.SIGKILL, 100)
    assert launch._killed_first({0: plain, 1: killed}) == {1}
    assert launch._killed_first({0: plain, 1: ended(-signal.SIGSEGV, 101)}) == {1}
    assert launch._killed_first({0: plain, 1: ended(-signal.SIGKILL, 130)}) == set(), "a hung rank, by the agent"
    assert launch._killed_first({0: plain, 1: ended(-signal.SIGTERM, 100), 2: ended(-signal.SIGABRT, 100)}) == set()


def test_without_an_agent_nothing_is_recorded_and_a_damaged_record_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    failure.record(ValueError("x"))
    recorded(tmp_path / "3/error.json", ValueError("the cause"), monkeypatch, rank=3)
    for name, text in (("0", "{"), ("1", "[]"), ("2", '{"message": {"extraInfo": {"mm_ldlm": {"rank": 2}}}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "error.json").write_text(text)
    first = failure.first_failure(tmp_path, since=0)
    assert first is not None
    assert (first.rank, first.step, first.message) == (3, 7, "the cause")
    assert failure.first_failure(tmp_path / "0", since=0) is None
