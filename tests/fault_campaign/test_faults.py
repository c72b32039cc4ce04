"""Fault campaign: each stage meets a fault, is started again, and ends with the bytes of an undisturbed run."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import pytest
import stages

pytestmark = pytest.mark.slow

NAMES = tuple(stages.STAGES)
NOBODY = 65534
MOMENTS = {
    "SIGKILL": (0.0, 0.2, 0.45, 0.7, 0.9, 1.0),
    "SIGTERM": (0.3, 0.8),
    "SIGINT": (0.2, 0.6),
    "SIGSTOP": (0.5,),
    "clock_back": (0.1, 0.6),
}
"""Fault → the fractions of a stage's commits at which it occurs."""
SIGNALS = [(stage, fault, moment) for stage in NAMES for fault, moments in MOMENTS.items() for moment in moments]
FULL = [(stage, moment) for stage in NAMES for moment in (0.0, 0.5, 0.95)]
ROOM = [(stage, fraction) for stage in NAMES for fraction in (0.05, 0.5, 0.9)]
MEMORY = [(stage, megabytes) for stage in NAMES for megabytes in (2, 24)]


class Campaign:
    """The inputs, and for every stage the undisturbed products and the number of commits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs = stages.prepare(root)
        self._undisturbed: dict[str, tuple[dict[str, str], int, int]] = {}

    def folder(self) -> Path:
        found = self.root / uuid.uuid4().hex
        found.mkdir()
        found.chmod(0o777)
        return found

    def child(self, stage: str, folder: Path, **fault: Any) -> dict[str, Any]:
        notes = self.root / f"{folder.name}.json"
        return children.run_child(lambda: stages.STAGES[stage].run(self.inputs, folder), notes=notes, **fault)

    def undisturbed(self, stage: str) -> tuple[dict[str, str], int, int]:
        """Products, number of commits and bytes of the stage without a fault."""
        if stage not in self._undisturbed:
            folder = self.folder()
            ending = self.child(stage, folder)
            assert ending["code"] == 0, ending
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            self._undisturbed[stage] = (stages.STAGES[stage].products(folder), ending["writes"], size)
            shutil.rmtree(folder)
        return self._undisturbed[stage]

    def commit_at(self, stage: str, moment: float) -> int:
        return 1 + round(moment * (self.undisturbed(stage)[1] - 1))

    def check_again(self, stage: str, folder: Path) -> None:
        """Start the stage again without a fault: it ends with the same bytes and leaves nothing temporary behind."""
        ending = self.child(stage, folder)
        assert ending["code"] == 0, ending
        assert not ending["orphans"]
        assert stages.STAGES[stage].products(folder) == self.undisturbed(stage)[0]
        left = [path for path in folder.rglob(".tmp-*")]
        assert not left, f"temporary files were left behind: {left}"


@pytest.fixture(scope="module")
def campaign(fault_root: Path) -> Campaign:
    return Campaign(fault_root)


@pytest.fixture
def folder(campaign: Campaign) -> Iterator[Path]:
    made = campaign.folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


def refused(ending: dict[str, Any]) -> None:
    """The stage must have ended in an error of the project of at most three lines, or in the error of the system call,
    which the command line describes (`test_commands.py`)."""
    if ending["code"] == 3:
        assert ending["errno"] in (errno.ENOSPC, errno.EFBIG, errno.EACCES, errno.EPERM), ending["traceback"]
    else:
        assert ending["code"] == 1, ending.get("traceback", ending)
        assert len(ending["error"].splitlines()) <= 3, ending["error"]
    assert not ending["orphans"]


@pytest.mark.parametrize(("stage", "fault", "moment"), SIGNALS)
def test_a_signal_loses_nothing(campaign: Campaign, folder: Path, stage: str, fault: str, moment: float) -> None:
    ending = campaign.child(stage, folder, fault=fault, at=campaign.commit_at(stage, moment))
    assert not ending["orphans"]
    if fault == "SIGSTOP":
        assert ending["stopped"]
    if fault in ("SIGSTOP", "clock_back"):
        assert ending["code"] == 0, ending
        assert stages.STAGES[stage].products(folder) == campaign.undisturbed(stage)[0]
    elif fault == "SIGKILL":
        assert ending["code"] == -9
    campaign.check_again(stage, folder)


@pytest.mark.parametrize(("stage", "moment"), FULL)
def test_a_commit_on_a_full_disk_is_refused(campaign: Campaign, folder: Path, stage: str, moment: float) -> None:
    ending = campaign.child(stage, folder, fault="disk_full", at=campaign.commit_at(stage, moment))
    refused(ending)
    campaign.check_again(stage, folder)


@pytest.mark.parametrize(("stage", "fraction"), ROOM)
def test_a_small_file_system_is_refused(campaign: Campaign, stage: str, fraction: float) -> None:
    place = campaign.folder()
    size = max(int(fraction * campaign.undisturbed(stage)[2]), 8192)
    mount(place, f"size={size}")
    try:
        ending = campaign.child(stage, place)
        if ending["code"] != 0:  # the size of a file system is rounded up to pages
            refused(ending)
        mount(place, "remount,size=256m")
        campaign.check_again(stage, place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


@pytest.mark.parametrize(("stage", "megabytes"), MEMORY)
def test_a_memory_limit_loses_nothing(campaign: Campaign, folder: Path, stage: str, megabytes: int) -> None:
    """The stage may end in success, an error or a kill; whatever it left is not taken for a result."""
    ending = campaign.child(stage, folder, memory=megabytes * 2**20)
    assert not ending["orphans"]
    campaign.check_again(stage, folder)


@pytest.mark.parametrize("stage", NAMES)
def test_a_read_only_folder_is_refused(campaign: Campaign, folder: Path, stage: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder.chmod(0o555)
    other = campaign.folder()
    run = stages.STAGES[stage].run
    ending = campaign.child(stage, folder, user=NOBODY, warm=lambda: run(campaign.inputs, other))
    refused(ending)
    assert not list(folder.iterdir())
    folder.chmod(0o777)
    campaign.check_again(stage, folder)


def mount(place: Path, options: str) -> None:
    """Mount a file system in memory; the test is skipped where that is not allowed."""
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"file systems cannot be mounted here: {error}")
    place.chmod(0o777)
