"""Damaged Arrow and Parquet files, in sources and in stores, never end the process, and never raise a foreign error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("damage_worker.py")
QUICK_CASES, SLOW_CASES = 240, 9000
"""Arrow files and streams, compressed ones, Parquet files with two compressions, and stores take turns."""


def outcomes(folder: Path, *, first: int, last: int) -> dict[int, str]:
    """Return the outcome of each case; the worker is started again after a case that ended it."""
    found: dict[int, str] = {}
    while len(found) < last - first:
        command = [sys.executable, str(WORKER), str(first + len(found)), str(last), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        for line in done.stdout.splitlines():
            word, case, *outcome = line.split(" ", 2)
            found[int(case)] = outcome[0] if word == "end" else f"ended the process: {done.returncode} {done.stderr}"
    return found


def check(folder: Path, *, first: int, last: int) -> None:
    found = outcomes(folder, first=first, last=last)
    wrong = {case: outcome for case, outcome in found.items() if outcome not in ("ok", "refused")}
    assert len(found) == last - first
    assert not wrong, wrong
    assert {"ok", "refused"} <= set(found.values())


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    check(tmp_path, first=0, last=QUICK_CASES)


@pytest.mark.slow
def test_much_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    check(tmp_path, first=QUICK_CASES, last=QUICK_CASES + SLOW_CASES)
