"""How a run stands, as a small file in its folder that others may read at any time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

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
