"""Findings of the validation, and the limits of the checks."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import Fraction, ValidationError, config

MAX_EXAMPLES = 5
NO_ROWS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_ORDER = ("error", "warning", "info")


@config
class ValidationConfig:
    """Limits of the validation checks; checks of extras add keys (registry `keys`).

    Attributes:
        verify_checksums: read every byte of records, tokens and latents and compare sha256.
        on_leakage: training texts that occur in an evaluation set: "remove" (to quarantine) or "report".
        max_quarantine_fraction: the contract fails when a larger fraction of the rows is in quarantine.
    """

    verify_checksums: bool = True
    on_leakage: Literal["remove", "report"] = "remove"
    max_quarantine_fraction: Fraction = 0.01


@dataclasses.dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes:
        severity: "error" fails the contract and stops the run; "warning" should be read; "info" is recorded only.
        check: its name, as in docs/data-contracts.md.
        message: what was expected and what was found, with numbers.
        remedy: what the user can do.
        count: number of rows, dimensions or shards; 0 stands for the number of the failing rows.
        examples: some of them, by id or name; at most `MAX_EXAMPLES` are shown.
        failing: rows that go to quarantine, with the check as reason.
    """

    severity: Literal["error", "warning", "info"]
    check: str
    message: str
    remedy: str = ""
    _: dataclasses.KW_ONLY
    count: int = 0
    examples: Iterable[Any] = ()
    failing: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: NO_ROWS)


def plain(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as plain JSON, errors first."""
    return [
        {
            "severity": each.severity, "check": each.check, "message": each.message,
            "count": each.count or len(each.failing),
            "examples": [str(example) for example in itertools.islice(each.examples, MAX_EXAMPLES)],
            "remedy": each.remedy,
        }
        for each in sorted(findings, key=lambda finding: _ORDER.index(finding.severity))
    ]  # fmt: skip


def failing_rows(findings: Sequence[Finding]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows that go to quarantine, by the name of the check, sorted and unique."""
    found: dict[str, npt.NDArray[np.int64]] = {}
    for finding in findings:
        if len(finding.failing):
            found[finding.check] = np.union1d(found.get(finding.check, NO_ROWS), finding.failing).astype(np.int64)
    return found


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
