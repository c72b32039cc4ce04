"""The curves of a training in MLflow: lines of its log, sent while it runs."""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from mm_ldlm.core import reason_of
from mm_ldlm.extras.mlflow.client import MlflowRun

log = logging.getLogger(__name__)


class MlflowSink:
    """Sends the lines of a log to an MLflow run.

    Lines that the store did not accept are kept and sent again after `PAUSE` seconds and at the end, so that a server
    that was away for a while misses none.
    """

    PAUSE = 60.0
    KEPT = 100_000

    def __init__(self, run: MlflowRun) -> None:
        self._run, self._waiting, self._resting_until = run, list[dict[str, Any]](), -math.inf

    def __call__(self, lines: Sequence[dict[str, Any]]) -> None:
        self._waiting = [*self._waiting, *lines][-self.KEPT :]
        if not self._waiting or (lines and time.monotonic() < self._resting_until):
            return
        try:
            self._run.add_lines(self._waiting)
        except Exception as error:  # requests, SQLAlchemy and MLflow have classes of their own
            if not lines:
                log.warning("MLflow lacks the last %d lines of the log file, which is complete", len(self._waiting))
            elif self._resting_until == -math.inf:
                log.warning("MLflow does not answer (%s); the run goes on, and its log is sent later", reason_of(error))
            self._resting_until = time.monotonic() + self.PAUSE
        else:
            self._waiting, self._resting_until = [], -math.inf
