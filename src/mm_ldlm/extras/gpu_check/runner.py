"""Runs each check in a process of its own, so that a crash, an error of the device or a hang ends that check alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mm_ldlm.core.files import recorded
from mm_ldlm.extras.gpu_check.outcome import Finding, Outcome
from mm_ldlm.extras.gpu_check.registry import CHECKS

CHILD = "mm_ldlm.extras.gpu_check.child"
_GRACE = 10
"""Seconds between the SIGTERM and the SIGKILL that end a check"""


def run_checks(
    names: Sequence[str], *, device: str, out: Path, seconds: float, show: Callable[[str], None] = print,
    child: str = CHILD,
) -> list[Outcome]:  # fmt: skip
    """Run the checks in turn and show one line for each.

    Args:
        out: folder of the logs (`logs/NAME.log`).
        seconds: time for all checks together; one that exceeds it fails, and those after it are left out.
    """
    ends = time.monotonic() + seconds
    outcomes = []
    for name in names:
        left = ends - time.monotonic()
        if not CHECKS[name].cpu and device == "cpu":
            outcome = Outcome.of(name, Finding(left_out="It is for GPUs only."))
        elif left <= 0:
            outcome = Outcome.of(name, Finding(left_out=f"The {seconds:g} s of --seconds were used up. Raise them."))
        else:
            outcome = run_alone(name, device=device, log=out / "logs" / f"{name}.log", seconds=left, child=child)
        outcomes.append(outcome)
        show(str(outcome))
    return outcomes


def run_alone(name: str, *, device: str, log: Path, seconds: float, child: str = CHILD) -> Outcome:
    """Run a check in a process; its output goes to `log`. It fails if it ends without a finding or takes too long."""
    log.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="mm_ldlm_gpu_check_"))
    started = time.perf_counter()
    try:
        with log.open("w", encoding="utf-8") as stream:
            command = [sys.executable, "-u", "-m", child, name, device, str(folder)]
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                return Outcome.of(name, Finding(faults=(
                    f"expected an end within the {seconds:.0f} s that were left of --seconds, found none. Raise "
                    f"--seconds, or read {log}.",
                )), seconds=time.perf_counter() - started)  # fmt: skip
            finally:
                _end(process)
        plain = recorded(folder / "finding.json")
        if plain is not None:
            finding = Finding(plain["numbers"], tuple(plain["faults"]), plain["left_out"])
        else:
            finding = Finding(faults=(f"expected a finding, found exit code {code}{_last_line(log)}. Read {log}.",))
        return Outcome.of(name, finding, seconds=time.perf_counter() - started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group, also after Ctrl-C; ranks that it launched end with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f" ({lines[-1].strip()})" if lines else ""
