"""Inputs of a report, and the readers of those that are in the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.files import recorded
from mm_ldlm.training.jsonl import number, read_events, read_metrics

if TYPE_CHECKING:
    import pandas as pd

LOG, CONFIG = "training_log.jsonl", "config.json"


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Inputs of a report; those that a run does not have are empty."""

    title: str
    run: Mapping[str, Any]
    """Reference of the run: name, path, step, fingerprint"""
    run_config: Mapping[str, Any]
    """config.json of the run folder"""
    metrics: Mapping[str, float]
    """metrics.json"""
    suites: Mapping[str, Mapping[str, Any]]
    """metrics_SUITE.json, by suite"""
    rows: Mapping[str, pd.DataFrame]
    """SUITE_rows, by suite"""
    log: Sequence[Mapping[str, Any]]
    """Metric lines of the training log, by step"""
    events: Sequence[Mapping[str, Any]]
    """Event lines of the training log"""
    ingestion_report: Mapping[str, Any]
    validation_report: Mapping[str, Any]
    timings: Mapping[str, float]
    """Seconds by pipeline"""
    parameters: Mapping[str, Any]
    comparison: Mapping[str, Any]
    """Result of `compare.compare`"""
    examples: int
    """Number of examples of each kind in the table of sentences"""
    seed: int


def run_config(run: Path) -> dict[str, Any]:
    """Read the config.json of a run folder; empty if it has none."""
    return recorded(run / CONFIG) or {}


def training_log(run: Path) -> list[dict[str, Any]]:
    """Read the metric lines by step, each step once; empty if there is no log."""
    return read_metrics(run / LOG) if (run / LOG).is_file() else []


def training_events(run: Path) -> list[dict[str, Any]]:
    """Read the events of training in order; empty if there is no log."""
    return read_events(run / LOG) if (run / LOG).is_file() else []


def own_timings(run: Path, timings: Mapping[str, float]) -> dict[str, float]:
    """Replace the seconds of training by those of the run's log, over all its sessions.

    The pipeline `training` takes no time if it finds the run finished.
    """
    others = {name: seconds for name, seconds in timings.items() if name != "training"}
    last = next((line for line in reversed(training_log(run)) if "seconds" in line), None)
    seconds = None if last is None else number(last["seconds"])
    return others if seconds is None else {"training": seconds, **others}
