"""Inputs of a report, and the record of a run in its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mm_ldlm.core.files import recorded
from mm_ldlm.training.jsonl import number, read_events, read_metrics

LOG, CONFIG = "training_log.jsonl", "config.json"


@dataclass(frozen=True)
class RunRecord:
    """What a run folder tells about its training; empty parts for files that it does not have."""

    config: Mapping[str, Any]
    """config.json"""
    log: Sequence[Mapping[str, Any]]
    """Metric lines of the training log by step, each step once"""
    events: Sequence[Mapping[str, Any]]
    """Event lines of the training log, in order"""

    def timings(self, timings: Mapping[str, float]) -> dict[str, float]:
        """Replace the seconds of training by those of the log, over all sessions of the run.

        The pipeline `training` takes no time if it finds the run finished.
        """
        others = {name: seconds for name, seconds in timings.items() if name != "training"}
        found = [number(line["seconds"]) for line in self.log if "seconds" in line]
        return others if not found or found[-1] is None else {"training": found[-1], **others}


def record_of(run: Path) -> RunRecord:
    """Read the record of a run folder."""
    log, config = run / LOG, recorded(run / CONFIG) or {}
    return RunRecord(config, read_metrics(log), read_events(log)) if log.is_file() else RunRecord(config, [], [])


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Inputs of a report; those that a run does not have are empty."""

    run: Mapping[str, Any]
    """Reference of the run: name, path, step, fingerprint"""
    record: RunRecord
    metrics: Mapping[str, float]
    """metrics.json"""
    suites: Mapping[str, Mapping[str, Any]]
    """metrics_SUITE.json, by suite"""
    rows: Mapping[str, pd.DataFrame]
    """SUITE_rows, by suite"""
    ingestion_report: Mapping[str, Any]
    validation_report: Mapping[str, Any]
    timings: Mapping[str, float]
    """Seconds by pipeline"""
    comparison: Mapping[str, Any]
    """Result of `compare.compare`"""
    parameters: Mapping[str, Any]
    reporting: Any
    """`ReportingConfig`"""
