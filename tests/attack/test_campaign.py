"""The campaign itself: planted failures are noticed, kept cases are replayed, a few cases of every target are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attack import planted
from attack.campaign import REGRESSIONS, TARGETS, main
from attack.runner import Case

PROJECT = Path(__file__).resolve().parents[2]
SMOKE_SEED = 32
SMOKE_CASES = 30
SMOKE_TARGETS = "sources,stores,vectors,run_folders,api"
"""Targets of the new cases; those of `parameters` train, and a few kept ones stand for them."""


def campaign(*arguments: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run the campaign as a user would; return its output and the ending of every case."""
    path = os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack", "--keep", str(folder / "kept"), "--endings",
        str(folder / "endings.json"), *arguments],
        cwd=PROJECT, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=1800,
    )  # fmt: skip
    endings = folder / "endings.json"
    return done, json.loads(endings.read_text()) if endings.is_file() else []


def test_the_oracle_notices_planted_failures(tmp_path: Path) -> None:
    """A traceback, a signal, a time-out, exhausted memory, a lost row and every other failure is named as such."""
    files = []
    for fault in planted.FAULTS:
        files.append(tmp_path / f"{fault}.json")
        files[-1].write_text(Case("planted", "0", {"fault": fault}).to_json())
    limits = ["--cpu-seconds", "1", "--idle-seconds", "2", "--jobs", "8"]
    done, endings = campaign("--replay", *map(str, files), *limits, folder=tmp_path)
    found = {item["case"]["parameters"]["fault"]: item["ending"]["kind"] for item in endings}
    assert found == planted.FAULTS, done.stdout
    assert done.returncode == 1
    assert "failures at" in done.stdout


def test_a_failure_is_kept_once_for_each_place_and_replays(tmp_path: Path) -> None:
    done, endings = campaign("--targets", "planted", "--cases", "16", "--seed", "3", "--cpu-seconds", "1",
    "--idle-seconds", "1",
                             "--jobs", "8", folder=tmp_path)  # fmt: skip
    failed = {
        (item["ending"]["kind"], item["ending"]["place"])
        for item in endings
        if item["ending"]["kind"] not in ("success", "refused")
    }
    kept = sorted((tmp_path / "kept").glob("*.json"))
    assert len(kept) == len(failed)
    assert "seed 3" in done.stdout
    again, endings = campaign("--replay", str(kept[0]), "--cpu-seconds", "1", "--idle-seconds", "1", folder=tmp_path)
    assert again.returncode == 1
    assert endings[0]["ending"]["kind"].replace(" ", "-") in kept[0].name


def test_the_seed_of_a_campaign_changes(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = set()
    for _ in range(3):
        main(["--targets", "planted", "--cases", "0"])
        seeds.add(capsys.readouterr().out.split(":")[0])
    assert len(seeds) == 3


def test_kept_cases_and_a_few_new_ones_end_as_they_should(tmp_path: Path) -> None:
    """The cases that failed once, and some of every target."""
    kept = sorted(map(str, REGRESSIONS.glob("*.json")))
    smoke = ["--smoke", str(SMOKE_CASES), "--seed", str(SMOKE_SEED), "--targets", SMOKE_TARGETS]
    done, endings = campaign("--replay", *kept, *smoke, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert {item["case"]["target"] for item in endings} >= set(TARGETS)


@pytest.mark.slow
def test_two_thousand_cases_end_in_success_quarantine_or_a_short_message(tmp_path: Path) -> None:
    done, endings = campaign("--cases", os.environ.get("MM_LDLM_CASES", "2000"), folder=tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-20_000:]
    assert len(endings) >= 2000
