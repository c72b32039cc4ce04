"""Show the progress of training: a thread that reads the log while it is written, and the line on the terminal."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core import duration, reason_of, show
from mm_ldlm.core.progress import QUIET_SECONDS
from mm_ldlm.training.checkpoints.reference import LOG
from mm_ldlm.training.jsonl import NewLines, number

log = logging.getLogger(__name__)
Lines = Sequence[dict[str, Any]]
Sink = Callable[[Lines], None]

_SHOWN = frozenset(
    ("skip", "rollback", "checkpoint_failed", "ended_early", "resume_differs", "init_differs", "alert",
     "preview_failed", "best_unknown", "objective_warning")
)  # fmt: skip
"""Events that are shown as warnings"""
_LONGEST_SENTENCE = 160
INTERVAL = 0.5
"""Seconds between two looks at a log"""
AFTER_TRAINING = 0.2
"""Seconds of sampling, evaluation and reporting ÷ seconds of training in the base run, for a first run"""


class Follower:
    """A thread that passes new lines of a log to a sink until it is stopped, then the remaining lines, then none.

    A sink that raises gets no more lines, with a warning, because an error in tracking must not stop the run.
    """

    def __init__(self, path: Path, sink: Sink) -> None:
        self.lines = 0
        """Number of lines that were passed on"""
        self._path, self._sink, self._broken = path, sink, False
        self._done = threading.Event()
        self._log = NewLines(path)
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Pass on the lines that were written until now, then end."""
        self._done.set()
        self._thread.join(timeout=60)
        self._pass_on([])

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._done.wait(INTERVAL)
            if lines := self._log.take():
                self._pass_on(lines)

    def _pass_on(self, lines: Lines) -> None:
        self.lines += len(lines)
        if not self._broken:
            try:
                self._sink(lines)
            except Exception as error:
                self._broken = True
                log.warning("%s no longer follows %s: %s", type(self._sink).__name__, self._path, reason_of(error))


def follower_of(inputs: Mapping[str, Any], sink: Sink) -> Follower:
    """Follow the log of the training that a node runs, whose inputs these are."""
    return Follower(inputs["runs"] / inputs["training_spec"]["name"] / LOG, sink)


class ProgressSink:
    """Shows one line that is rewritten on a terminal, or a new line every minute elsewhere (files, CI).

    Args:
        later: seconds of the pipelines of the run that follow the training; None: unknown.
    """

    def __init__(self, max_steps: int, *, later: float | None = 0.0) -> None:
        self.max_steps, self.later = max_steps, later
        self._smooth: float | None = None
        self._last = 0.0
        self._open = False  # whether the terminal is in a line that will be rewritten

    def __call__(self, lines: Lines) -> None:
        for line in lines:
            if "event" in line:
                self._show_event(line)
            elif (loss := number(line.get("loss"))) is not None and not math.isnan(loss):
                self._smooth = loss if self._smooth is None else 0.9 * self._smooth + 0.1 * loss
        metrics = [line for line in lines if "event" not in line and "lr" in line]
        if metrics:
            self._show(metrics[-1])
        if not lines:
            self._end_line()

    def _end_line(self) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False

    def _show(self, line: dict[str, Any]) -> None:
        text = progress_line(line, max_steps=self.max_steps, smoothed=self._smooth, later=self.later)
        if sys.stderr.isatty():
            print("\r\x1b[2K" + text, end="", file=sys.stderr, flush=True)
            self._open = True
        elif time.monotonic() - self._last >= QUIET_SECONDS or line["step"] >= self.max_steps:
            self._last = time.monotonic()
            log.info(text)

    def _show_event(self, line: dict[str, Any]) -> None:
        event = line["event"]
        words = {
            "start": f"continuing from checkpoint {line['resumed_from']}" if line.get("resumed_from") else "",
            "preview": sentence(line) if event == "preview" else "",
        }.get(event, "")
        if words or event in _SHOWN:
            self._end_line()
        if words:
            log.info(words)
        if event in _SHOWN:
            why = line.get("reason") or line.get("fields") or ""
            log.warning("step %s: %s %s", line["step"], event.replace("_", " "), why)


def progress_line(line: dict[str, Any], *, max_steps: int, smoothed: float | None, later: float | None = 0.0) -> str:
    """Format step, loss, smoothed loss, lr, gradient norm, tokens/s, remaining time of the run and skipped steps."""

    def shown(value: Any, form: str) -> str:
        value = number(value)
        return "–" if value is None or math.isnan(value) else format(value, form)

    left = number(line.get("seconds_left"))
    if left is not None:
        left += AFTER_TRAINING * (left + (number(line.get("seconds")) or 0.0)) if later is None else later
    return (
        f"step {line['step']}/{max_steps} · "
        f"loss {shown(line.get('loss'), '.4f')} (smoothed {shown(smoothed, '.4f')}) · "
        f"lr {shown(line.get('lr'), '.2e')} · grad {shown(line.get('grad_norm'), '.3f')} · "
        f"{shown(line.get('tokens_per_second'), ',.0f')} tokens/s · {'–' if left is None else duration(left)} left · "
        f"{shown(line.get('skipped'), '.0f')} skipped"
    )


def sentence(line: dict[str, Any]) -> str:
    """Format the event `preview`: a held-out sentence and its reconstruction, or a text from noise."""
    text = show(line["text"], _LONGEST_SENTENCE)
    if (original := line.get("original")) is None:
        return f"step {line['step']} writes from noise: {text}"
    same = " (exact)" if original == line["text"] else ""
    return f"step {line['step']} rebuilds {show(original, _LONGEST_SENTENCE)} → {text}{same}"
