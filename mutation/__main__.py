"""Run a campaign: python -m mutation [--sample 60] [--seed 0] [--rooms diffusion,training] [--cpu-seconds 30]"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from mutation import campaign
from mutation.runner import Limits, Run, preload
from mutation.scratch import copy_project

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
EQUIVALENT = HERE / "equivalent.json"


def main(arguments: list[str] | None = None) -> int:
    """Draw, run, write and print; the exit status is 0 also if mutants survive."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="number of mutants, spread evenly over the rooms")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--rooms", default=",".join(campaign.ROOMS), help="rooms, separated by commas")
    parser.add_argument("--cpu-seconds", type=int, default=30, help="limit of processor time of one mutant")
    parser.add_argument("--out", type=Path, default=PROJECT / "build" / "mutation.json", help="file of the results")
    given = parser.parse_args(arguments)
    rooms = [room for room in given.rooms.split(",") if room]
    if unknown := sorted(set(rooms) - set(campaign.ROOMS)):
        parser.error(f"unknown rooms {', '.join(unknown)}; choose from {', '.join(campaign.ROOMS)}")
    preload()
    work = Path(tempfile.mkdtemp(prefix="mutation-"))
    try:
        runs = _run(given, rooms, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "sample": given.sample, "seed": given.seed, "score": campaign.score(runs),
        "runs": [asdict(run) for run in runs],
    }  # fmt: skip
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{campaign.as_text(runs)}\nresults: {given.out}")
    return 0


def _run(given: argparse.Namespace, rooms: list[str], work: Path) -> list[Run]:
    root = copy_project(PROJECT, work / "project")
    known = campaign.read_equivalents(EQUIVALENT)
    mutants = campaign.draw(root, rooms=rooms, count=given.sample, seed=given.seed, known=known)

    def report(run: Run) -> None:
        print(f"{run.outcome:<12} {run.seconds:6.1f} s  {run.name}", file=sys.stderr, flush=True)

    return campaign.run(root, mutants, work=work / "work", limits=Limits(cpu_seconds=given.cpu_seconds), report=report)


if __name__ == "__main__":
    sys.exit(main())
