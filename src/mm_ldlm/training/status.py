"""Status and lock of a run: small files that other processes can read at any time."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.core.files import InputFile, write_json
from mm_ldlm.core.locks import holder, take

log = logging.getLogger(__name__)
LOG = "training_log.jsonl"
STATUS = "status.json"
LOCK_SECONDS = 20.0
"""Longest time to wait for the lock of a run"""


@dataclasses.dataclass(frozen=True)
class Status:
    """State of a run: running, finished, stopped (the same command resumes it), failed or absent.

    Attributes:
        metrics: those of the newest checkpoint.
        reason: text of the error of a failed run.
        launch: the launch that failed by an error that would recur; "" for others.
    """

    status: str = "absent"
    step: int = 0
    time: float = 0.0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""
    launch: str = ""


def write_status(directory: Path, status: str, step: int, **more: Any) -> None:
    found = Status(status, step, round(time.time(), 3), **more)
    write_json(directory / STATUS, dataclasses.asdict(found))


def read_status(directory: Path) -> Status:
    if not os.path.lexists(directory / STATUS):
        return Status()
    remedy = "Remove it: the run then continues from its newest checkpoint."
    found: Status = InputFile(directory / STATUS, error=CheckpointError, remedy=remedy).json(Status)
    return found


@contextmanager
def sole_writer(root: Path, name: str) -> Iterator[str | None]:
    """Lock run `name` until the block ends, or with this process; yield who else holds the lock, or None.

    The function waits up to `LOCK_SECONDS`, because the workers of a killed launcher save before they end.
    """
    path, give_up = root / f".{name}.lock", time.monotonic() + LOCK_SECONDS
    while (lock := take(path, "write")) is None and time.monotonic() < give_up:
        time.sleep(0.2)
    try:
        yield holder(path) if lock is None else None
    finally:
        if lock is not None:
            lock.release()
