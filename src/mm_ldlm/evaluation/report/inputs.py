"""Inputs of a report, and the readers of those that are in the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from mm_ldlm.training.jsonl import number, read_events, read_metrics

LOG, CONFIG = "training_log.jsonl", "config.json"


@dataclass(frozen=True)
class ReportInputs:
    """Inputs of a report; those that a run does not have are empty."""

    title: str
    run: Mapping[str, Any]
    """Reference of the run: name, path, step, fingerprint"""
    run_config: Mapping[str, Any]
    """config.json of the run folder"""
    metrics: Mapping[str, float]
    """metrics.json"""
    inversion: Mapping[str, Any]
    sts: Mapping[str, Any]
    likelihood: Mapping[str, Any]
    latents: Mapping[str, Any]
    generation: Mapping[str, Any]
    inversion_rows: pd.DataFrame
    """One row per reconstructed held-out sentence (`inversion.score_rows`)"""
    unconditional: pd.DataFrame
    """Unconditional samples, with the column text"""
    classification: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()
    """Metric lines of the training log, by step"""
    events: Sequence[Mapping[str, Any]] = ()
    """Event lines of the training log"""
    ingestion_report: Mapping[str, Any] = field(default_factory=dict)
    validation_report: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by pipeline"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    comparison: Mapping[str, Any] = field(default_factory=dict)
    """Result of `compare.compare`"""
    examples: int = 40
    """Number of examples of each kind in the table of sentences"""
    seed: int = 0


def run_config(run: Path) -> dict[str, Any]:
    """Read the config.json of a run folder; empty if it has none."""
    path = run / CONFIG
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


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


def now() -> str:
    """Format the local time, to the minute."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
