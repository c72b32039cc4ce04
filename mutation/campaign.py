"""Draw mutants of the rooms, run them, and write the score of each room and the survivors."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.fitting import fitting_tests
from mutation.operators import Mutant, mutants_of
from mutation.runner import Fault, Limits, Run, run_faults

ROOMS = ("core", "distributed", "diffusion", "models", "sampling", "objectives", "data", "training", "inference",
         "evaluation", "pipelines", "app", "families", "extras")  # fmt: skip
PACKAGE = "src/mm_ldlm"


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can kill, because it behaves like the original."""

    path: str
    line: str
    """The line of the source, without the spaces around it"""
    before: str
    after: str
    reason: str


def read_equivalents(file: Path) -> list[Equivalent]:
    """Read the list of equivalent mutants."""
    return [Equivalent(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


def is_equivalent(mutant: Mutant, source: bytes, known: Sequence[Equivalent]) -> bool:
    """Whether a mutant is in the list."""
    line = source.splitlines()[mutant.line - 1].decode().strip()
    found = (mutant.path, line, mutant.before, mutant.after)
    return any((item.path, item.line, item.before, item.after) == found for item in known)


def draw(root: Path, *, rooms: Sequence[str], count: int, seed: int, known: Sequence[Equivalent]) -> list[Mutant]:
    """Draw `count` mutants, as many of each room as of the others, in an order that the seed decides."""
    generator = random.Random(seed)
    waiting: list[list[Mutant]] = []
    for room in rooms:
        found = []
        for file in sorted((root / PACKAGE / room).rglob("*.py")):
            path, source = file.relative_to(root).as_posix(), file.read_bytes()
            found += [mutant for mutant in mutants_of(path, source) if not is_equivalent(mutant, source, known)]
        waiting.append(generator.sample(found, min(len(found), count)))
    taken: list[Mutant] = []
    while len(taken) < count and any(waiting):
        for room_mutants in waiting:
            if room_mutants and len(taken) < count:
                taken.append(room_mutants.pop())
    return sorted(taken)


def run(root: Path, mutants: Sequence[Mutant], *, work: Path, limits: Limits, report: Any = None) -> list[Run]:
    """Run mutants on their fitting tests, one room after the other, so that each room is imported once."""
    found: list[Run] = []
    for room in dict.fromkeys(room_of(mutant.path) for mutant in mutants):
        faults = [
            Fault(str(mutant), mutant.path, mutant.apply((root / mutant.path).read_bytes()),
                  tuple(fitting_tests(root, mutant.path)))
            for mutant in mutants if room_of(mutant.path) == room
        ]  # fmt: skip
        found += run_faults(root, faults, work=work, limits=limits, report=report)
    return found


def room_of(path: str) -> str:
    """Return the room of a source file."""
    return Path(path).relative_to(PACKAGE).parts[0]


def score(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return, for each room and for all, how many mutants ran, how many were killed, and their fraction.

    Mutants that reached the limit of time count as neither killed nor survived if no test had failed before.
    """
    table: dict[str, dict[str, float]] = {}
    rooms = sorted({room_of(run.name.split(":")[0]) for run in runs})
    for name in (*rooms, "all"):
        own = [run for run in runs if name in ("all", room_of(run.name.split(":")[0]))]
        counts = {outcome: sum(run.outcome == outcome for run in own) for outcome in ("killed", "survived", "limit")}
        decided = counts["killed"] + counts["survived"]
        table[name] = {**counts, "score": counts["killed"] / decided if decided else 0.0}
    return table


def as_text(runs: Sequence[Run]) -> str:
    """Return the table of scores and the list of survivors."""
    lines = [f"{'room':<12} {'killed':>7} {'survived':>9} {'limit':>6} {'score':>7}"]
    for room, row in score(runs).items():
        lines.append(
            f"{room:<12} {row['killed']:>7.0f} {row['survived']:>9.0f} {row['limit']:>6.0f} {100 * row['score']:>6.1f}%"
        )
    survivors = sorted(run.name for run in runs if run.outcome == "survived")
    return "\n".join([*lines, f"{len(survivors)} survivors:", *(f"  {name}" for name in survivors)])
