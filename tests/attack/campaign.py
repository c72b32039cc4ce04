"""The campaign: draw cases, run them, count the endings, keep a file of each new failure."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import importlib
import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm import tqdm

from .oracle import PASSED
from .runner import Case, Finished, Limits, draw_case, run_cases

TARGETS = ("sources", "stores", "vectors", "run_folders", "parameters", "api")
"""Modules of this package; `planted` is another target, for the tests of the campaign itself."""
LAST_LINES = 5
"""Lines of a traceback in the report; `--endings` has all of them."""
REGRESSIONS = Path(__file__).parent / "regressions"


def load(names: Sequence[str]) -> tuple[dict[str, ModuleType], dict[str, Any]]:
    """Import the targets, and let each prepare the material that its cases damage."""
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in names}
    material = {name: module.prepare() for name, module in modules.items() if hasattr(module, "prepare")}
    return modules, material


def draw_cases(modules: dict[str, ModuleType], *, count: int, seed: int) -> Iterator[Case]:
    """Draw `count` cases, the targets in turn."""
    names = list(modules)
    for number in range(count):
        name = names[number % len(names)]
        yield draw_case(name, modules[name], f"{seed}-{number}")


def kept_cases(folder: Path) -> list[Case]:
    """Read the cases that failed once."""
    return [Case.read(path) for path in sorted(folder.glob("*.json"))]


def keep(finished: Finished, folder: Path) -> Path:
    """Write the regression file of a failure; failures of one kind at one place share the file of the first one."""
    case, ending = finished.case, finished.ending
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(f"{case.target} {ending.kind} {ending.place}".encode()).hexdigest()[:10]
    path = folder / f"{case.target}-{ending.kind.replace(' ', '-')}-{name}.json"
    if not path.exists():
        path.write_text(case.to_json(), encoding="utf-8")
    return path


def report(failures: Sequence[Finished], counts: collections.Counter[tuple[str, str]], *, seconds: float) -> list[str]:
    """Lines for people: endings by target, then one finding for each kind and place of failure."""
    lines = []
    for target in sorted({name for name, _ in counts}):
        found = {kind: number for (name, kind), number in sorted(counts.items()) if name == target}
        lines.append(f"{target}: " + ", ".join(f"{number} {kind}" for kind, number in found.items()))
    groups: dict[tuple[str, str, str], list[Finished]] = {}
    for item in failures:
        groups.setdefault((item.case.target, item.ending.kind, item.ending.place), []).append(item)
    lines.append(f"{len(failures)} failures at {len(groups)} places; {seconds:.2f} s of CPU time for each case")
    for (target, kind, place), items in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1]))):
        first = items[0]
        lines += [
            f"\n== {target}: {kind} at {place or '?'} ({len(items)} cases)",
            *first.ending.detail.rstrip().splitlines()[-LAST_LINES:],
        ]
        lines.append(f"   {first.case.seed}: {json.dumps(first.case.parameters)[:600]}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None, help="drawn anew for each run by default")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--replay", type=Path, nargs="*", default=None, help="run these case files instead; none: all kept ones"
    )
    parser.add_argument("--keep", type=Path, default=REGRESSIONS, help="folder for the files of new failures")
    parser.add_argument("--endings", type=Path, default=None, help="write the ending of every case to this JSON file")
    parser.add_argument("--cpu-seconds", type=int, default=Limits.cpu_seconds)
    parser.add_argument("--wall-seconds", type=float, default=Limits.wall_seconds)
    parser.add_argument("--idle-seconds", type=float, default=Limits.idle_seconds)
    parser.add_argument("--smoke", type=int, default=0, help="with --replay: add this many new cases of all targets")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    tqdm.monitor_interval = 0  # no thread in the process that forks
    if given.replay is not None:
        cases = [Case.read(path) for path in given.replay] or ([] if given.smoke else kept_cases(REGRESSIONS))
        print(f"replay of {len(cases)} kept cases", flush=True)
        count, names = given.smoke, given.targets.split(",") if given.smoke else ()
    else:
        cases, count, names = [], given.cases, given.targets.split(",")
        print(f"seed {seed}: {count} cases of {', '.join(names)}", flush=True)
    modules, material = load(sorted({*names, *(case.target for case in cases)}))
    cases += draw_cases({name: modules[name] for name in names}, count=count, seed=seed)
    limits = Limits(cpu_seconds=given.cpu_seconds, wall_seconds=given.wall_seconds, idle_seconds=given.idle_seconds)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    endings: list[dict[str, Any]] = []
    failures: list[Finished] = []
    started = time.monotonic()
    with (
        contextlib.suppress(KeyboardInterrupt),
        tqdm(total=len(cases), unit=" cases", mininterval=1.0, disable=None) as bar,
    ):
        for finished in run_cases(cases, modules, material, jobs=given.jobs, limits=limits):
            counts[finished.case.target, finished.ending.kind] += 1
            endings.append(dataclasses.asdict(finished))
            if finished.ending.kind not in PASSED:
                failures.append(finished)
                if given.replay is None:
                    keep(finished, given.keep)
            bar.set_postfix(failures=len(failures), refresh=False)
            bar.update()
    if given.endings is not None:
        given.endings.write_text(json.dumps(endings, indent=1), encoding="utf-8")
    cpu = sum(item["cpu_seconds"] for item in endings) / max(len(endings), 1)
    verdict = "failed" if failures else "passed"
    print("\n".join(report(failures, counts, seconds=cpu)))
    print(f"{len(endings)} of {len(cases)} cases in {time.monotonic() - started:.0f} s, seed {seed}: {verdict}")
    return 1 if failures or len(endings) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
