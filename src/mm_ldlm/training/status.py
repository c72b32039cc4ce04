"""How a run stands, as a small file in its folder that others may read at any time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

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
