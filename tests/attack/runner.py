"""Child processes of the campaign: a fork of this process for each case, with limits on time and memory.

The modules of the project and the undamaged material are loaded once, before the first fork, so that a case costs
little more than its own work.
"""

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

FILE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one child process. Cores are shared, so that of the wall is generous; idle is a child that only waits.

    `memory_bytes` is the address space that a case may use beyond that of the process that it is forked from.
    """

    cpu_seconds: int = 15
    wall_seconds: float = 120.0
    idle_seconds: float = 8.0
    memory_bytes: int = 2 * 2**30


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: a target, the seed that it was drawn with, and its parameters, which alone determine it."""

    target: str
    seed: str
    parameters: dict[str, Any]

    @classmethod
    def draw(cls, target: str, module: ModuleType, seed: str) -> "Case":
        """Draw the parameters; they are converted to JSON and back, so that a kept file replays exactly."""
        parameters = module.generate(random.Random(f"{target} {seed}"))
        return cls(target, seed, json.loads(json.dumps(parameters)))

    @classmethod
    def read(cls, path: Path) -> "Case":
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Finished:
    """A case with its ending and its cost."""

    case: Case
    ending: Ending
    cpu_seconds: float


def run_cases(
    cases: Iterable[Case], targets: dict[str, ModuleType], material: dict[str, Any], *, jobs: int, limits: Limits
) -> Iterator[Finished]:
    """Run cases in child processes, `jobs` at a time, and yield each when it ends."""
    live: list[_Child] = []
    waiting = iter(cases)
    try:
        while True:
            while len(live) < jobs and (case := next(waiting, None)) is not None:
                live.append(_Child(case, targets[case.target], material[case.target], limits))
            if not live:
                return
            select.select([child.descriptor for child in live], [], [], min(1.0, limits.idle_seconds / 2))
            for child in list(live):
                if (finished := child.poll()) is not None:
                    live.remove(child)
                    yield finished
    finally:
        for child in live:
            child.end()
            shutil.rmtree(child.folder, ignore_errors=True)


class _Child:
    """One forked case in a session and a folder of its own."""

    def __init__(self, case: Case, module: ModuleType, material: Any, limits: Limits) -> None:
        self.case, self.limits = case, limits
        self.folder = Path(tempfile.mkdtemp(prefix="attack-"))
        self.started = self.idle_since = time.monotonic()
        self.late, self.used = "", -1
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _in_child(self.folder, limits, lambda: module.run(case.parameters, self.folder / "case", material))
        self.descriptor = os.pidfd_open(self.pid)

    def poll(self) -> Finished | None:
        """Return the case when it has ended, or is late and was killed."""
        self.late = self._lateness()
        if not self.late and not select.select([self.descriptor], [], [], 0)[0]:
            return None
        status, seconds, orphans = self.end()
        ending = self._ending(os.waitstatus_to_exitcode(status), orphans)
        shutil.rmtree(self.folder, ignore_errors=True)
        return Finished(self.case, ending, seconds)

    def end(self) -> tuple[int, float, bool]:
        """Kill the session unless it has ended; return status, CPU time, and whether it left processes behind."""
        if not select.select([self.descriptor], [], [], 0)[0]:
            self._kill()
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.descriptor)
        patience = time.monotonic() + 5  # for helpers that end when their parent has, such as the tracker of resources
        while self._alive() and time.monotonic() < patience:
            time.sleep(0.05)
        return status, usage.ru_utime + usage.ru_stime, self._kill()

    def _alive(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _lateness(self) -> str:
        now = time.monotonic()
        if now - self.started > self.limits.wall_seconds:
            return f"more than {self.limits.wall_seconds:.0f} s"
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        used = int(fields[11]) + int(fields[12])
        if fields[0] != "S" or used != self.used:
            self.used, self.idle_since = used, now
        return "waits" if now - self.idle_since > self.limits.idle_seconds else ""

    def _kill(self) -> bool:
        """Kill the session; return whether there was anything."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _ending(self, code: int, orphans: bool) -> Ending:
        raw = (self.folder / "output").read_bytes() if (self.folder / "output").exists() else b""
        output = raw[-1500:].decode("utf-8", "replace")
        if self.late or code == -signal.SIGXCPU:
            late = self.late or f"more than {self.limits.cpu_seconds} s of CPU time"
            return Ending("time-out", f"{late}: {output}", self.late or "CPU time")
        if code < 0:
            kind = "memory" if code == -signal.SIGABRT and "bad_alloc" in output else "signal"
            return Ending(kind, f"{signal.Signals(-code).name}: {output}", _fault_place(output))
        try:
            ending = Ending(**json.loads((self.folder / "ending.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return Ending("no result", f"exit code {code}: {output}", "no result")
        if ending.passed and "Traceback (most recent call last)" in output:
            return Ending("traceback", f"printed although the case ended as {ending.kind}: {output}", "printed")
        return Ending("orphan", "processes were left behind", "orphan") if ending.passed and orphans else ending


def _in_child(folder: Path, limits: Limits, run: Callable[[], str]) -> None:
    """Run the case and leave its ending in a file; never return."""
    code = 70
    try:
        os.setsid()
        (folder / "case").mkdir()
        os.chdir(folder / "case")
        with open(os.devnull, "rb") as nothing, open(folder / "output", "wb") as output:
            for number, file in enumerate((nothing, output, output)):
                os.dup2(file.fileno(), number)
        faulthandler.enable(2, all_threads=False)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + limits.memory_bytes, hard))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        ending = judge(run)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        (folder / "ending.tmp").write_text(json.dumps(dataclasses.asdict(ending)), encoding="utf-8")
        os.replace(folder / "ending.tmp", folder / "ending.json")
        code = 0
    except BaseException as error:  # a defect of the campaign itself
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _fault_place(output: str) -> str:
    """The first line of the project in the dump of `faulthandler`."""
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("File ")]
    name, _, rest = next((line for line in lines if "/mm_ldlm/" in line), "").removeprefix('File "').partition('"')
    return f"{Path(name).name}:{rest.rpartition(' in ')[2]}"
