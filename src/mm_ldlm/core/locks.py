"""Locks between runs: one writer of a folder, or any number of readers, each with a record of who holds it.

A lock is an advisory lock of the operating system (`flock`) on a small file, so that it ends with its process, however
that ends. The lines of the file are the records of its holders, for the message of a run that is refused.
"""

import contextlib
import datetime
import fcntl
import io
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import IO, Any, Literal

import psutil

from mm_ldlm.core.credentials import mask

Use = Literal["write", "read"]
_COMMAND_LETTERS = 200


def take(path: Path, use: Use) -> IO[str] | None:
    """Take a lock at once, which lasts until the returned file is closed or this process ends; None if another process
    holds one that excludes it.

    A reader of a folder that it cannot write to needs no lock where there is no lock file.

    Raises:
        OSError: a writer cannot create the lock file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError:
        if use == "write":
            raise
        try:
            file = open(path, encoding="utf-8")  # noqa: SIM115
        except OSError:
            return io.StringIO()
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if use == "write" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks
        pass
    with contextlib.suppress(OSError):  # a full disk: the lock holds without its record
        if use == "write":
            file.truncate(0)
        if file.writable():
            file.write(json.dumps(_record(use)) + "\n")
            file.flush()
    return file


def wait(path: Path) -> IO[str]:
    """Take a lock for writing as soon as no other process holds one."""
    while (held := take(path, "write")) is None:
        time.sleep(0.1)
    return held


def holder(path: Path) -> str:
    """Describe the last process that took a lock and still runs: its number, host, start, and command."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        for line in reversed(path.read_text(encoding="utf-8", errors="replace").splitlines()):
            record = json.loads(line)
            here = record["host"] == socket.gethostname()
            if not here or psutil.pid_exists(record["pid"]):
                place = "" if here else f" on {record['host']}"
                return f"process {record['pid']}{place}, since {record['since']}: {record['command']}"
    return "another process"


def _record(use: Use) -> dict[str, Any]:
    words = [Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python", *sys.argv[1:]]
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "use": use,
        "command": mask(" ".join(words))[:_COMMAND_LETTERS],
    }
