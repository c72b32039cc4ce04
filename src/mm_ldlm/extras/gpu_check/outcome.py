"""What a check receives and returns: `Setting`, `Finding`; and `Outcome`, its line in the report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Number = float | int | bool | str | None
Status = Literal["passed", "failed", "left out"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where a check runs.

    Attributes:
        device: torch device name: cuda or cpu.
        folder: an empty folder for the files of the check.
    """

    device: str
    folder: Path

    @property
    def small(self) -> bool:
        """Whether to run at sizes that a CPU computes in seconds."""
        return self.device == "cpu"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        numbers: measured values by name; plain JSON.
        faults: what was expected, what was found and what to do, one sentence each. A check without faults passed.
        left_out: why the check does not apply to this machine; "" if it ran.
    """

    numbers: dict[str, Number] = dataclasses.field(default_factory=dict)
    faults: tuple[str, ...] = ()
    left_out: str = ""


Check = Callable[[Setting], Finding]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Line of the report.

    Attributes:
        status: `failed` also if the process of the check ended before it returned, or exceeded the time.
        reason: faults of a failed check, or why a check was left out; "" for a check that passed.
        seconds: wall time of the process of the check, its start included.
    """

    name: str
    status: Status
    numbers: dict[str, Number]
    reason: str
    seconds: float

    @classmethod
    def of(cls, name: str, finding: Finding, *, seconds: float = 0.0) -> Outcome:
        status: Status = "failed" if finding.faults else "left out" if finding.left_out else "passed"
        numbers = {key: plain(value) for key, value in finding.numbers.items()}
        return cls(name, status, numbers, " ".join(finding.faults) or finding.left_out, seconds)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {text(value)}" for name, value in self.numbers.items())
        mark = {"passed": "✓", "failed": "✗", "left out": "–"}[self.status]
        return f"{mark} {self.name} ({self.seconds:.0f} s): " + "\n    → ".join(x for x in (shown, self.reason) if x)


def plain(value: Number) -> Number:
    """Return a number that JSON has; NaN and infinity become words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text(value: Number) -> str:
    """Format a number for the table: three significant digits, whole numbers in full."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return {True: "yes", False: "no", None: "unknown"}.get(value, str(value))  # type: ignore[arg-type]
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
