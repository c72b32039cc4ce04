"""Child processes of the fault campaign: forks that run one stage and meet one fault at a chosen write.

The moment of a fault is the n-th call of `os.replace` or `os.fsync`, with which every file of the project is committed,
so that faults fall between a write and its commit on machines of any speed.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import MMLDLMError

MINUTES = 5.0
"""A child that runs longer than this hangs."""


def run_child(
    stage: Callable[[], Any], *, notes: Path, at: int | None = None, fault: str = "none", memory: int | None = None,
    user: int | None = None, warm: Callable[[], Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run a stage in a fork; return its ending: {"code": exit code, "error": ..., "writes": number of commits, ...}.

    Args:
        notes: file that the child leaves its ending in.
        at: number of the commit at which the fault occurs.
        fault: the name of a signal, "disk_full", "clock_back" or "none".
        memory: bytes that the child may allocate beyond what it has.
        user: number of the user that the child becomes.
        warm: called before the child becomes this user, who may not be able to import modules.
    """
    notes.unlink(missing_ok=True)
    notes.touch()
    notes.chmod(0o666)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _in_child(stage, notes, at, fault, memory, user, warm)
    stopped = False
    deadline = time.monotonic() + 60 * MINUTES
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            stopped = True
            time.sleep(0.3)
            os.kill(pid, signal.SIGCONT)
        elif found:
            break
        elif time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"the stage hangs after {fault}")
        else:
            time.sleep(0.01)
    try:
        os.killpg(pid, signal.SIGKILL)
        orphans = True
    except (ProcessLookupError, PermissionError):
        orphans = False
    text = notes.read_text()
    return {
        "code": os.waitstatus_to_exitcode(status),
        "orphans": orphans,
        "stopped": stopped,
        **(json.loads(text) if text else {}),
    }


def _in_child(
    stage: Callable[[], Any],
    notes: Path,
    at: int | None,
    fault: str,
    memory: int | None,
    user: int | None,
    warm: Callable[[], Any] | None,
) -> None:
    code, ending = 70, {}
    with open(notes, "w") as file:
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            quiet = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(quiet, descriptor)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            if warm is not None:
                warm()
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            if memory is not None:
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))
            with _fault_at(at, fault) as count:
                try:
                    ending["result"] = repr(stage())
                finally:
                    ending["writes"] = count[0]
            code = 0
        except MMLDLMError as error:
            code, ending = 1, {**ending, "error": f"{type(error).__name__}: {error}"}
        except OSError as error:  # the command line describes these by their number
            code, ending = 3, {**ending, "error": str(error), "errno": error.errno, "traceback": _places(error)}
        except BaseException as error:
            code, ending = 2, {**ending, "error": f"{type(error).__name__}: {error}", "traceback": _places(error)}
        finally:
            try:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                file.write(json.dumps(ending))
                file.flush()
            finally:
                os._exit(code)


def _places(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-8))[-2500:]


@contextmanager
def _fault_at(at: int | None, fault: str) -> Iterator[list[int]]:
    """Count the commits of this process, and let the fault happen at one of them."""
    count = [0]
    real_replace, real_fsync, real_time = os.replace, os.fsync, time.time
    back = [0.0]

    def meet() -> None:
        count[0] += 1
        if fault == "disk_full" and at is not None and count[0] >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if at is None or count[0] != at:
            return
        if fault == "clock_back":
            back[0] = 86_400.0
        elif fault.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, fault))
            if fault in ("SIGTERM", "SIGINT"):
                time.sleep(0.01)  # the handler runs in the main thread

    def replace(*arguments: Any, **keys: Any) -> Any:
        meet()
        return real_replace(*arguments, **keys)

    def fsync(descriptor: int) -> None:
        meet()
        real_fsync(descriptor)

    os.replace, os.fsync = replace, fsync
    time.time = lambda: real_time() - back[0]
    try:
        yield count
    finally:
        os.replace, os.fsync, time.time = real_replace, real_fsync, real_time
