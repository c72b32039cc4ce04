from __future__ import annotations

import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mm_ldlm.app.tracking.opening import LOCAL, open_somewhere, within
from mm_ldlm.app.tracking.source import commit

from mm_ldlm.app.tracking import mlflow as tracking
from mm_ldlm.app.tracking import opening
from mm_ldlm.core.errors import TrackingError

RUN: dict[str, Any] = {"experiment": "e", "name": "n", "parameters": {"a": 1}, "tags": {}, "parent": "of the server"}


@pytest.fixture(autouse=True)
def _few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TIMEOUT", "1"), ("MAX_RETRIES", "0"), ("BACKOFF_FACTOR", "0")):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(server.accept()[0]), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for each in held:
            each.close()


@pytest.fixture
def refusing_server() -> str:
    """The address of a port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, which take seconds to make."""
    file = tmp_path_factory.mktemp("database") / "mlflow.db"
    tracking.client(f"sqlite:///{file}").search_experiments()
    return file


def opened(uri: str, root: Path) -> tuple[str, str] | None:
    return open_somewhere(uri, root=root, **RUN)


@pytest.mark.parametrize("kind", ["silent", "refusing", "no database", "locked", "pipe"])
def test_a_store_that_does_not_answer_is_replaced_by_a_local_one(
    kind: str, silent_server: str, refusing_server: str, empty_database: Path, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "data").mkdir()
    shutil.copy(empty_database, tmp_path / "data" / "mlflow_local.db")
    shutil.copy(empty_database, tmp_path / "locked.db")
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    uri = {
        "silent": silent_server, "refusing": refusing_server, "no database": "sqlite:///broken.db",
        "locked": "sqlite:///locked.db", "pipe": "sqlite:///pipe.db",
    }[kind]  # fmt: skip
    os.mkfifo(tmp_path / "pipe.db")
    lock = sqlite3.connect(tmp_path / "locked.db")
    lock.execute("begin exclusive")
    with caplog.at_level(logging.WARNING, logger="mm_ldlm"):
        found = opened(uri, tmp_path)
    lock.close()
    assert found is not None
    assert found[0] == tracking.resolve_uri(LOCAL, root=tmp_path)
    assert tracking.client(found[0]).get_run(found[1]).data.params == {"a": "1"}
    ours = [record.message for record in caplog.records if record.name.startswith("mm_ldlm")]
    assert len(ours) == 1
    assert uri in ours[0]
    assert ("the database is a named pipe" in ours[0]) == (kind == "pipe")
    assert "\n" not in ours[0]


