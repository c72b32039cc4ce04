"""What the log, its readers and the tracking store receive, to the letter; and what they never wait for."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mm_ldlm.app.tracking.follower import Follower

from mm_ldlm.app.tracking import follower, mlflow, opening
from mm_ldlm.core.errors import ConfigurationError, StoreError, TrackingError
from mm_ldlm.training import jsonl
from mm_ldlm.training.jsonl import JsonlTracker, follow, read_events, read_lines, read_metrics

# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_log_is_lines_of_text_with_the_time_of_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl.time, "time", lambda: 1700000000.123456)
    tracker = JsonlTracker(tmp_path / "a" / "b" / "log.jsonl")
    tracker.metrics(3, {"loss": 0.5, "text": "é → ü"})
    tracker.event(4, "skip", reason="“why”", rows=(1, 2))
    written = (tmp_path / "a" / "b" / "log.jsonl").read_text(encoding="utf-8")
    assert written == (
        '{"step": 3, "loss": 0.5, "text": "é → ü"}\n'
        '{"event": "skip", "step": 4, "time": 1700000000.123, "reason": "“why”", "rows": [1, 2]}\n'
    ), "flushed, so that others can follow it"
    tracker.close()
    with pytest.raises(ValueError, match="closed"):
        tracker.metrics(5, {})


def test_a_log_is_continued_at_its_last_whole_line(tmp_path: Path) -> None:
    """Of a file that has no whole line nothing is left, and a whole file keeps all of it."""
    for before, kept in (("", ""), ('{"step": 1', ""), ('{"step": 1}\n{"st', '{"step": 1}\n'),
                         ('{"step": 1}\n', '{"step": 1}\n'), ('{"a": "é"}\n\n{', '{"a": "é"}\n\n')):  # fmt: skip
        path = tmp_path / "log.jsonl"
        path.write_text(before, encoding="utf-8")
        JsonlTracker(path).close()
        assert path.read_text(encoding="utf-8") == kept
        tracker = JsonlTracker(path)
        tracker.metrics(2, {})
        tracker.close()
        assert path.read_text(encoding="utf-8") == f'{kept}{{"step": 2}}\n'


def test_several_threads_write_whole_lines(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "log.jsonl")
    threads = [
        threading.Thread(target=lambda n=n: [tracker.metrics(n, {"text": "x" * 9000}) for _ in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracker.close()
    lines = read_lines(tmp_path / "log.jsonl")
    assert sorted(line["step"] for line in lines) == sorted([*range(4)] * 20)


def test_events_of_a_kind_and_lines_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines: list[dict[str, Any]] = [{"event": kind, "step": n} for n, kind in enumerate(("skip", "start", "skip"))]
    path.write_text("\n".join(json.dumps(line) for line in (lines[0], {"step": 9, "loss": 1}, *lines[1:], {"step": 8}))
                    + '\n{"event": "cut')  # fmt: skip
    assert read_events(path) == lines
    assert read_events(path, "skip") == [lines[0], lines[2]]
    assert read_events(path, "end") == []
    assert [line["step"] for line in read_metrics(path)] == [8, 9]


def test_a_log_that_went_back_twice_keeps_what_each_time_left(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    steps = [10, 20, 30, -20, 30, 40, -10, 15]
    path.write_text("".join(json.dumps({"step": n, "at": i} if n > 0 else {"event": "went_back", "step": -n}) + "\n"
                            for i, n in enumerate(steps)))  # fmt: skip
    assert [(line["step"], line["at"]) for line in read_metrics(path)] == [(10, 0), (15, 7)]


# -- following ---------------------------------------------------------------------------------------------------------


def test_a_log_is_asked_for_at_its_interval_only_where_nothing_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(jsonl.time, "sleep", slept.append)
    path = tmp_path / "log.jsonl"
    lines = follow(path, stop=lambda: False, interval=0.25)
    assert (next(lines), next(lines), slept) == ([], [], [0.25])
    path.write_text('{"step": 1}\n')
    assert (next(lines), slept) == ([{"step": 1}], [0.25, 0.25])
    assert (next(lines), slept) == ([], [0.25, 0.25]), "after new lines it is read again at once"
    monkeypatch.setattr(follower, "follow", lambda *given, **how: iter([given, how]))
    made = Follower(path, [], interval=0.75)
    (given,), how = made._lines
    assert (given, how["interval"], how["stop"]()) == (path, 0.75, False)
    made._done.set()
    assert (how["stop"](), set(how)) == (True, {"stop", "interval"})
    assert made._thread.daemon, "a sink that hangs does not keep the process alive"


def test_a_sink_receives_new_lines_and_no_empty_batches(tmp_path: Path) -> None:
    taken: list[Any] = []
    sink: Any = SimpleNamespace(take=taken.append, close=lambda: taken.append("closed"))
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n')
    with Follower(path, [sink], interval=0.01):
        time.sleep(0.05)
        with path.open("a") as file:
            file.write('{"step": 1}\n{"step": 2}\n')
        time.sleep(0.05)
    assert taken == [[{"step": 1}, {"step": 2}], "closed"]


# -- MLflow ------------------------------------------------------------------------------------------------------------


def test_the_loggers_of_mlflow_are_quiet() -> None:
    names = ("alembic", "mlflow")
    for name in names:
        logging.getLogger(name).setLevel(logging.INFO)
    mlflow.client("http://127.0.0.1:9")
    assert [logging.getLogger(name).level for name in names] == [logging.WARNING] * 2


@pytest.mark.parametrize("error", [OSError("away"), PermissionError("no folder")])
def test_a_store_that_raises_an_error_of_the_system_is_named_too(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr(mlflow, "client", lambda uri: SimpleNamespace(get_experiment_by_name=refuse))
    with pytest.raises(ConfigurationError, match=rf"MLflow cannot open http://\*\*\*@h/x \({error}\)\. Start the"):
        mlflow.open_run("http://me:pw@h/x", experiment="e", name="n", parameters={}, tags={})


def test_an_error_of_the_project_is_shown_without_its_class_and_others_with_it() -> None:
    assert mlflow.reason_of(TrackingError("no answer\n within  9 s")) == "no answer within 9 s"
    assert mlflow.reason_of(OSError("http://me:pw@h")) == "OSError: http://***@h"
    long = mlflow.reason_of(ValueError("x" * 900))
    assert (len(long) <= 320, long.startswith("ValueError: xxx")) == (True, True)


def test_long_texts_end_at_the_limit_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    tags: dict[str, str] = {}
    fake = SimpleNamespace(set_tag=lambda run_id, key, value: tags.update({key: value}))
    monkeypatch.setattr(mlflow, "client", lambda uri: fake)
    mlflow.log_lines("u", "r", [{"event": "preview", "original": "a" * 4000, "text": "b" * 4000},
                                {"event": "alert", "reason": "c" * 9000}])  # fmt: skip
    assert {key: len(value) for key, value in tags.items()} == {"preview": 6000, "last_event": 6000}
    assert tags["preview"].startswith("a" * 4000 + " → b")


def test_metrics_of_an_evaluation_have_the_step_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    fake = SimpleNamespace(log_batch=lambda run_id, metrics: sent.append((run_id, metrics)))
    monkeypatch.setattr(mlflow, "client", lambda uri: fake)
    monkeypatch.setattr(mlflow.time, "time", lambda: 1700000000.5)
    values = {"a.b": 1, "c": 2.5, "flag": True, "nan": float("nan"), "inf": float("inf"), "text": "x", "none": None}
    mlflow.log_metrics("u", "r", values)
    mlflow.log_metrics("u", "r", {"c": 3}, step=7, first=["c"])
    found = [(run, [(m.key, m.value, m.timestamp, m.step) for m in metrics]) for run, metrics in sent]
    now = 1700000000500
    assert found == [
        ("r", [("4_evaluation/a/b", 1.0, now, 0), ("4_evaluation/c", 2.5, now, 0), ("4_evaluation/flag", 1.0, now, 0)]),
        ("r", [("1_headline/c", 3.0, now, 7)]),
    ]


# -- opening -----------------------------------------------------------------------------------------------------------


def test_the_local_database_is_tried_once_where_it_is_the_store_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def refuse(place: str, root: Path, run: Any) -> None:
        asked.append((place, root, run["parent"]))
        raise TrackingError("away")

    monkeypatch.setattr(opening, "load", lambda: asked.append("loaded"))
    monkeypatch.setattr(opening, "_open", refuse)
    assert opening.open_somewhere(opening.LOCAL, root=tmp_path, parent="p") is None
    assert asked == ["loaded", (opening.LOCAL, tmp_path, "p")]
    asked.clear()
    assert opening.open_somewhere("http://me:pw@h", root=tmp_path, parent="p") is None
    assert asked == ["loaded", ("http://me:pw@h", tmp_path, "p"), (opening.LOCAL, tmp_path, None)]
    assert caplog.messages == [
        f"this run is not tracked, because no store could be opened ({opening.LOCAL}: away)",
        f"this run is not tracked, because no store could be opened (http://***@h: away; {opening.LOCAL}: away)",
    ]


def test_a_store_has_its_own_time_to_open_and_a_call_that_hangs_ends_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: list[float] = []
    monkeypatch.setattr(opening, "open_run", lambda uri, **run: (uri, run))
    real = opening.within
    monkeypatch.setattr(opening, "within", lambda call, *, seconds_=seconds, **how: (
        seconds_.append(how["seconds"]) or real(call, **how)))  # fmt: skip
    assert opening._open("http://h", tmp_path, {"name": "n"}) == ("http://h", ("http://h", {"name": "n"}))
    place = f"sqlite:///{tmp_path}/a/m.db"
    assert opening._open("sqlite:///a/m.db", tmp_path, {}) == (place, (place, {}))
    assert seconds == [12.0, 120.0]
    threads: list[threading.Thread] = []
    real(lambda: threads.append(threading.current_thread()))
    assert (threads[0].daemon, threads[0].name) == (True, "tracking")


def test_a_call_that_returns_nothing_has_an_answer_and_one_that_exits_has_a_reason() -> None:
    assert opening.within(lambda: None) is None

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(TrackingError, match="SystemExit: 3"):
        opening.within(leave)


def test_a_database_is_found_through_a_link_and_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow resolves a relative path from the folder of the process, which may be another one later."""
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("project")
    monkeypatch.chdir(tmp_path)
    expected = f"sqlite:///{tmp_path}/project/data/m.db"
    for root in (Path("project"), Path("link"), tmp_path / "link"):
        assert mlflow.resolve_uri("sqlite:///data/m.db", root=root) == expected


