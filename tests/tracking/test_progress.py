"""Lines of a training on the terminal beside those of numbers: the estimate of its time, and its sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mm_ldlm.tracking.progress import ProgressSink, progress_line

PREVIEW: dict[str, Any] = {"event": "preview", "step": 30, "original": "a red bird sings", "text": "a red cat sings"}


def printed(caplog: pytest.LogCaptureFixture, *lines: dict[str, Any]) -> list[str]:
    caplog.clear()
    caplog.set_level("INFO", logger="mm_ldlm.tracking.progress")
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
    assert line.startswith("the training takes about 8 min more on this machine, until about ")
    assert line.endswith(" (0.178 s a step, measured over 28 steps)")


def test_an_unknown_remaining_time_is_no_zero() -> None:
    line = {"step": 1, "loss": 1.0, "tokens_per_second": 5.0}
    assert "– left" in progress_line(line, max_steps=9, smoothed=None)
    assert "0:00 left" in progress_line({**line, "seconds_left": 0.0}, max_steps=9, smoothed=None)


def test_a_preview_that_failed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    event = {"event": "preview_failed", "step": 1, "reason": "OutOfMemoryError: no memory"}
    assert printed(caplog, event) == ["step 1: preview failed OutOfMemoryError: no memory"]
