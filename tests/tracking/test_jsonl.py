from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mm_ldlm.app.tracking.follower import Follower
from mm_ldlm.training.tracker import Silent, Tracker

from mm_ldlm.app.tracking.mlflow import MlflowSink
from mm_ldlm.app.tracking.progress import ProgressSink, progress_line
from mm_ldlm.core.errors import StoreError
from mm_ldlm.training.jsonl import JsonlTracker, follow, number, read_events, read_lines, read_metrics


def test_lines_events_and_numbers_that_json_lacks(tmp_path: Path) -> None:
    tracker: Tracker = JsonlTracker(tmp_path / "run" / "log.jsonl")
    tracker.metrics(1, {"loss": math.nan, "norm": math.inf, "ok": 1.5})
    tracker.event(1, "trains", parameters=7)
    tracker.event(1, "skip", reason="loss is nan", rows=[1, 2])
    tracker.close()
    for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    (line,) = read_metrics(tmp_path / "run" / "log.jsonl")
    assert math.isnan(number(line["loss"]) or 0)
    assert number(line["norm"]) == math.inf
    assert number(line["ok"]) == 1.5
    (event,) = read_events(tmp_path / "run" / "log.jsonl", "skip")
    assert event["rows"] == [1, 2]
    assert event["time"] > 0
    assert [line["event"] for line in read_events(tmp_path / "run" / "log.jsonl")] == ["trains", "skip"]
    Silent().metrics(1, {})


def test_the_last_line_of_a_step_counts_and_half_a_line_of_a_killed_writer_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 3, "lo')
    assert len(read_lines(path)) == 2
    tracker = JsonlTracker(path)
    tracker.metrics(2, {"loss": 1})
    tracker.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(1, 3), (2, 1)]


