"""Failure records: a failing rank writes its error, and the launcher reports the first one."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from mm_ldlm.core.errors import MMLDLMError
from mm_ldlm.distributed import environment

_NOTED = "mm_ldlm_raised"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """The error that ended one rank.

    Attributes:
        error_class: name of the exception's class.
        message: text of the exception.
        location: file and line that raised it; "" for errors of this project, whose message is enough.
        is_ours: whether it is an error of this project.
        time: when the error was raised, in seconds since the epoch.
        log: file with the error stream of the rank; known to the launcher only.
    """

    rank: int
    local_rank: int
    host: str
    step: int | None
    error_class: str
    message: str
    location: str
    is_ours: bool
    time: float
    log: str = ""

    def __str__(self) -> str:
        """Describe rank, step, cause and log in one paragraph."""
        step = "before the first step" if self.step is None else f"at step {self.step}"
        kind = "" if self.is_ours else f"{self.error_class} ({self.location}): "
        return f"rank {self.rank} on {self.host} failed {step}: {kind}{self.message}\n{_where(self.log)}"


def note(error: BaseException, *, step: int | None) -> None:
    """Note step and time of an error where it is caught first, before the process group closes.

    Other ranks lose the connection to this one only when its group closes. Their errors are therefore later than this
    one, and need not be told apart by their texts, which is all that gloo's bare RuntimeError would offer.
    """
    error.__dict__.setdefault(_NOTED, (step, time.time()))


def record(error: BaseException) -> None:
    """Write the error to the file that the elastic agent reads; do nothing when no agent started this process."""
    note(error, step=None)
    step, raised = error.__dict__[_NOTED]
    path = environment.error_file()
    if path is None:
        return
    rank_info = environment.rank_info()
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = isinstance(error, MMLDLMError)
    text = str(error).strip() or type(error).__name__
    found = Failure(
        rank=rank_info.rank,
        local_rank=rank_info.local_rank,
        host=environment.host_name(),
        step=step,
        error_class=type(error).__name__,
        message=text,
        location=f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames and not is_ours else "",
        is_ours=is_ours,
        time=raised,
    )
    message = {
        "message": text,
        "extraInfo": {
            "py_callstack": "".join(traceback.format_exception(error)),
            "timestamp": str(int(time.time())),
            "mm_ldlm": dataclasses.asdict(found),
        },
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"message": message}, file)
    os.replace(temporary, path)


def first_failure(log_directory: Path, *, since: float) -> Failure | None:
    """Read the record of the rank that failed first, after `since` (seconds since the epoch).

    An error of this project is never the consequence of a lost rank, so it comes before others; this also holds between
    hosts whose clocks differ.
    """
    found: list[Failure] = []
    for path in log_directory.rglob("error.json"):
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))["message"]["extraInfo"]["mm_ldlm"]
            failure = Failure(**{**plain, "log": str(path.parent / "stderr.log")})
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if failure.time >= since:
            found.append(failure)
    return min(found, key=lambda failure: (not failure.is_ours, failure.time), default=None)


def describe_signals(exit_codes: Iterable[tuple[int, int, str]]) -> str | None:
    """Describe the first of the (rank, negative exit code, log) of ranks that a signal ended; SIGTERM counts last."""
    ended = sorted(exit_codes, key=lambda item: item[1] == -signal.SIGTERM)
    if not ended:
        return None
    rank, code, log = ended[0]
    name = signal.Signals(-code).name
    hint = " The kernel sends SIGKILL when memory runs out: see `dmesg`." if name == "SIGKILL" else ""
    return f"rank {rank} was ended by {name} from outside.{hint}\n{_where(log)}"


def _where(log: str) -> str:
    """Name the log of a rank, and the folder with those of all ranks of its attempt."""
    return f"The log of that rank is {log}; those of all ranks of this host are in {Path(log).parent.parent}"
