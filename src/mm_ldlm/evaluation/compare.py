"""Comparison of runs: their results, headline numbers side by side, and paired differences on shared sentences.

The result of a run is its `metrics.json`, and for each suite with rows `SUITE_rows.parquet`, one row per held-out
sentence. A result is found in a given folder, in `evaluation/` inside a run folder (where the reporting pipeline keeps
a copy), or, for an MLflow run id, in the last metrics of that run.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mm_ldlm.core import EvaluationError, show
from mm_ldlm.core.files import InputFile, write_bytes, write_json
from mm_ldlm.evaluation.bootstrap import FEWEST_PAIRS, Bootstrap
from mm_ldlm.evaluation.suites import GIVEN_LENGTH, PARTS, headlines, likelihood_kind, suites
from mm_ldlm.evaluation.suites.base import Headline
from mm_ldlm.training.checkpoints.provenance import MADE_BY
from mm_ldlm.training.checkpoints.reference import EVALUATION

METRICS = "metrics.json"

FromTracking = Callable[[str], Mapping[str, float] | None]
"""Function from a run id to its metrics, or None if tracking has no such run."""


@dataclass(frozen=True)
class Result:
    """Scores of one run: its headline numbers, and the tables of sentences of the suites that have them, by suite."""

    name: str
    metrics: Mapping[str, float]
    rows: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    """JSON files that suites add, by name"""


def keep(result: Result, folder: Path) -> None:
    """Write a result into `folder`/evaluation, each file atomically, so that the run folder suffices to compare it."""
    target = folder / EVALUATION
    target.mkdir(parents=True, exist_ok=True)
    for name, rows in result.rows.items():
        write_bytes(target / f"{name}_rows.parquet", rows.to_parquet(index=False))
    for name, document in result.files.items():
        write_json(target / name, document)
    write_json(target / METRICS, dict(result.metrics))


def load_result(reference: str, *, from_tracking: FromTracking | None = None) -> Result:
    """Load a result by run folder, folder, metrics file, or MLflow run id.

    Raises:
        EvaluationError: there is no result, or a damaged one; the message lists the paths that were searched, or names
            the file.
    """
    path = Path(reference)
    candidates = [path] if path.is_file() else [path / METRICS, path / EVALUATION / METRICS]
    if place := next((place for place in candidates if place.is_file()), None):
        rows = {name: _read_rows(place.with_name(f"{name}_rows.parquet"), suite.row_columns)
                for name, suite in suites().items() if suite.row_columns}  # fmt: skip
        named = [part for part in path.parts if part not in (EVALUATION, METRICS)]
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
    except (OSError, ValueError, TypeError, KeyError) as error:  # Arrow's are ValueErrors, KeyErrors, …
        file.refuse("a Parquet table", f"an error ({str(error).rpartition(': ')[2]})")
    wrong = [name for name in columns if name not in rows or not pd.api.types.is_numeric_dtype(rows[name])]
    wrong += ["id"] if "id" not in rows or not rows["id"].is_unique else []  # a pair needs one row for each id
    if len(rows) and wrong:
        file.refuse(
            f"numbers in its columns {', '.join(columns)}, and unique ids",
            f"missing or wrong values in {', '.join(wrong)}",
        )
    return rows if len(rows) else None


def _file(path: Path) -> InputFile:
    remedy = "Evaluate that run again, or remove it from reporting.compare."
    return InputFile(path, remedy=remedy, error=EvaluationError)


# -- comparison -------------------------------------------------------------------------------------------------------


def compare(ours: Result, others: Sequence[Result], bootstrap: Bootstrap) -> dict[str, Any]:
    """Compare a run with others.

    Returns:
        A mapping with the keys `runs`, `table` and `paired`. `runs` are the names, ours first. `table` has one line per
        headline number that any run has: metric, label, form, and for each run value, low, high and note (for costs
        "exact", or "NELBO" for an upper bound). `paired` has for each other run the differences ours − theirs by suite.
    """
    if not others:
        return {"runs": [ours.name], "table": [], "paired": {}}
    found = side_by_side((ours, *others))
    names = found["runs"][1:]
    paired = {name: paired_differences([other], [ours], bootstrap) for name, other in zip(names, others, strict=True)}
    return {**found, "paired": {name: differences for name, differences in paired.items() if differences}}


def side_by_side(results: Sequence[Result]) -> dict[str, Any]:
    """Make the parts `runs` and `table` of `compare`, for any number of results."""
    runs: list[str] = []
    for result in results:
        repeated = sum(name == result.name or name.startswith(f"{result.name} (") for name in runs)
        runs.append(f"{result.name} ({repeated + 1})" if repeated else result.name)
    shown = {each.key: each for result in results for each in headlines(result.metrics) if each.compared}
    table = [
        {
            "metric": key,
            "label": headline.label,
            "form": headline.form,
            "values": [_cell(result.metrics, headline) for result in results],
        }
        for key, headline in shown.items()
    ]
    return {"runs": runs, "table": table}


def _cell(metrics: Mapping[str, float], headline: Headline) -> dict[str, Any]:
    marked = headline.form in ("cost", "perplexity") and headline.key in metrics
    ends = {part: metrics.get(f"{headline.key}{PARTS[part]}") for part in ("value", "low", "high")}
    return {**ends, "note": likelihood_kind(metrics) if marked else ""}


def paired_differences(theirs: Sequence[Result], ours: Sequence[Result], bootstrap: Bootstrap) -> dict[str, Any]:
    """Compute the differences ours − theirs between runs (seeds) of two systems, run i of one with run i of the other.

    Returns:
        For each suite of which all runs have rows its title, the number of shared sentences, and by statistic the
        `PairedDifference`: the part `paired` of `compare`.

    Raises:
        EvaluationError: the tables share fewer than two sentences.
    """
    found: dict[str, Any] = {}
    for name, suite in suites().items():
        tables = [result.rows.get(name) for result in (*theirs, *ours)]
        present = [table for table in tables if table is not None and len(table)]
        if not suite.row_columns or len(present) < len(tables):
            continue
        common = shared(present)
        kinds = {likelihood_kind(result.metrics) == GIVEN_LENGTH for result in (*theirs, *ours)}
        differences = {}
        for metric, statistic in suite.statistics(common).items():
            if name == "likelihood" and len(kinds) == 2:
                continue
            values = [statistic(table) for table in common]
            one, two = values[: len(theirs)], values[len(theirs) :]
            differences[metric] = bootstrap.difference(one, two, len(common[0]))
        found[name] = {
            "title": suite.title,
            "sentences": len(common[0]),
            "fewest_sentences": FEWEST_PAIRS,
            "differences": differences,
            "note": _note(ours[0].metrics, theirs[0].metrics) if name == "likelihood" else "",
        }
    return found


def shared(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Select the rows of all tables for the ids that all of them have, in their order.

    Raises:
        EvaluationError: there are fewer than two.
    """
    ids = sorted(set.intersection(*(set(table["id"]) for table in tables)))
    if len(ids) < 2:
        raise EvaluationError(
            f"Expected runs that share held-out sentences, found {len(ids)} shared ids, fewer than two, among "
            f"{' and '.join(str(len(table)) for table in tables)}. Compare runs of the same data, or remove the other "
            "run from reporting.compare."
        )
    return [table.set_index("id").loc[ids].reset_index() for table in tables]


def _note(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    mixed = (
        "The cost of {} is an upper bound (NELBO) and the other cost is exact; the difference includes the gap between "
        "the bound and the likelihood."
    )
    if (likelihood_kind(ours) == GIVEN_LENGTH) != (likelihood_kind(theirs) == GIVEN_LENGTH):
        return "Only one of the costs contains the length of the text: they are not compared."
    notes = {
        ("NELBO", "exact"): mixed.format("this run"),
        ("exact", "NELBO"): mixed.format("the other run"),
        ("NELBO", "NELBO"): "Both costs are upper bounds (NELBO).",
        (GIVEN_LENGTH, GIVEN_LENGTH): "Both costs are upper bounds (NELBO) given the length.",
    }
    return notes.get((likelihood_kind(ours), likelihood_kind(theirs)), "")
