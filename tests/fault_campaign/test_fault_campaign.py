"""Fault campaign: `kedro run` meets a fault in each stage, is started again, and ends with the bytes of a run without.

A fault falls on a change of a file, counted over all processes of the command, so that it hits the same moment on
machines of any speed.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
PLANTED = Path(__file__).with_name("planted")
STAGES = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
FAULTS = (("SIGKILL", 0.02), ("SIGKILL", 0.4), ("SIGKILL", 0.97), ("SIGTERM", 0.5), ("ENOSPC", 0.3))
"""Faults, and the fraction of the stage's changes of files after which they occur"""
SAME = {".arrow", ".safetensors", ".parquet", ".npz", ".txt"}
"""Suffixes of files without times and durations, which a run repeats to the byte"""
SECONDS = 900


class Campaign:
    """A data folder, and copies of it before and after every stage of a run without faults."""

    def __init__(self, workshop: Path, root: Path) -> None:
        self.workshop, self.root, self.data, self.counter = workshop, root, root / "data", root / "counter"
        self.changes: dict[str, int] = {}
        self.data.mkdir()
        for stage in STAGES:
            shutil.copytree(self.data, root / f"before {stage}")
            ended, output = self.run(stage)
            assert ended == 0, output
            self.changes[stage] = self.counter.stat().st_size
            shutil.copytree(self.data, root / f"after {stage}")

    def start(self, stage: str, *parameters: str, fault: str = "none", number: int = 0) -> subprocess.Popen[str]:
        self.counter.unlink(missing_ok=True)
        values = ",".join([f"data={self.data}", "tracking.enabled=false", *parameters])
        paths = [str(PLANTED), str(PROJECT / "src"), str(PROJECT)]
        planted = {"FAULT": f"{fault} {number} {self.data} {self.counter}", "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.Popen(
            [sys.executable, "-m", "kedro", "run", "--env=test", f"--pipelines={stage}", f"--params={values}"],
            cwd=self.workshop, env={**os.environ, **planted}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, stage: str, *, fault: str = "none", number: int = 0) -> tuple[int, str]:
        """Run a stage; return its exit code and output. No process of it is alive ten seconds after its end."""
        process = self.start(stage, fault=fault, number=number)
        output, _ = process.communicate(timeout=SECONDS)
        self.check_ended()
        return process.returncode, output

    def check_ended(self) -> None:
        deadline = time.monotonic() + 10
        while (alive := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        assert not alive, "processes were left behind"

    def alive(self) -> list[int]:
        """List the processes of the command by their environment, which all of them inherit."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.fsencode(self.counter) in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def restore(self, stage: str) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self.root / f"before {stage}", self.data)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in SAME
    }  # fmt: skip


@pytest.fixture(scope="module")
def campaign(workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(workshop, tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("fault", "moment"), FAULTS)
def test_a_stage_that_met_a_fault_ends_as_if_it_had_not(
    campaign: Campaign, stage: str, fault: str, moment: float
) -> None:
    """Stores have no temporary files afterwards; a kill may leave one of a report, which no reader takes for it."""
    campaign.restore(stage)
    code, output = campaign.run(stage, fault=fault, number=1 + int(moment * campaign.changes[stage]))
    assert "Traceback (most recent call last)" not in output, output
    if fault == "ENOSPC":
        assert code != 0, output
        assert "space" in output.lower(), output
    code, output = campaign.run(stage)
    assert code == 0, output
    assert digests(campaign.data) == digests(campaign.root / f"after {stage}")
    assert not [path for path in campaign.data.rglob(".tmp-*") if (path.parent / "manifest.json").exists()]


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0])
def test_pitfall_22_a_command_that_is_killed_early_leaves_no_rank(campaign: Campaign, delay: float) -> None:
    campaign.restore("training")
    process = campaign.start("training", "training.launch.processes=2")
    deadline = time.monotonic() + SECONDS
    while len(campaign.alive()) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before its ranks began"
    time.sleep(delay)
    process.kill()
    process.communicate()
    campaign.check_ended()
