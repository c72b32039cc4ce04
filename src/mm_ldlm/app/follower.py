"""Follow the log of a training while it is written, in a thread."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core import reason_of
from mm_ldlm.training.checkpoints.reference import LOG
from mm_ldlm.training.jsonl import NewLines

log = logging.getLogger(__name__)
Lines = Sequence[dict[str, Any]]
Sink = Callable[[Lines], None]

INTERVAL = 0.5
"""Seconds between two reads of a log"""


class Follower:
    """A thread that passes new lines of a log to a sink until it is stopped, then the rest, then an empty list.

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
