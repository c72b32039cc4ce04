"""Results of runs, kept with each run and read again: headline numbers, and tables of held-out sentences.

The result of a run is its `metrics.json`, and for each suite with rows `SUITE_rows.parquet`, one row per held-out
sentence. A result is found in a given folder, in `evaluation/` inside a run folder (where the reporting pipeline keeps
a copy), or, for an MLflow run id, in the last metrics of that run.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.core.files import InputFile, write_bytes, write_json
from mm_ldlm.core.messages import shorten, show
from mm_ldlm.evaluation.suites import suites
from mm_ldlm.training.checkpoints.provenance import MADE_BY

METRICS, FOLDER = "metrics.json", "evaluation"

FromTracking = Callable[[str], Mapping[str, float] | None]
"""Function from a run id to its metrics, or None if tracking has no such run."""


@dataclass(frozen=True)
class Result:
    """Scores of one run: its headline numbers, and the tables of sentences of the suites that have them, by suite."""

    name: str
    metrics: Mapping[str, float]
    rows: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def keep(result: Result, folder: Path) -> None:
    """Write a result into `folder`/evaluation, each file atomically, so that the run folder suffices to compare it."""
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name, rows in result.rows.items():
        buffer = io.BytesIO()
        rows.to_parquet(buffer, index=False)
        write_bytes(target / f"{name}_rows.parquet", buffer.getvalue())
    write_json(target / METRICS, dict(result.metrics))


def load_result(reference: str, *, from_tracking: FromTracking | None = None) -> Result:
    """Load a result by run folder, folder, metrics file, or MLflow run id.

    Raises:
        EvaluationError: there is no result, or a damaged one; the message lists the paths that were searched, or names
            the file.
    """
    path = Path(reference)
    candidates = [path] if os.path.isfile(path) else [path / METRICS, path / FOLDER / METRICS]
    for place in candidates:
        if os.path.isfile(place):
            rows = {name: _read_rows(place.with_name(f"{name}_rows.parquet"), suite.row_columns)
                    for name, suite in suites().items() if suite.row_columns}  # fmt: skip
            named = [part for part in path.parts if part not in (FOLDER, METRICS)]
            present = {name: table for name, table in rows.items() if table is not None}
            return Result(named[-1] if named else reference, _read_metrics(place), present)
    if from_tracking is not None and not os.path.lexists(path) and (metrics := from_tracking(reference)):
        return Result(reference[:8], metrics)
    raise EvaluationError(
        f"reporting.compare: expected the result of a run at '{reference}', found no {METRICS} at "
        f"{', '.join(map(str, candidates))}, and no MLflow run of that id with metrics. Evaluate that run first "
        "(`kedro run --pipelines=evaluation,reporting`)."
    )


def _read_metrics(path: Path) -> dict[str, Any]:
    """Read a metrics.json; numbers are finite or null, "made_by" names the weights."""
    file = _file(path)
    metrics: dict[str, Any] = file.json(dict)
    for key, value in metrics.items():
        if key != MADE_BY and not isinstance(value, (int, float, type(None))):
            file.refuse(f"a number for '{key}'", show(value, 60))
    return metrics


def _read_rows(path: Path, columns: tuple[str, ...]) -> pd.DataFrame | None:
    """Read a table of held-out sentences; None if the result has none."""
    if not os.path.lexists(path):
        return None
    file = _file(path)
    try:
        rows = pd.read_parquet(file.check())
    except (OSError, ValueError, TypeError, KeyError) as error:  # those of Arrow are ValueErrors, KeyErrors, …
        file.refuse("a Parquet table", f"an error ({shorten(' '.join(str(error).split()), 200)})")
    if not len(rows):
        return None
    if wrong := [name for name in columns if name not in rows or not pd.api.types.is_numeric_dtype(rows[name])]:
        file.refuse(f"numbers in its columns {', '.join(columns)}", f"none in {', '.join(wrong)}")
    if "id" not in rows or not rows["id"].is_unique:  # no pair could be of an id that occurs twice
        file.refuse("a column 'id' with every id once", "none, or an id more than once")
    return rows


def _file(path: Path) -> InputFile:
    remedy = "Evaluate that run again, or remove it from reporting.compare."
    return InputFile(path, remedy=remedy, error=EvaluationError)
