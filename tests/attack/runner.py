"""Child processes of the campaign: a fork of this process for each case, with limits on time and memory.

The modules of the project and the undamaged material are loaded once, before the first fork, so that a case costs
little more than its own work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .oracle import Ending, judge

CPU_SECONDS = 15
WALL_SECONDS = 120.0
"""Cores are shared, so this bound is generous; `IDLE_SECONDS` holds for a child that only waits (pipe, lock)."""
IDLE_SECONDS = 8.0
MEMORY_BYTES = 2 * 2**30
"""Address space that a case may use beyond that of the process that it is forked from."""
FILE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one child process."""

    cpu_seconds: int = CPU_SECONDS
    wall_seconds: float = WALL_SECONDS
    idle_seconds: float = IDLE_SECONDS
    memory_bytes: int = MEMORY_BYTES


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: a target, the seed that it was drawn with, and its parameters, which alone determine it."""

    target: str
    seed: str
    parameters: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> Case:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return cls(plain["target"], plain["seed"], plain["parameters"])


@dataclasses.dataclass(frozen=True)
class Finished:
    """A case with its ending and its cost."""

    case: Case
    ending: Ending
    cpu_seconds: float
    wall_seconds: float


def draw_case(target: str, module: ModuleType, seed: str) -> Case:
    """Draw the parameters of one case; they are converted to JSON and back, so that a kept file replays exactly."""
    parameters = module.generate(random.Random(f"{target} {seed}"))
    return Case(target, seed, json.loads(json.dumps(parameters)))


def run_cases(
    cases: Iterable[Case],
    targets: dict[str, ModuleType],
    material: dict[str, Any],
    *,
    jobs: int = 1,
    limits: Limits | None = None,
) -> Iterator[Finished]:
    """Run cases in child processes, `jobs` at a time, and yield each when it ends."""
    limits = limits or Limits()
    live: list[_Child] = []
    waiting = iter(cases)
    try:
        while True:
            while len(live) < jobs and (case := next(waiting, None)) is not None:
                live.append(_Child(case, targets[case.target], material.get(case.target), limits))
            if not live:
                return
            select.select([child.descriptor for child in live], [], [], min(1.0, limits.idle_seconds / 2))
            for child in list(live):
                if (finished := child.poll()) is not None:
                    live.remove(child)
                    yield finished
    finally:
        for child in live:
            child.kill()


class _Child:
    """One forked case in a session and a folder of its own."""

    def __init__(self, case: Case, module: ModuleType, material: Any, limits: Limits) -> None:
        self.case, self.limits = case, limits
        self.folder = Path(tempfile.mkdtemp(prefix="attack-"))
        self.started = time.monotonic()
        self.deadline = self.started + limits.wall_seconds
        self._late = ""
        self._used, self._idle_since = -1, self.started
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _in_child(self.folder, limits, lambda: module.run(case.parameters, self.folder / "case", material))
        self.descriptor = os.pidfd_open(self.pid)

    def poll(self) -> Finished | None:
        if late := self._is_late():
            self._late = late
            self._signal_group()
        elif not select.select([self.descriptor], [], [], 0)[0]:
            return None
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.descriptor)
        orphans = self._signal_group()
        seconds = usage.ru_utime + usage.ru_stime
        ending = self._ending(os.waitstatus_to_exitcode(status), orphans)
        shutil.rmtree(self.folder, ignore_errors=True)
        return Finished(self.case, ending, seconds, time.monotonic() - self.started)

    def _is_late(self) -> str:
        now = time.monotonic()
        if now > self.deadline:
            return f"more than {self.limits.wall_seconds:.0f} s"
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        used = int(fields[11]) + int(fields[12])
        if fields[0] != "S" or used != self._used:
            self._used, self._idle_since = used, now
        return "waits" if now - self._idle_since > self.limits.idle_seconds else ""

    def kill(self) -> None:
        self._signal_group()
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal_group(self) -> bool:
        """Kill what is left of the child's session; return whether there was anything."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _ending(self, code: int, orphans: bool) -> Ending:
        output = _tail(self.folder / "output")
        if self._late:
            return Ending("time-out", f"{self._late}: {output}", self._late)
        if code == -signal.SIGXCPU:
            return Ending("time-out", f"more than {self.limits.cpu_seconds} s of CPU time: {output}", "CPU time")
        if code < 0:
            kind = "memory" if code == -signal.SIGABRT and "bad_alloc" in output else "signal"
            return Ending(kind, f"{signal.Signals(-code).name}: {output}", _fault_place(output))
        try:
            ending = Ending(**json.loads((self.folder / "ending.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return Ending("no result", f"exit code {code}: {output}", "no result")
        if ending.passed and "Traceback (most recent call last)" in output:
            return Ending("traceback", f"printed although the case ended as {ending.kind}: {output}", "printed")
        if ending.passed and orphans:
            return Ending("orphan", "processes were left behind", "orphan")
        return ending


def _in_child(folder: Path, limits: Limits, run: Callable[[], str]) -> None:
    """Run the case and leave its ending in a file; never return."""
    code = 70
    try:
        os.setsid()
        (folder / "case").mkdir()
        os.chdir(folder / "case")
        with open(os.devnull, "rb") as nothing, open(folder / "output", "wb") as output:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        faulthandler.enable(2, all_threads=False)
        _limit(limits)
        ending = judge(run)
        _unlimit_memory()
        text = json.dumps(dataclasses.asdict(ending))
        (folder / "ending.tmp").write_text(text, encoding="utf-8")
        os.replace(folder / "ending.tmp", folder / "ending.json")
        code = 0
    except BaseException as error:  # a defect of the campaign itself
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _limit(limits: Limits) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + limits.memory_bytes, hard))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def _unlimit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _tail(path: Path, size: int = 1500) -> str:
    try:
        return path.read_bytes()[-size:].decode("utf-8", "replace")
    except OSError:
        return ""


def _fault_place(output: str) -> str:
    """The first line of the project in the dump of `faulthandler`."""
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if "/mm_ldlm/" in line] or lines
    if not own:
        return ""
    name, _, rest = own[0].removeprefix('File "').partition('"')
    return f"{Path(name).name}:{rest.rpartition(' in ')[2]}"
