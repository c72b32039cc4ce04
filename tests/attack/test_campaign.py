"""The campaign itself: planted failures are noticed, failures replay, and a slice of every target passes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.attack import planted
from tests.attack.campaign import TARGETS, main
from tests.attack.material import GIVEN, PROJECT
from tests.attack.runner import Case

QUICK = ["--cpu-seconds", "1", "--idle-seconds", "2", "--jobs", "8"]
SLICE = 7
"""Cases of the normal suite, one of each target"""


def campaign(
    *arguments: str, folder: Path, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run the campaign as a user would; return its output and the ending of every case."""
    path, endings = os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")]), folder / "endings.json"
    command = [sys.executable, "-m", "tests.attack", "--keep", str(folder / "kept"), "--endings", str(endings)]
    done = subprocess.run(
        [*command, *arguments], cwd=PROJECT, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True,
        text=True, timeout=7200,
    )  # fmt: skip
    return done, json.loads(endings.read_text()) if endings.is_file() else []


def test_planted_failures_are_noticed_kept_once_for_each_place_and_replay(tmp_path: Path) -> None:
    done, endings = campaign("--targets", "planted", "--cases", "16", "--seed", "3", *QUICK, folder=tmp_path)
    failed = {(item["ending"]["kind"], item["ending"]["place"]) for item in endings
              if item["ending"]["kind"] not in ("success", "refused")}  # fmt: skip
    kept = sorted((tmp_path / "kept").glob("*.json"))
    assert len(kept) == len(failed)
    assert "seed 3" in done.stdout
    kinds = {Case.read(path).parameters["fault"]: path.name.split("-", 1)[1].rsplit("-", 1)[0] for path in kept}
    for fault in planted.FAULTS.keys() - kinds:
        Case("planted", "0", {"fault": fault}).write(tmp_path / "kept" / f"{fault}.json")
    again, endings = campaign("--replay", *map(str, (tmp_path / "kept").glob("*.json")), *QUICK, folder=tmp_path)
    found = {item["case"]["parameters"]["fault"]: item["ending"]["kind"] for item in endings}
    assert found == planted.FAULTS
    assert {fault: found[fault].replace(" ", "-") for fault in kinds} == kinds
    assert again.returncode == 1


def test_every_run_draws_other_cases(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = set()
    for _ in range(3):
        main(["--targets", "planted", "--cases", "0"])
        seeds.add(capsys.readouterr().out.split(":")[0])
    assert len(seeds) == 3


def test_a_slice_of_every_target_passes(tmp_path: Path, finished: Path) -> None:
    given = {GIVEN: str(finished / "data" / "test")}
    done, endings = campaign("--cases", str(SLICE), "--seed", "33", folder=tmp_path, **given)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert {item["case"]["target"] for item in endings} == set(TARGETS)


@pytest.mark.slow
def test_two_thousand_cases_end_in_success_quarantine_or_a_short_message(tmp_path: Path) -> None:
    done, endings = campaign("--cases", os.environ.get("MM_LDLM_CASES", "2000"), folder=tmp_path)
    assert done.returncode == 0, done.stdout[-20_000:]
    assert len(endings) >= 2000
