"""The log of a run: one JSON object per line, appended and flushed, so that other processes can follow it.

Lines with the key "event" are events; all others are metrics. After a resume or a rollback, steps repeat: the last line
of a step is valid (`read_metrics`). JSON has no NaN: non-finite numbers are written as "nan", "inf" and "-inf".
"""

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mm_ldlm.core.files import InputFile, refuse_other

_NON_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
"""Non-finite number in Python's JSON → in the log"""


class Tracker:
    """Appends metrics and events to one file; safe to call from several threads.

    Without a file it records nothing, as on every rank but the first.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            refuse_other(path)
            self._file = open(path, "ab")  # noqa: SIM115
            self._file.truncate(_end(path))  # drop an incomplete line of a killed writer

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        self._write({"step": step, **values})

    def event(self, step: int, kind: str, **words: Any) -> None:
        """Record an event: a skipped step, a checkpoint, a rollback."""
        self._write({"event": kind, "step": step, "time": round(time.time(), 3), **words})

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        plain = json.loads(json.dumps(line), parse_constant=_NON_FINITE.__getitem__)
        text = json.dumps(plain, ensure_ascii=False)
        with self._lock:
            if self._file is not None:
                self._file.write(text.encode("utf-8") + b"\n")
                self._file.flush()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read every complete line of a log, in order.

    Raises:
        StoreError: the path is not a file, or a line is not a JSON object.
    """
    door, found = InputFile(path, remedy="Remove the damaged line, or choose another run."), []
    for number, line in enumerate(door.read().splitlines(keepends=True), 1):
        if line.endswith(b"\n") and line.strip():
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                door.refuse("a JSON object in every line", f"something else in line {number}")
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the metric lines in the order of steps; of repeated steps the last line is kept."""
    found = {line["step"]: line for line in read_lines(path) if "event" not in line}
    return [found[step] for step in sorted(found)]


def read_events(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Read the event lines in order, of one kind or of all kinds."""
    return [line for line in read_lines(path) if "event" in line and kind in (None, line["event"])]


def number(value: Any) -> float | None:
    """Convert a logged value to a number, including "nan", "inf" and "-inf"; None for other values."""
    if isinstance(value, (int, float)):
        return float(value)
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value) if isinstance(value, str) else None


class NewLines:
    """Reader of the lines that are appended to a log from now on. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._position = (path.stat().st_ino, _end(path)) if path.exists() else (0, 0)

    def take(self) -> list[dict[str, Any]]:
        """Return the complete lines that were written since the last call."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            if (found := os.fstat(file.fileno()).st_ino) != self._inode:  # a new run of the same name has a new file
                self._inode, self._position = found, 0
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        return [json.loads(line) for line in data.splitlines() if line.strip()]


def _end(path: Path) -> int:
    """Return where the last complete line of a file ends."""
    return path.read_bytes().rfind(b"\n") + 1