@pytest.mark.parametrize("closed", ["project.db", "."], ids=["database", "folder"])
def test_a_database_without_permission_is_refused_at_once(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow would repeat the attempt for two minutes. The answer of the system is replaced, because root may write."""
    (tmp_path / "project.db").touch()
    place = tmp_path / closed
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place)
    with pytest.raises(TrackingError) as error:
        tracking.resolve_uri("sqlite:///project.db", root=tmp_path)
    assert str(error.value) == f"{place} cannot be read and written (no permission)"


def test_without_any_store_the_run_goes_on_untracked(
    refusing_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").write_text("a file where the folder of the local database would be")
    assert opened(refusing_server, tmp_path) is None
    assert "this run is not tracked" in caplog.text


def test_a_call_ends_after_its_time_or_with_one_line() -> None:
    started = time.monotonic()
    with pytest.raises(TrackingError, match=r"no answer within 0\.2 s"):
        within(lambda: time.sleep(5), seconds=0.2)
    assert time.monotonic() - started < 4

    def fail() -> None:
        raise OSError("first\nsecond http://me:sentinel@host")

    with pytest.raises(TrackingError) as error:
        within(fail)
    assert str(error.value) == "OSError: first second http://***@host"
    assert within(lambda: 3) == 3


def test_lines_that_a_server_did_not_take_are_sent_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    away = True

    def log_lines(uri: str, run_id: str, lines: Any) -> None:
        if away:
            raise ConnectionError("away")
        sent.extend(line["step"] for line in lines)

    monkeypatch.setattr(tracking, "log_lines", log_lines)
    monkeypatch.setattr(tracking.MlflowSink, "PAUSE", 0.0)
    sink = tracking.MlflowSink("uri", "run")
    sink.take([{"step": 1}])
    sink.take([{"step": 2}])
    away = False
    sink.take([{"step": 3}])
    assert sent == [1, 2, 3]
    monkeypatch.setattr(tracking.MlflowSink, "PAUSE", 1e9)
    away = True
    sink.take([{"step": 4}])
    away = False
    sink.take([{"step": 5}])  # the server is left alone for a while
    assert sent == [1, 2, 3]
    sink.close()
    assert sent == [1, 2, 3, 4, 5]


def test_a_server_that_is_away_is_asked_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question takes seconds, for which the log is not followed."""
    now, asked, away = [500.0], [], [True]

    def log_lines(uri: str, run_id: str, lines: Any) -> None:
        asked.append((now[0] - 500, [line["step"] for line in lines]))
        if away[0]:
            raise ConnectionError("away")

    monkeypatch.setattr(tracking, "log_lines", log_lines)
    monkeypatch.setattr(tracking, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(tracking.MlflowSink, "KEPT", 3)
    sink = tracking.MlflowSink("uri", "run")
    for second in (0, 1, 59, 60, 119, 120):
        now[0] = 500.0 + second
        away[0] = second < 100
        sink.take([{"step": second}])
    sink.take([])
    assert asked == [(0, [0]), (60, [1, 59, 60]), (120, [60, 119, 120])], "the newest lines are kept"


def test_a_run_in_the_local_database_has_no_parent_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_with: list[tuple[str, Any]] = []

    def open_run(uri: str, **run: Any) -> str:
        opened_with.append((uri, dict(run)))
        if uri.startswith("http"):
            raise OSError("away")
        return "an id"

    monkeypatch.setattr(opening, "open_run", open_run)
    monkeypatch.setattr(opening, "load", lambda: None)
    local = tracking.resolve_uri(LOCAL, root=tmp_path)
    assert opened("http://host:1", tmp_path) == (local, "an id")
    assert opened_with == [("http://host:1", RUN), (local, {**RUN, "parent": None})]
    assert opened("sqlite:///x.db", tmp_path) == (f"sqlite:///{tmp_path}/x.db", "an id")
    assert opened_with[2:] == [(f"sqlite:///{tmp_path}/x.db", RUN)]


def test_a_database_in_a_file_has_the_time_to_make_its_tables() -> None:
    assert [opening.longest(uri) for uri in ("sqlite:///x.db", "http://host", "databricks")] == [120.0, 12.0, 12.0]


def test_the_commit_of_the_sources_is_recorded_and_whether_they_differ(tmp_path: Path) -> None:
    assert commit(tmp_path) == {}, "no checkout"

    def git(*words: str) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    head = {"mlflow.source.git.commit": git("rev-parse", "HEAD")}
    assert commit(tmp_path) == {**head, "git.dirty": "false"}
    (tmp_path / "new").touch()
    assert commit(tmp_path) == {**head, "git.dirty": "true"}


def test_lines_that_a_server_never_took_are_counted_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def log_lines(*given: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(tracking, "log_lines", log_lines)
    sink = tracking.MlflowSink("uri", "run")
    sink.take([{"step": 1}, {"step": 2}])
    sink.take([{"step": 3}])
    assert len(caplog.records) == 1
    sink.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "MLflow does not answer (ConnectionError: away); the run goes on, and its log is sent later",
        "MLflow lacks the last 3 lines of the log, which has them all",
    ], "one warning until it answers again"


@pytest.mark.parametrize("answers", ["-+-", "--+--", "+-+", "-++--+-", "-+-+-"])
def test_every_time_that_a_server_is_away_is_reported_once(
    answers: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`-` is an attempt without an answer, and `+` one with an answer; the attempts are a minute apart."""
    minute, sent = [0], list[int]()

    def log_lines(uri: str, run_id: str, lines: Any) -> None:
        if answers[minute[0]] == "-":
            raise ConnectionError(f"away in minute {minute[0]}")
        sent.extend(line["step"] for line in lines)

    monkeypatch.setattr(tracking, "log_lines", log_lines)
    monkeypatch.setattr(tracking, "time", SimpleNamespace(monotonic=lambda: 500.0 + 60 * minute[0]))
    sink = tracking.MlflowSink("uri", "run")
    for number in range(len(answers)):
        minute[0] = number
        sink.take([{"step": number}])
    first = [number for number in range(len(answers)) if answers[number] == "-" and answers[:number][-1:] != "-"]
    assert caplog.messages == [
        f"MLflow does not answer (ConnectionError: away in minute {number}); the run goes on, and its log is sent later"
        for number in first
    ]
    assert sent == list(range(answers.rfind("+") + 1))


def test_every_number_is_sent_once_and_at_most_a_thousand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[tuple[str, float, int]]] = []
    tags: list[tuple[str, str]] = []

    def log_batch(run_id: str, *, metrics: Any) -> None:
        sent.append([(metric.key, metric.value, metric.step) for metric in metrics])

    fake = SimpleNamespace(log_batch=log_batch, set_tag=lambda run_id, key, value: tags.append((key, value)))
    monkeypatch.setattr(tracking, "client", lambda uri: fake)
    lines = [{"step": step, "loss": step + 0.5, "lr": 0.25, "mode": "l2t", "bad": "nan"} for step in range(1250)]
    events = [{"event": kind, "step": 3, "time": 0.0} for kind in ("skip", "start", "checkpoint", "estimate")]
    tracking.log_lines("uri", "run", [*lines, *events])
    assert [len(batch) for batch in sent] == [1000, 1000, 500]
    assert [each for batch in sent for each in batch] == [
        pair for step in range(1250)
        for pair in (("1_headline/loss", step + 0.5, step), ("2_training/lr", 0.25, step))
    ]  # fmt: skip
    assert [key for key, _ in tags] == ["last_event"], "of the ordinary events none"
    assert "skip" in tags[0][1]
