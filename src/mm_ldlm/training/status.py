"""How a run stands, as a small file in its folder that others may read at any time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mm_ldlm.errors import CheckpointError
from mm_ldlm.store import atomic

LOG = "training_log.jsonl"
STATUS = "status.json"


def write_status(directory: Path, status: str, step: int, **more: Any) -> None:
    atomic.write_json(directory / STATUS, {"status": status, "step": step, "time": round(time.time(), 3), **more})


def read_status(directory: Path) -> dict[str, Any]:
    """{"status": running | finished | stopped | paused | failed | absent, "step": …}."""
    try:
        found: dict[str, Any] = json.loads((directory / STATUS).read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return {"status": "absent", "step": 0}
    except ValueError as error:
        raise CheckpointError(
            f"{directory / STATUS}: not readable as JSON ({error}). Remove it: the run then goes on from its newest "
            "checkpoint."
        ) from None


@contextmanager
def sole_writer(file: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Whether this process alone holds `file`, until the block ends; the lock ends with its process, however that ends.

    `wait_seconds` gives the workers of a launcher that was just killed time to save and leave.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + wait_seconds
    with file.open("a") as handle:
        while not (held := _lock(handle)) and time.monotonic() < give_up:
            time.sleep(0.2)
        yield held


def _lock(handle: IO[str]) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing can be told
        return True
    return True


FAILURE = "failure.json"


def write_failure(directory: Path, launch: str, error: Exception) -> None:
    """An error that would come again: the ranks of this launch that are restarted repeat it instead of trying."""
    if launch and directory.is_dir() and read_failure(directory, launch) is None:
        atomic.write_json(directory / FAILURE, {"launch": launch, "text": str(error)})


def read_failure(directory: Path, launch: str) -> str | None:
    """The text of the error that ended an earlier attempt of this very launch."""
    try:
        found = json.loads((directory / FAILURE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(found["text"]) if found["launch"] == launch else None
