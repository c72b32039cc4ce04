"""Results of runs, kept beside each run and read again: headline numbers, and tables of held-out sentences.

The result of a run is its `metrics.json`, and up to two tables of held-out sentences: one row per reconstructed text
(`inversion_rows.parquet`) and one row per scored text (`likelihood_rows.parquet`). A result is found in a given folder,
in `evaluation/` inside a run folder (where the reporting pipeline keeps a copy), or, for an MLflow run id, in the last
metrics of that run.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import pandas as pd

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.core.files import InputFile, problem, write_bytes, write_json
from mm_ldlm.core.messages import shorten, show
from mm_ldlm.evaluation.inversion import BLEU_COLUMNS

METRICS, FOLDER = "metrics.json", "evaluation"
INVERSION_ROWS, LIKELIHOOD_ROWS = "inversion_rows.parquet", "likelihood_rows.parquet"

HEADLINES = {
    "l2t.exact_match": "Exact match",
    "l2t.token_accuracy": "Token accuracy",
    "l2t.token_set_f1": "Token-set F1",
    "l2t.bleu": "BLEU",
    "l2t.cosine": "Cosine, re-embedded",
    "t2l.cosine": "Cosine, text to latent",
    "t2l.retrieval.at_1": "Retrieval at 1",
    "nll.per_token": "Nats per token",
    "nll.given_latent.per_token": "Nats per token, given the latent",
    "perplexity": "Perplexity",
    "latent.bits_per_token": "Bits of the latent per token",
    "unconditional.attested_bigrams": "Unconditional: attested word pairs",
    "unconditional.distinct_2": "Unconditional: distinct-2",
    "unconditional.entropy_sample": "Unconditional: token entropy",
    "unconditional.self_bleu": "Unconditional: self-BLEU",
    "unconditional.perplexity": "Unconditional: generative perplexity",
    "unconditional.memorised": "Unconditional: memorised",
    "seconds.training": "Seconds of training",
}
"""Key of metrics.json → its label in the table of runs."""
LIKELIHOODS = ("nll.per_token", "nll.given_latent.per_token", "perplexity")
"""Keys whose meaning depends on the run: exact, or an upper bound."""
PARTS = {"value": "", "low": ".low", "high": ".high"}
_COLUMNS = {INVERSION_ROWS: ("exact", "matches", "positions", *BLEU_COLUMNS), LIKELIHOOD_ROWS: ("tokens", "nll")}
"""Columns of numbers that every table with rows has, beside its ids"""

FromTracking = Callable[[str], Mapping[str, float] | None]
"""Function from a run id to its metrics, or None if tracking has no such run."""


@dataclass(frozen=True)
class Result:
    """Scores of one run.

    Attributes:
        inversion_rows: the table of `inversion.score_rows`; None if only metrics are available, empty if the run
            cannot invert.
        likelihood_rows: the table of `suites.likelihood.evaluate`; None or empty likewise.
    """

    name: str
    metrics: Mapping[str, float]
    inversion_rows: pd.DataFrame | None = None
    likelihood_rows: pd.DataFrame | None = None


def keep(result: Result, folder: Path) -> Path:
    """Write a result into `folder`/evaluation, each file atomically, so that the run folder suffices to compare it."""
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name, rows in ((INVERSION_ROWS, result.inversion_rows), (LIKELIHOOD_ROWS, result.likelihood_rows)):
        if rows is not None:
            buffer = io.BytesIO()
            rows.to_parquet(buffer, index=False)
            write_bytes(target / name, buffer.getvalue())
    write_json(target / METRICS, dict(result.metrics))
    return target


def load_result(reference: str, *, from_tracking: FromTracking | None = None) -> Result:
    """Load a result by run folder, folder, metrics file, or MLflow run id.

    Raises:
        EvaluationError: there is no result, or a damaged one; the message lists the paths that were searched, or names
            the file.
    """
    path = Path(reference)
    candidates = [path] if problem(path) is None else [path / METRICS, path / FOLDER / METRICS]
    for place in candidates:
        if problem(place) is None:
            metrics = InputFile(place, remedy="Evaluate that run again.", error=EvaluationError).json(dict)
            _check_numbers(metrics, place)
            return Result(_name(path), metrics, *(_read_rows(place.with_name(name)) for name in _COLUMNS))
    absent = not os.path.lexists(path)
    if from_tracking is not None and absent:
        metrics = from_tracking(reference)
        if metrics:
            return Result(reference[:8], metrics)
    raise EvaluationError(
        f"reporting.compare: expected the result of a run at '{reference}', found no {METRICS} at "
        f"{', '.join(map(str, candidates))}"
        + (", and no MLflow run of that id with metrics" if absent else "")
        + ". Evaluate that run first (`kedro run --pipelines=evaluation,reporting`)."
    )


def _check_numbers(metrics: Mapping[str, Any], place: Path) -> None:
    """Refuse a headline that is no number; null is a number that the run does not have."""
    keys = [f"{key}{part}" for key in (*HEADLINES, "nll.exact") for part in PARTS.values()]
    wrong = [key for key in keys if not isinstance(metrics.get(key), (int, float, NoneType))]
    if wrong:
        raise EvaluationError(
            f"Expected a number for '{wrong[0]}' in {place}, found {show(metrics[wrong[0]], 60)}. "
            "Evaluate that run again."
        )


def _read_rows(path: Path) -> pd.DataFrame | None:
    """Read a table of held-out sentences; None if the result has none.

    Raises:
        EvaluationError: it cannot be read, lacks a column or numbers, or has an id twice, which no pair could be of.
    """
    if not os.path.lexists(path):
        return None
    if (fault := problem(path)) is None:
        try:
            rows = pd.read_parquet(path)
        except (OSError, ValueError, TypeError, KeyError) as error:  # those of Arrow are ValueErrors, KeyErrors, …
            fault = f"cannot be read ({shorten(' '.join(str(error).split()), 200)})"
        else:
            fault = _fault_of_rows(rows, _COLUMNS[path.name]) if len(rows) else None
            if fault is None:
                return rows
    raise EvaluationError(
        f"Expected a table of one row for each held-out sentence, found that {path} {fault}. "
        "Evaluate that run again, or remove it from reporting.compare."
    )


def _fault_of_rows(rows: pd.DataFrame, columns: Sequence[str]) -> str | None:
    """Return why a table cannot be compared, as the end of a sentence about it."""
    if missing := [name for name in ("id", *columns) if name not in rows]:
        return f"has no column {', '.join(missing)}"
    if words := [name for name in columns if not pd.api.types.is_numeric_dtype(rows[name])]:
        return f"has no numbers in its column {', '.join(words)}"
    if not rows["id"].is_unique:
        return f"has the id {show(rows['id'][rows['id'].duplicated()].iloc[0], 60)} more than once"
    return None


def _name(path: Path) -> str:
    parts = [part for part in path.parts if part not in (FOLDER, METRICS)]
    return parts[-1] if parts else str(path)
