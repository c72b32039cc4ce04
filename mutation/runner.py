"""Run test files on many faults, one child per fault, with the libraries and the package loaded once.

A process of its own collects the tests of the copy of the project. For each fault it forks: the child plants the fault,
runs the tests up to the first failure, and ends. Faults outside functions need another import of the package, and
therefore a collection of their own. A child that reaches its limit of processor time or wall time is ended.
"""

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mutation.code import changed_functions, replace_code
from mutation.scratch import planted

Outcome = Literal["killed", "survived", "limit", "not planted"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "KEDRO_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
PRELOADED = (
    "numpy", "scipy.stats", "pandas", "pyarrow.compute", "pyarrow.parquet", "torch", "safetensors.torch", "tokenizers",
    "pydantic", "yaml", "hypothesis", "pytest", "kedro.io", "transformers",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A changed file: what its content becomes, and the test files to run."""

    name: str
    path: str
    changed: bytes
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Outcome of the tests on one fault."""

    name: str
    outcome: Outcome
    test: str
    """The first failing test, or how the child ended"""
    seconds: float
    """Processor time without the collection"""


@dataclass(frozen=True)
class Limits:
    """Limits of one fault: processor time and wall time, in seconds."""

    cpu_seconds: int = 30
    seconds: float = 900


def preload() -> None:
    """Import slow libraries, so that each process starts with them."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if loaded := sorted(name for name in sys.modules if name.split(".")[0] == "mm_ldlm"):
        raise RuntimeError(f"expected no module of mm_ldlm before the first fork, found {loaded[0]}.")


def run_faults(root: Path, faults: Sequence[Fault], *, work: Path, limits: Limits, report: Any = None) -> list[Run]:
    """Run each fault on its tests, in the copy `root`; faults inside functions share one collection."""
    inside = [fault for fault in faults if _functions(root, fault) is not None]
    found = _session(root, inside, work=work, limits=limits, report=report) if inside else []
    for fault in faults:
        if fault not in inside:
            with planted(root / fault.path, fault.changed):
                found += _session(root, [fault], work=work, limits=limits, report=report)
    return found


def _functions(root: Path, fault: Fault) -> Any:
    if not fault.path.endswith(".py"):
        return None
    return changed_functions((root / fault.path).read_bytes(), fault.changed, str(root / fault.path))


def _session(root: Path, faults: Sequence[Fault], *, work: Path, limits: Limits, report: Any) -> list[Run]:
    """Collect the tests of the faults in a child, which forks once per fault; return what it wrote."""
    work.mkdir(parents=True, exist_ok=True)
    results, log = work / "results.jsonl", work / "output.txt"
    results.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _collect_and_run(root, faults, work=work, results=results, log=log, limits=limits)
    os.waitpid(child, 0)
    lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    runs = [Run(**json.loads(line)) for line in lines]
    known = {run.name for run in runs}
    # without a collection the package cannot be imported with this fault
    runs += [Run(fault.name, "killed", "collection", 0.0) for fault in faults if fault.name not in known]
    for run in runs:
        if report is not None:
            report(run)
    return runs


def _collect_and_run(
    root: Path, faults: Sequence[Fault], *, work: Path, results: Path, log: Path, limits: Limits
) -> None:
    try:
        os.setsid()
        with open(log, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.path[:] = [str(root / "src"), str(root), *(p for p in sys.path if p not in ("", str(Path.cwd())))]
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root / "src")
        import hypothesis
        import pytest

        hypothesis.settings.register_profile("mutation", deadline=None, database=None, derandomize=True)
        hypothesis.settings.load_profile("mutation")
        tests = list(dict.fromkeys(name for fault in faults for name in fault.tests))
        shutil.rmtree(work / "tmp", ignore_errors=True)
        options = ["-p", "no:cacheprovider", "--no-header", f"--basetemp={work / 'tmp'}", f"--rootdir={root}"]
        pytest.main([*options, *tests], plugins=[_Loop(root, faults, results, limits)])
    finally:
        sys.stdout.flush()
        os._exit(0)


class _Loop:
    """A pytest plugin that runs the collected tests once per fault."""

    def __init__(self, root: Path, faults: Sequence[Fault], results: Path, limits: Limits) -> None:
        self.root, self.faults, self.results, self.limits = root, faults, results, limits

    def pytest_runtestloop(self, session: Any) -> bool:
        for fault in self.faults:
            order = {name: number for number, name in enumerate(fault.tests)}
            items = [item for item in session.items if _file_of(item) in order]
            items.sort(key=lambda item: order[_file_of(item)])
            functions, source = _functions(self.root, fault), self.root / fault.path
            # tests that start processes read the file, which is planted already if no function shows the fault
            on_disk = contextlib.nullcontext() if functions is None else planted(source, fault.changed)
            with on_disk:
                run = self._run(fault, items, functions)
            with open(self.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(run)) + "\n")
        return True

    def _run(self, fault: Fault, items: list[Any], functions: Any) -> Run:
        """Fork, plant, run; the child writes the name of the failing test into a pipe."""
        read, write = os.pipe()
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        child = os.fork()
        if child == 0:
            os.close(read)
            self._child(fault, items, functions, write)
        os.close(write)
        status: int | None = None
        while status is None and time.monotonic() - started < self.limits.seconds:
            found, code = os.waitpid(child, os.WNOHANG)
            status = code if found else None
            if status is None:
                time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        with os.fdopen(read, encoding="utf-8") as pipe:
            name = pipe.read()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)
        if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
            return Run(fault.name, "limit", name or "limit", used)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            from_outside = number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
            return Run(fault.name, "limit" if from_outside else "killed", name or f"signal {number}", used)
        outcomes: dict[int, Outcome] = {0: "survived", 1: "killed", 2: "limit", 3: "not planted"}
        return Run(fault.name, outcomes.get(os.WEXITSTATUS(status), "killed"), name, used)

    def _child(self, fault: Fault, items: list[Any], functions: Any, write: int) -> None:
        """Plant the fault in this process, run the tests, and end it: 0 passed, 1 failed, 2 limit, 3 not planted."""
        code = 3
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (self.limits.cpu_seconds, self.limits.cpu_seconds + 5))
            if functions is not None:
                replace_code(functions, str(self.root / fault.path))
            failed = _first_failure(items)
            os.write(write, failed.encode())
            code = 1 if failed else 0
        finally:
            sys.stdout.flush()
            os._exit(code)


def _first_failure(items: list[Any]) -> str:
    from _pytest.runner import runtestprotocol

    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, nextitem=following, log=False)
        if failures := [report for report in reports if report.failed]:
            print(f"{item.nodeid}\n{failures[0].longreprtext}")
            return str(item.nodeid)
    return ""


def _file_of(item: Any) -> str:
    return str(item.nodeid).partition("::")[0]
