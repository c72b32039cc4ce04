"""Progress of a training run on the terminal: a line of numbers, the estimate of its time, and its sentences."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from mm_ldlm.app.tracking.follower import Lines
from mm_ldlm.core.messages import about, show
from mm_ldlm.training.jsonl import number

log = logging.getLogger(__name__)
_EVENTS_SHOWN = (
    "skip",
    "rollback",
    "checkpoint_failed",
    "checkpoint_damaged",
    "ended_early",
    "resume_differs",
    "alert",
    "preview_failed",
)
_LONGEST_SENTENCE = 160


class ProgressSink:
    """Shows one line that is rewritten on a terminal, or a new line every `quiet_seconds` elsewhere (files, CI)."""

    def __init__(self, max_steps: int, *, quiet_seconds: float = 15.0) -> None:
        self.max_steps, self.quiet_seconds = max_steps, quiet_seconds
        self._smooth: float | None = None
        self._last = 0.0
        self._terminal = sys.stderr.isatty()
        self._open = False

    def take(self, lines: Lines) -> None:
        for line in lines:
            if "event" in line:
                self._show_event(line)
                continue
            loss = number(line.get("loss"))
            if loss is not None and loss == loss:
                self._smooth = loss if self._smooth is None else 0.9 * self._smooth + 0.1 * loss
        metrics = [line for line in lines if "event" not in line and "lr" in line]
        if metrics:
            self._show(metrics[-1])

    def close(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._open = False

    def _show(self, line: dict[str, Any]) -> None:
        text = progress_line(line, max_steps=self.max_steps, smoothed=self._smooth)
        if self._terminal:
            sys.stderr.write("\r\x1b[2K" + text)
            sys.stderr.flush()
            self._open = True
        elif time.monotonic() - self._last >= self.quiet_seconds or line["step"] >= self.max_steps:
            self._last = time.monotonic()
            log.info(text)

    def _show_event(self, line: dict[str, Any]) -> None:
        if line["event"] == "start" and line.get("resumed_from"):
            log.info("continuing from checkpoint %s", line["resumed_from"])
        if line["event"] == "trains":
            log.info("the model has %s parameters", f"{line['parameters']:,}")
        if line["event"] == "estimate":
            self.close()
            log.info(estimate(line))
        if line["event"] == "preview":
            self.close()
            log.info(sentence(line))
        if line["event"] in _EVENTS_SHOWN:
            self.close()
            words = line.get("reason") or line.get("fields") or ""
            log.warning("step %s: %s %s", line["step"], line["event"].replace("_", " "), words)


def progress_line(line: dict[str, Any], *, max_steps: int, smoothed: float | None) -> str:
    """Format step, loss, smoothed loss, lr, gradient norm, tokens/s, remaining time and skipped steps."""

    def shown(name: str, form: str) -> str:
        value = number(line.get(name))
        return "–" if value is None or value != value else format(value, form)

    left = number(line.get("seconds_left"))
    remaining = "–" if left is None else _clock(left)
    smooth = "–" if smoothed is None else f"{smoothed:.4f}"
    return (
        f"step {line['step']}/{max_steps} · loss {shown('loss', '.4f')} (smoothed {smooth}) · "
        f"lr {shown('lr', '.2e')} · grad {shown('grad_norm', '.3f')} · "
        f"{shown('tokens_per_second', ',.0f')} tokens/s · {remaining} left · {shown('skipped', '.0f')} skipped"
    )


def estimate(line: dict[str, Any]) -> str:
    """Format the event `estimate`: how long the training takes, until when, and what this was measured on."""
    left = line["seconds_left"]
    until = time.strftime("%H:%M", time.localtime(line["time"] + left))
    return (
        f"the training takes {about(left)} more on this machine, until about {until} "
        f"({line['seconds_per_step']:.3g} s a step, measured over {line['measured_steps']} steps)"
    )


def sentence(line: dict[str, Any]) -> str:
    """Format the event `preview`: a held-out sentence and what the model made of it, or a text from noise."""
    text = show(line["text"], _LONGEST_SENTENCE)
    if (original := line.get("original")) is None:
        return f"step {line['step']} writes from noise: {text}"
    same = " (exact)" if original == line["text"] else ""
    return f"step {line['step']} rebuilds {show(original, _LONGEST_SENTENCE)} → {text}{same}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
