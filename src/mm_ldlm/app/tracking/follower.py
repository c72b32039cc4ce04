"""The follower: read a log while it is written and pass its new lines to sinks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mm_ldlm.training.jsonl import follow

log = logging.getLogger(__name__)
Lines = Sequence[dict[str, Any]]


class Sink(Protocol):
    """Receives the new lines of a log."""

    def take(self, lines: Lines) -> None: ...

    def close(self) -> None: ...


class Follower:
    """A thread that passes new lines of a log to sinks until it is stopped, and then the remaining lines.

    A sink that raises is removed with a warning, because an error in tracking must not stop the run.
    """

    def __init__(self, path: Path, sinks: Sequence[Sink], *, interval: float = 0.5) -> None:
        self._path, self._sinks, self._interval = path, list(sinks), interval
        self._done = threading.Event()
        self._lines = follow(path, stop=self._done.is_set, interval=interval)
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Start at the present end of the log, so that no line that is written from now on is missed."""
        self._first = next(self._lines)
        self._thread.start()

    def stop(self) -> None:
        """Pass on the lines that were written until now, then close the sinks."""
        self._done.set()
        self._thread.join(timeout=60)
        for sink in self._sinks:
            sink.close()

    def _run(self) -> None:
        self._pass_on(self._first)
        for lines in self._lines:
            self._pass_on(lines)

    def _pass_on(self, lines: Lines) -> None:
        if not lines:
            return
        for sink in list(self._sinks):
            try:
                sink.take(lines)
            except Exception as error:
                self._sinks.remove(sink)
                log.warning("%s no longer follows %s: %s", type(sink).__name__, self._path, error)