def test_following_sees_every_line_once_from_where_the_log_ends(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tracker = JsonlTracker(path)
    tracker.metrics(0, {})
    stop = threading.Event()
    lines = follow(path, stop=stop.is_set, interval=0.01)
    assert next(lines) == []
    tracker.metrics(1, {})
    assert [line["step"] for line in next(lines)] == [1]
    tracker.metrics(2, {})
    stop.set()
    assert [line["step"] for batch in lines for line in batch] == [2]


class Sink:
    def __init__(self, *, breaks: bool = False) -> None:
        self.lines: list[dict[str, Any]] = []
        self.closed, self.breaks = False, breaks

    def take(self, lines: Any) -> None:
        assert not self.closed, "after its end nothing is shown"
        if self.breaks:
            raise OSError("the server is gone")
        self.lines += lines

    def close(self) -> None:
        self.closed = True


def test_a_follower_passes_on_every_line_and_removes_a_broken_sink(tmp_path: Path) -> None:
    good, bad = Sink(), Sink(breaks=True)
    path = tmp_path / "log.jsonl"
    with Follower(path, [bad, good], interval=0.01):
        tracker = JsonlTracker(path)
        for step in range(50):
            tracker.metrics(step, {"loss": 1.0})
            time.sleep(0.001)
    assert [line["step"] for line in good.lines] == list(range(50))
    assert good.closed


def test_the_progress_line_shows_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    line = {
        "step": 30,
        "loss": 1.23456,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "tokens_per_second": 12345.6,
        "seconds_left": 3725,
        "skipped": 2,
    }
    text = progress_line(line, max_steps=100, smoothed=1.5)
    for part in ("30/100", "1.2346", "smoothed 1.5000", "1.00e-03", "0.500", "12,346 tokens/s", "1:02:05", "2 skipped"):
        assert part in text
    assert "–" in progress_line({"step": 1, "loss": "nan"}, max_steps=2, smoothed=None)
    sink = ProgressSink(100)
    sink.take([line, {"event": "skip", "step": 31, "reason": "loss is nan"}])
    sink.close()


def test_the_smoothed_loss_keeps_nine_tenths_of_its_past(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.tracking.progress")
    sink = ProgressSink(100, quiet_seconds=0.0)
    sink.take([{"step": step, "loss": loss, "lr": 0.1} for step, loss in ((1, 1.0), (2, "nan"), (3, 2.0))])
    assert "smoothed 1.1000" in caplog.text


def test_lines_reach_mlflow_with_their_steps(uri: str) -> None:
    from mm_ldlm.app.tracking.mlflow import client, close_run, open_run

    run_id = open_run(uri, experiment="e", name="n", parameters={}, tags={})
    sink = MlflowSink(uri, run_id)
    sink.take(
        [{"step": step, "loss": 2.0 - step, "l2t/text_loss": 1.0, "mode": "l2t", "bad": "nan"} for step in range(3)]
    )
    sink.take([{"event": "skip", "step": 2, "reason": "loss is nan"}])
    sink.take([{"event": "preview", "step": 2, "original": "a bird", "text": "a cat", "seconds": 0.1}])
    close_run(uri, run_id, status="KILLED")
    history = client(uri).get_metric_history(run_id, "1_headline/loss")
    assert [(item.step, item.value) for item in history] == [(0, 2.0), (1, 1.0), (2, 0.0)]
    run = client(uri).get_run(run_id)
    assert run.info.status == "KILLED"
    assert "skip" in run.data.tags["last_event"]
    assert run.data.tags["preview"] == "a bird → a cat"
    assert run.data.metrics.keys() == {"1_headline/loss", "2_training/l2t/text_loss"}


def test_a_broken_sink_is_removed_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower(tmp_path / "log.jsonl", [Sink(breaks=True), good := Sink()])
    for step in range(3):
        follower._pass_on([{"step": step}])
    assert [record.getMessage().partition(" follows ")[0] for record in caplog.records] == ["Sink no longer"]
    assert len(good.lines) == 3


def test_a_follower_closes_its_sinks_after_the_last_lines(tmp_path: Path) -> None:
    """The lines that are written last reach a sink that takes long, and then it is closed."""

    class Slow(Sink):
        def take(self, lines: Any) -> None:
            time.sleep(0.05)
            super().take(lines)

    sink = Slow()
    tracker = JsonlTracker(tmp_path / "log.jsonl")
    with Follower(tmp_path / "log.jsonl", [sink], interval=0.01):
        for step in range(3):
            tracker.metrics(step, {"loss": 1.0})
            time.sleep(0.02)
    assert [line["step"] for line in sink.lines] == [0, 1, 2]
    assert sink.closed


def test_a_line_that_is_written_at_the_end_is_followed(tmp_path: Path) -> None:
    """It is in the log before the end is seen, but after the last reading."""
    tracker = JsonlTracker(tmp_path / "log.jsonl")
    ends = iter([False, True, True])

    def stop() -> bool:
        end = next(ends)
        if end:
            tracker.metrics(7, {})
        return end

    lines = follow(tmp_path / "log.jsonl", stop=stop, interval=0.0)
    assert next(lines) == []
    assert [line["step"] for line in next(lines)] == [7]


def test_a_line_is_followed_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = follow(path, stop=lambda: False, interval=0.0)
    assert next(lines) == [], "there is no log yet"
    path.write_text('{"step": 1}\n{"step": 2, "text": "é')
    assert next(lines) == [{"step": 1}]
    assert next(lines) == []
    with path.open("a") as file:
        file.write('ü"}\n')
    assert next(lines) == [{"step": 2, "text": "éü"}]


def test_a_log_that_exists_is_followed_from_its_end_or_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n')
    assert next(follow(path, stop=lambda: False)) == []
    assert next(follow(path, stop=lambda: False, from_start=True)) == [{"step": 1}]


def test_metrics_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    """After a roll-back earlier steps come again."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in ((5, 1), (9, 2), (6, 3), (5, 4))))
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(5, 4), (6, 3), (9, 2)]


@pytest.mark.parametrize("line", ["no json", "[1]", "{", "3"])
def test_a_damaged_line_is_named_by_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1}}\n\n{line}\n')
    with pytest.raises(StoreError, match=r"log\.jsonl: line 3 is not a JSON object"):
        read_lines(path)
