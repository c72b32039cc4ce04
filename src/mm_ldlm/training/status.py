"""Status and lock of a run: small files that other processes can read at any time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.core.files import InputFile, recorded, write_json
from mm_ldlm.core.locks import try_lock

log = logging.getLogger(__name__)
LOG = "training_log.jsonl"
STATUS = "status.json"
LOCK_SECONDS = 20.0
"""Longest time to wait for the lock of a run"""


def write_status(directory: Path, status: str, step: int, **more: Any) -> None:
    write_json(directory / STATUS, {"status": status, "step": step, "time": round(time.time(), 3), **more})


def read_status(directory: Path) -> dict[str, Any]:
    """Read {"status": running | finished | stopped | paused | failed | absent, "step": …}."""
    remedy = "Remove it: the run then continues from its newest checkpoint."
    if not os.path.lexists(directory / STATUS):
        return {"status": "absent", "step": 0}
    found = InputFile(directory / STATUS, remedy=remedy, error=CheckpointError).json(dict)
    kinds = {"status": str, "step": int, "metrics": dict}
    defaults: dict[str, Any] = {"status": None, "step": None, "metrics": {}}
    known = defaults | found
    if not all(isinstance(known[key], kind) for key, kind in kinds.items()):
        raise CheckpointError(
            f"{directory / STATUS}: expected a status, a step and metrics, found {found!r:.80}. {remedy}"
        )
    return dict(found)


@contextmanager
def sole_writer(root: Path, name: str) -> Iterator[bool]:
    """Lock run `name` until the block ends; yield whether this process has the lock, which ends with the process.

    The function waits up to `LOCK_SECONDS`, because the workers of a killed launcher save before they end.
    """
    root.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + LOCK_SECONDS
    with _lock_file(root, name).open("a") as handle:
        if not (held := try_lock(handle)):
            log.info("run %s: another process writes to it; waiting up to %.0f s for it to end", name, LOCK_SECONDS)
        while not held and time.monotonic() < give_up:
            time.sleep(0.2)
            held = try_lock(handle)
        yield held


def taken(root: Path, name: str) -> str:
    """Return the error message for a second writer."""
    return (
        f"another training is writing to {root / name} (it holds the lock {_lock_file(root, name).name}). Wait for it, "
        "stop it, or set training.run_name to another name."
    )


def _lock_file(root: Path, name: str) -> Path:
    return root / f".{name}.lock"


FAILURE = "failure.json"


def write_failure(directory: Path, launch: str, error: Exception) -> None:
    """Record an error that would recur, so that restarted ranks of this launch raise it instead of training again."""
    if launch and directory.is_dir() and read_failure(directory, launch) is None:
        write_json(directory / FAILURE, {"launch": launch, "text": str(error)})


def read_failure(directory: Path, launch: str) -> str | None:
    """Read the text of the error that ended an earlier attempt of the same launch."""
    found = recorded(directory / FAILURE) or {}
    return str(found.get("text")) if found.get("launch") == launch else None
