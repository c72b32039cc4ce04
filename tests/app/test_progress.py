"""Progress: no line of a training's log is missed, and every line can be shown."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.app.progress import Follower, ProgressSink, progress_line, sentence
from mm_ldlm.core import progress
from mm_ldlm.core.progress import shown
from mm_ldlm.training.jsonl import Tracker


def test_a_follower_misses_no_line_and_survives_its_sinks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []

    def sink(lines: Any) -> None:
        received.extend(line["step"] for line in lines)

    def broken(lines: Any) -> None:
        raise RuntimeError("a" * 10**5)

    log = Tracker(tmp_path / "log.jsonl")
    log.metrics(0, {})  # of an earlier session
    follower, other = Follower(tmp_path / "log.jsonl", sink), Follower(tmp_path / "log.jsonl", broken)
    writers = [threading.Thread(target=log.metrics, args=(step, {"loss": 1.0})) for step in range(1, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    until = time.monotonic() + 30
    while len(received) < 19 and time.monotonic() < until:  # lines are passed on while the training runs
        time.sleep(0.05)
    assert len(received) == 19
    follower.stop()
    other.stop()
    log.close()
    assert sorted(received) == list(range(1, 20))
    assert follower.lines == 19
    assert len(caplog.text) < 2000


def test_progress_is_shown_in_lines_and_events_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sink = ProgressSink(3)
    sink([{"step": 1, "loss": "nan", "lr": 0.1}, {"step": 2, "loss": 2.0, "lr": 0.1, "seconds_left": 3700.0}])
    sink(
        [
            {"event": "rollback", "step": 2, "reason": "loss grew"},
            {"event": "start", "step": 0, "resumed_from": "step-1"},
        ]
    )
    sink([])
    assert "step 2/3" in caplog.text
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "step 2: rollback loss grew"
    ]
    assert "step-1" in caplog.text


@given(st.dictionaries(st.sampled_from(["loss", "lr", "grad_norm", "tokens_per_second", "skipped"]),
                       st.one_of(st.floats(), st.sampled_from(["nan", "inf", "x", None]))),
       st.floats(0, 1e9) | st.none())  # fmt: skip
def test_any_line_of_the_log_can_be_shown(line: dict[str, Any], left: float | None) -> None:
    assert progress_line({"step": 1, "seconds_left": left, **line}, max_steps=2, smoothed=None).isprintable()


def test_the_remaining_time_includes_the_pipelines_after_the_training() -> None:
    line = {"step": 1, "seconds_left": 60.0, "seconds": 40.0}
    shown = [progress_line(line, max_steps=2, smoothed=None, later=later) for later in (0.0, 20.0, None)]
    assert ["60 s left" in shown[0], "80 s left" in shown[1], "80 s left" in shown[2]] == [True] * 3


def test_a_long_loop_is_a_line_of_the_log_at_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    assert [*shown("abc", total=3, desc="soon", unit="rows")] == [*"abc"]
    assert not caplog.text
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with shown(desc="counted", unit="rows") as bar:
        bar.update(7)
    assert [*shown("abc", total=3, desc="looped", unit="rows")] == [*"abc"]
    assert all(words in caplog.text for words in ("counted: 7 rows", "looped: 3 of 3 rows"))
    assert not capsys.readouterr().err.strip()


def test_sentences_are_one_line() -> None:
    shown = sentence({"step": 1, "text": "a\nb" * 1000, "original": "a"})
    assert shown.isprintable()
    assert len(shown) < 500
    assert "exact" in sentence({"step": 1, "text": "a", "original": "a"})
    assert "noise" in sentence({"step": 1, "text": "a"})
