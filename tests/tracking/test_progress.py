"""Lines of a training on the terminal beside those of numbers: the estimate of its time, and its sentences."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.app.tracking import progress
from mm_ldlm.app.tracking.progress import ProgressSink, progress_line

PREVIEW: dict[str, Any] = {"event": "preview", "step": 30, "original": "a red bird sings", "text": "a red cat sings"}


def printed(caplog: pytest.LogCaptureFixture, *lines: dict[str, Any]) -> list[str]:
    caplog.clear()
    caplog.set_level("INFO", logger="mm_ldlm.app.tracking.progress")
    sink = ProgressSink(100)
    sink.take(list(lines))
    sink.close()
    return [record.getMessage() for record in caplog.records]


def test_a_sentence_is_shown_beside_what_the_model_made_of_it(caplog: pytest.LogCaptureFixture) -> None:
    assert printed(caplog, PREVIEW) == ["step 30 rebuilds 'a red bird sings' → 'a red cat sings'"]
    exact = {**PREVIEW, "text": "a red bird sings"}
    assert printed(caplog, exact) == ["step 30 rebuilds 'a red bird sings' → 'a red bird sings' (exact)"]
    assert printed(caplog, {**PREVIEW, "original": None}) == ["step 30 writes from noise: 'a red cat sings'"]


def test_a_hostile_sentence_stays_short_and_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = printed(caplog, {**PREVIEW, "text": "\x1b[2J\n\ud800" + "word " * 500})
    assert len(line) < 500
    assert line.isprintable()
    json.dumps(line).encode()


def test_the_estimate_is_shown_rounded_with_what_it_was_measured_on(caplog: pytest.LogCaptureFixture) -> None:
    event = {
        "event": "estimate", "step": 29, "time": 0.0, "seconds_left": 497.4, "seconds_per_step": 0.1776,
        "measured_steps": 28,
    }  # fmt: skip
    (line,) = printed(caplog, event)
    until = time.strftime("%H:%M", time.localtime(497.4))
    assert line.startswith(f"the training takes about 8 min more on this machine, until about {until} ")
    (later,) = printed(caplog, {**event, "time": 7_200.0})
    assert f"until about {time.strftime('%H:%M', time.localtime(7_200 + 497.4))} " in later
    assert line.endswith(" (0.178 s a step, measured over 28 steps)")


def test_an_unknown_remaining_time_is_no_zero() -> None:
    line = {"step": 1, "loss": 1.0, "tokens_per_second": 5.0}
    assert "– left" in progress_line(line, max_steps=9, smoothed=None)
    assert "0:00 left" in progress_line({**line, "seconds_left": 0.0}, max_steps=9, smoothed=None)


def test_a_preview_that_failed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    event = {"event": "preview_failed", "step": 1, "reason": "OutOfMemoryError: no memory"}
    assert printed(caplog, event) == ["step 1: preview failed OutOfMemoryError: no memory"]


def test_elsewhere_than_on_a_terminal_a_line_comes_at_its_interval_and_after_the_last_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.tracking.progress")
    now = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sink = ProgressSink(100)
    for seconds, step in ((0, 1), (14, 2), (16, 3), (17, 99), (18, 100)):
        now[0] = 1000.0 + seconds
        sink.take([{"step": step, "loss": 1.0, "lr": 0.1}])
        sink.take([{"step": step, "validation/loss": 1.0}])  # a line without a step of training
    assert [record.getMessage().partition(" · ")[0] for record in caplog.records] == [
        "step 1/100", "step 3/100", "step 100/100"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["skip", "rollback", "checkpoint_failed", "checkpoint_damaged", "ended_early", "resume_differs", "alert",
     "preview_failed"],
)  # fmt: skip
def test_every_warning_of_a_training_is_shown(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    words = {"fields": ["x: 1"]} if kind == "resume_differs" else {"reason": "why"}
    (line,) = printed(caplog, {"event": kind, "step": 7, **words})
    assert line == f"step 7: {kind.replace('_', ' ')} {next(iter(words.values()))}"
    assert caplog.records[0].levelname == "WARNING"
    assert printed(caplog, {"event": "start", "step": 7, "resumed_from": "step-00000007"}) == [
        "continuing from checkpoint step-00000007"
    ]
    assert printed(caplog, {"event": "start", "step": 0, "resumed_from": None}, {"event": "trains", "step": 0}) == []


def test_a_checkpoint_is_named_only_where_a_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    start = {"event": "start", "step": 0, "resumed_from": None}
    assert printed(caplog, start) == []
    assert printed(caplog, {**start, "resumed_from": "step-00000004"}) == ["continuing from checkpoint step-00000004"]


def test_a_terminal_shows_one_line_that_is_rewritten_and_events_on_lines_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    sink = ProgressSink(100)
    sink.close()
    line = {"step": 3, "loss": 1.0, "lr": 0.1}
    sink.take([line, {**line, "step": 4}])
    sink.take([{**line, "step": 5}])
    shown = capsys.readouterr().err
    assert [text.partition(" ")[0] for text in shown.split("\r")] == ["", "\x1b[2Kstep", "\x1b[2Kstep"]
    assert "step 4/100" in shown, "the newest of several"
    assert "step 3/100" not in shown
    assert "\n" not in shown
    sink.take([{"event": "skip", "step": 5, "reason": "why"}])
    assert capsys.readouterr().err == "\n", "the warning begins on a new line"
    sink.close()
    assert capsys.readouterr().err == ""
    assert [record.getMessage() for record in caplog.records] == ["step 5: skip why"]
