"""Findings of validation, with a severity, and the rows that must be left out of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import ValidationError

Severity = Literal["info", "warning", "error"]
MAX_EXAMPLES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of a check.

    Attributes:
        severity: "error" fails the contract and stops the run; "warning" should be read; "info" is recorded only.
        check: its name, as in docs/data-contracts.md.
        message: what was expected and what was found, with numbers.
        count: number of rows, dimensions or shards.
        examples: some of them, by id or name.
        remedy: what the user can do.
    """

    severity: Severity
    check: str
    message: str
    count: int = 0
    examples: tuple[str, ...] = ()
    remedy: str = ""


class Findings:
    """Collects findings and failing rows while the checks run."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.rows: dict[str, npt.NDArray[np.int64]] = {}
        self.facts: dict[str, Any] = {}
        """further entries of the report"""

    def add(
        self,
        severity: Severity,
        check: str,
        message: str,
        *,
        count: int = 0,
        examples: Iterable[Any] = (),
        remedy: str = "",
    ) -> None:
        """Add a finding; at most `MAX_EXAMPLES` examples are kept."""
        shown = tuple(str(example) for _, example in zip(range(MAX_EXAMPLES), examples, strict=False))
        self.findings.append(
            Finding(severity=severity, check=check, message=message, count=count, examples=shown, remedy=remedy)
        )

    def fail_rows(self, check: str, rows: npt.NDArray[np.int64]) -> None:
        """Send these rows to quarantine, with the check as reason."""
        if len(rows):
            self.rows[check] = np.union1d(self.rows.get(check, np.empty(0, np.int64)), rows).astype(np.int64)

    @property
    def failing(self) -> npt.NDArray[np.int64]:
        """Failing row numbers (n,), sorted and unique."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *self.rows.values()]))

    @property
    def errors(self) -> list[Finding]:
        """Findings that fail the contract."""
        return [finding for finding in self.findings if finding.severity == "error"]

    def plain(self) -> list[dict[str, Any]]:
        """Return the findings as plain JSON, errors first."""
        order = {"error": 0, "warning": 1, "info": 2}
        ranked = sorted(self.findings, key=lambda finding: order[finding.severity])
        return [{**dataclasses.asdict(finding), "examples": list(finding.examples)} for finding in ranked]


def enforce(report: dict[str, Any]) -> None:
    """Stop the run if a contract failed.

    Raises:
        ValidationError: Some contracts failed; the message lists each with examples and remedy.
    """
    failed = [finding for finding in report["findings"] if finding["severity"] == "error"]
    if not failed:
        return
    lines = [f"{len(failed)} data contract(s) failed, so there is no index to train on."]
    for finding in failed:
        examples = f" For example: {', '.join(finding['examples'])}." if finding["examples"] else ""
        lines.append(f"- {finding['check']}: {finding['message']}{examples} {finding['remedy']}".rstrip())
    raise ValidationError("\n".join(lines))