def test_a_sink_of_mlflow_sends_its_lines_to_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(mlflow, "log_lines", lambda *given: sent.append(given))
    sink = mlflow.MlflowSink("the uri", "the run")
    sink.take([])
    assert sent == [], "without lines there is nothing to send"
    sink.take([{"step": 1}])
    sink.close()
    assert sent == [("the uri", "the run", [{"step": 1}])]


def test_a_removed_sink_is_named_with_its_log_and_its_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def take(self, lines: Any) -> None:
            raise OSError("the disk is full")

        def close(self) -> None: ...

    path = tmp_path / "log.jsonl"
    Follower(path, [Broken()])._pass_on([{"step": 1}])
    assert caplog.messages == [f"Broken no longer follows {path}: the disk is full"]


def test_an_exchange_with_a_server_is_waited_for_twelve_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    real = threading.Thread.join
    monkeypatch.setattr(
        threading.Thread, "join", lambda self, timeout=None: (waited.append(timeout), real(self, timeout))
    )
    opening.within(lambda: 1)
    assert waited == [12.0]


def test_a_store_that_replaces_another_is_named_with_the_command_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_at(place: str, root: Path, run: Any) -> Any:
        if place.startswith("http"):
            raise TrackingError("away")
        return "sqlite:////p/local.db", "an id"

    monkeypatch.setattr(opening, "_open", open_at)
    assert opening.open_somewhere("http://me:pw@h", root=tmp_path) == ("sqlite:////p/local.db", "an id")
    assert caplog.messages == [
        f"MLflow cannot open http://***@h: away; this run is recorded in {opening.LOCAL} instead. Show it by "
        "`mlflow ui --backend-store-uri sqlite:////p/local.db`, or set tracking.uri to a store that answers"
    ]
    caplog.clear()
    assert opening.open_somewhere("sqlite:///x.db", root=tmp_path) is not None
    assert caplog.messages == []


def test_a_folder_in_place_of_a_log_is_refused(tmp_path: Path) -> None:
    for call in (JsonlTracker, read_lines, read_metrics, read_events):
        with pytest.raises(StoreError, match=str(tmp_path)):
            call(tmp_path)
