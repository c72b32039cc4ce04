"""The campaign: draw cases, run them, count the endings, keep a file of each new failure."""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import importlib
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

from .runner import Case, Finished, Limits, run_cases

TARGETS = ("sources", "files", "stores", "run_folders", "parameters", "api", "processes")
"""Modules of this package; `planted` is another target, for the tests of the campaign itself."""
LAST_LINES = 5
"""Lines of a traceback in the report; `--endings` has all of them."""


def draw_cases(modules: dict[str, ModuleType], *, count: int, seed: int) -> list[Case]:
    """Draw `count` cases, the targets in turn."""
    names = list(modules)
    return [Case.draw(names[number % len(names)], modules[names[number % len(names)]], f"{seed}-{number}")
            for number in range(count)]  # fmt: skip


def keep(finished: Finished, folder: Path) -> Path:
    """Write the file of a failure; failures of one kind at one place share the file of the first one."""
    case, ending = finished.case, finished.ending
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(f"{case.target} {ending.kind} {ending.place}".encode()).hexdigest()[:10]
    path = folder / f"{case.target}-{ending.kind.replace(' ', '-')}-{name}.json"
    if not path.exists():
        case.write(path)
    return path


def report(endings: Sequence[Finished]) -> list[str]:
    """Lines for people: endings by target, then one finding for each kind and place of failure."""
    counts = collections.Counter((item.case.target, item.ending.kind) for item in endings)
    lines = [f"{target}: {number} {kind}" for (target, kind), number in sorted(counts.items())]
    findings = {
        (item.case.target, item.ending.kind, item.ending.place): item for item in endings if not item.ending.passed
    }
    for (target, kind, place), item in sorted(findings.items()):
        lines.append(f"\n== {target}: {kind} at {place or '?'}")
        lines += item.ending.detail.rstrip().splitlines()[-LAST_LINES:]
        lines.append(f"   {item.case.seed}: {json.dumps(item.case.parameters)[:600]}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None, help="drawn anew for each run by default")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--replay", type=Path, nargs="+", default=(), help="run these case files instead")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the files of failures; null: a new one")
    parser.add_argument("--endings", type=Path, default=None, help="write the ending of every case to this JSON file")
    for name in ("cpu_seconds", "wall_seconds", "idle_seconds"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=int(getattr(Limits, name)))
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    tqdm.monitor_interval = 0  # no thread in the process that forks
    cases = [Case.read(path) for path in given.replay]
    names = sorted({case.target for case in cases}) if cases else given.targets.split(",")
    print(f"seed {seed}: {len(cases) or given.cases} cases of {', '.join(names)}", flush=True)
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in names}
    cases = cases or draw_cases(modules, count=given.cases, seed=seed)
    material = {name: module.prepare() for name, module in modules.items()}
    limits = Limits(given.cpu_seconds, given.wall_seconds, given.idle_seconds)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="attack-failures-"))
    endings: list[Finished] = []
    started = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), tqdm(total=len(cases), unit=" cases", disable=None) as bar:
        for finished in run_cases(cases, modules, material, jobs=given.jobs, limits=limits):
            endings.append(finished)
            if not finished.ending.passed and not given.replay:
                print(f"kept as {keep(finished, folder)}", flush=True)
            bar.update()
    if given.endings is not None:
        given.endings.write_text(json.dumps([dataclasses.asdict(item) for item in endings], indent=1), encoding="utf-8")
    failures = sum(not item.ending.passed for item in endings)
    cpu = sum(item.cpu_seconds for item in endings) / max(len(endings), 1)
    print("\n".join(report(endings)))
    print(
        f"{len(endings)} of {len(cases)} cases in {time.monotonic() - started:.0f} s, {cpu:.2f} s of CPU time each, "
        f"seed {seed}: {f'{failures} failed' if failures else 'passed'}"
    )
    return 1 if failures or len(endings) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
