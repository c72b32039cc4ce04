"""Errors of ranks: a failing rank records its error, and the launcher reports the first one in one paragraph."""

import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_ldlm.core import MMLDLMError, own_place
from mm_ldlm.core.files import write_text
from mm_ldlm.distributed import environment

_NOTED = "mm_ldlm_raised"
_ENDED = "ended"
"""File in the log folder of a rank that a signal ended: its stack at that moment"""
_CONSEQUENCES = (-signal.SIGTERM, -signal.SIGABRT)
"""Exit codes of ranks that the agent ended, or NCCL's watchdog because a peer was gone. A signal from outside has the
same codes, but arrives before any rank recorded an error (`_signalled`)"""
_AGENT_KILLS_AFTER = 30
"""Seconds between the SIGTERM and the SIGKILL with which the elastic agent ends ranks"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """The error that ended one rank.

    Attributes:
        error_class: name of the exception's class.
        message: text of the exception.
        location: FILE:LINE of the user's own code, or else of what raised it; "" for errors of this project, whose
            message is enough.
        time: when the error was raised, in seconds since the epoch.
        log: file with the error stream of the rank; known to the launcher only.
    """

    rank: int
    host: str
    step: int | None
    error_class: str
    message: str
    location: str
    time: float
    log: str = ""

    @property
    def is_ours(self) -> bool:
        return not self.location

    def __str__(self) -> str:
        step = "before the first step" if self.step is None else f"at step {self.step}"
        kind = "" if self.is_ours else f"{self.error_class} ({self.location}): "
        return f"rank {self.rank} on {self.host} failed {step}: {kind}{self.message} (log: {self.log})"


# -- in a rank ---------------------------------------------------------------------------------------------------------


def note(error: BaseException, *, step: int | None) -> None:
    """Note step and time of an error where it is caught first, before the process group closes.

    Other ranks lose the connection to this one only when its group closes. Their errors are therefore later than this
    one, and need not be told apart by their texts, which is all that gloo's bare RuntimeError would offer.
    """
    error.__dict__.setdefault(_NOTED, (step, time.time()))


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Record an error of the block for the launcher; of an error of this project only the message is printed.

    A signal that ends the process is recorded as well, even while it computes.
    """
    if (path := os.environ.get("TORCHELASTIC_ERROR_FILE")) is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        ended = open(Path(path).with_name(_ENDED), "w")  # noqa: SIM115 - the handlers write to it
        faulthandler.enable(ended)
        faulthandler.register(signal.SIGTERM, ended, chain=True)
    try:
        yield
    except (Exception, GeneratorExit) as error:
        if path is not None:
            record(error, path)
        if isinstance(error, MMLDLMError):
            sys.exit(f"{type(error).__name__}: {error}")
        raise


def record(error: BaseException, path: str) -> None:
    """Write the error to the file that the elastic agent reads."""
    note(error, step=None)
    step, raised = error.__dict__[_NOTED]
    last = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    location = "" if isinstance(error, MMLDLMError) else own_place(error) or "".join(last)
    text = " ".join(str(error).split()) or type(error).__name__
    found = Failure(
        rank=environment.rank_info().rank, host=socket.gethostname(), step=step, error_class=type(error).__name__,
        message=text, location=location, time=raised,
    )  # fmt: skip
    about = {
        "py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(raised)),
        "mm_ldlm": dataclasses.asdict(found),
    }  # fmt: skip
    write_text(path, json.dumps({"message": {"message": text, "extraInfo": about}}))


# -- in the launcher ---------------------------------------------------------------------------------------------------


def explain(failures: Mapping[int, Any], log_directory: Path, *, since: float) -> tuple[str, str]:
    """Describe why a launch failed, and return the class of the exception ("" if no rank raised one).

    An error of this project is never the consequence of a lost rank, so it comes first; this also holds between hosts
    whose clocks differ. Then come ranks that ended without a record: killed from outside, or by `os._exit`. The other
    ranks lose their connection to such a rank, and their errors are its consequences.

    Args:
        failures: rank → failure, as the elastic agent reports them.
        since: start of the launch, in seconds since the epoch.
    """
    records = sorted(_records(log_directory, since), key=lambda found: (not found.is_ours, found.time))
    known = {found.rank for found in records}
    begin = min(item.timestamp for item in failures.values())
    silent = [
        rank
        for rank, item in failures.items()
        if rank not in known
        and item.exitcode not in _CONSEQUENCES
        and item.timestamp < begin + _AGENT_KILLS_AFTER / 2  # later the agent itself sends SIGKILL
    ] or _signalled(failures, log_directory, before=[Path(found.log).with_name("error.json") for found in records])
    if records and (records[0].is_ours or not silent):
        return str(records[0]), records[0].error_class
    rank = min(silent or failures)
    return _ended(rank, failures[rank], log_directory), ""


def _records(log_directory: Path, since: float) -> Iterator[Failure]:
    for path in log_directory.rglob("error.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # of another program, or half written
            plain = json.loads(path.read_text(encoding="utf-8"))["message"]["extraInfo"]["mm_ldlm"]
            found = Failure(**{**plain, "log": str(path.parent / "stderr.log")})
            if found.time >= since:
                yield found


def _signalled(failures: Mapping[int, Any], log_directory: Path, *, before: Sequence[Path]) -> list[int]:
    """Find the rank that a signal ended first, if that was before these records; later the agent sends the signals.

    The times are modification times on one file system, because the clocks of hosts differ.
    """
    ended = {rank: _log(item, log_directory).with_name(_ENDED) for rank, item in failures.items()}
    found = {rank: path.stat().st_mtime_ns for rank, path in ended.items() if path.is_file() and path.stat().st_size}
    first = sorted(found, key=lambda rank: found[rank])[:1]
    return [rank for rank in first if all(found[rank] < path.stat().st_mtime_ns for path in before)]


def _log(item: Any, log_directory: Path) -> Path:
    """Return the newest log of a rank; the folder itself if there is none."""
    logs = log_directory.glob(f"*/attempt_*/{item.local_rank}/stderr.log")
    return max(logs, key=lambda path: path.stat().st_mtime, default=log_directory)


def _ended(rank: int, item: Any, log_directory: Path) -> str:
    """Describe a rank that ended without a record."""
    log = _log(item, log_directory)
    if item.exitcode < 0:
        name = signal.Signals(-item.exitcode).name
        hint = " The kernel sends SIGKILL when memory runs out: see `dmesg`." if name == "SIGKILL" else ""
        return f"rank {rank} was ended by {name} from outside.{hint} (log: {log})"
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    last = f"; the last line of its log is: {lines[-1].strip()}" if lines else ""
    return f"rank {rank} ended with exit code {item.exitcode} without recording an error{last} (log: {log})"
