"""Findings of the validation, and the limits of the checks."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import Fraction, NonNegativeFloat, PositiveFloat, Rows, RowsOrNone, ValidationError, config

MAX_EXAMPLES = 5
NO_ROWS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_ORDER = ("error", "warning", "info")


@config
class ValidationConfig:
    """Limits of the validation checks.

    Attributes:
        verify_checksums: read every byte of records, tokens and latents and compare sha256.
        norm_tolerance: allowed difference from norm 1 if the encoder normalises; other rows go to quarantine.
        norm_outlier_iqrs: for other encoders, norms this many interquartile ranges outside the middle half are
            outliers.
        on_norm_outlier: "warn" or "quarantine".
        on_duplicate_vector: reaction to different texts with the same vector: "warn", or "quarantine" for all but the
            first.
        max_duplicate_fraction: the contract fails when a larger fraction of rows shares its vector with another row.
        collapsed_std: a dimension with at most this standard deviation counts as collapsed.
        max_collapsed_fraction: the contract fails when a larger fraction of the dimensions is collapsed.
        max_drift: a larger distance of a shard's mean from the shards' median, in total standard deviations, is a
            warning.
        spot_rows: number of rows, drawn over all shards, that are encoded again and compared; 0 skips the check.
        spot_tolerance: largest relative distance of a vector to its re-encoding; null chooses 1e-4 for float32, 3e-3
            for float16 storage, and 5e-2 for encoders that compute in half precision.
        on_leakage: training texts that occur in an evaluation set: "remove" (to quarantine) or "report".
        max_quarantine_fraction: the contract fails when a larger fraction of the rows is in quarantine.
        plot_rows: number of sampled rows for the spectrum and nearest-neighbour plots.
    """

    verify_checksums: bool = True
    norm_tolerance: PositiveFloat = 1e-3
    norm_outlier_iqrs: PositiveFloat = 8.0
    on_norm_outlier: Literal["warn", "quarantine"] = "warn"
    on_duplicate_vector: Literal["warn", "quarantine"] = "warn"
    max_duplicate_fraction: Fraction = 0.05
    collapsed_std: NonNegativeFloat = 1e-6
    max_collapsed_fraction: Fraction = 0.05
    max_drift: PositiveFloat = 0.5
    spot_rows: RowsOrNone = 256
    spot_tolerance: PositiveFloat | None = None
    on_leakage: Literal["remove", "report"] = "remove"
    max_quarantine_fraction: Fraction = 0.01
    plot_rows: Rows = 20_000


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

    def plain(self) -> dict[str, Any]:
        """Return the finding as plain JSON."""
        examples = [str(example) for _, example in zip(range(MAX_EXAMPLES), self.examples, strict=False)]
        return {
            "severity": self.severity, "check": self.check, "message": self.message,
            "count": self.count or len(self.failing), "examples": examples, "remedy": self.remedy,
        }  # fmt: skip


def plain(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as plain JSON, errors first."""
    return [finding.plain() for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.severity))]


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
