"""`reporting`: collect the metrics, compare runs, and write figures and the report page.

Inputs of suites have the names of the catalog: `metrics_SUITE` and `SUITE_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from mm_ldlm.data.validation.checks import plots as data_plots
from mm_ldlm.evaluation.report.inputs import ReportInputs, record_of
from mm_ldlm.evaluation.suites import flat_metrics, suites
from mm_ldlm.training.checkpoints.provenance import MADE_BY, refuse_other, weights_of
from mm_ldlm.training.checkpoints.reference import CHOSEN, run_folder, weights_folder

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig

Metrics = dict[str, Any]

_AGAIN = "Run `kedro run --pipelines=sampling,evaluation,reporting`, which evaluates this run again."


def collect_metrics(
    run: dict[str, Any], runs: Path, timings: dict[str, float], evaluation: EvaluationConfig, **metrics: Metrics
) -> Metrics:
    """Collect all headline numbers in one flat mapping, with the weights that they belong to ("made_by").

    Raises:
        EvaluationError: a suite evaluated other weights than the run has.
    """
    from mm_ldlm.training.checkpoints import folder as checkpoints

    checkpoint = checkpoints.find(weights_folder(runs, run), which=evaluation.checkpoint)
    weights = weights_of(checkpoint, use_ema=evaluation.use_ema)
    _refuse_other(weights, metrics)
    results = {name.removeprefix("metrics_"): found for name, found in metrics.items()}
    return {**flat_metrics(results, record_of(run_folder(runs, run)).timings(timings)), MADE_BY: weights}


def compare_runs(
    run: dict[str, Any],
    runs: Path,
    metrics: Metrics,
    reporting: ReportingConfig,
    evaluation: EvaluationConfig,
    seed: int,
    from_tracking: Callable[[str], dict[str, float] | None],
    **inputs: Any,
) -> Metrics:
    """Save this run's result in its folder and compare it with the runs of `reporting.compare`.

    The folder of a run that was chosen by its path stays as it is.

    Raises:
        EvaluationError: an input belongs to other weights than the metrics.
    """
    from mm_ldlm.evaluation.compare import Result, compare, keep, load_result

    results, rows = _of_suites(inputs, metrics[MADE_BY])
    files = {
        file: document
        for name, suite in suites().items() if "skipped" not in results[name]
        for file, document in suite.files(results[name]).items()
    }  # fmt: skip
    ours = Result(str(run["name"]), metrics, rows, files)
    if CHOSEN not in run:
        keep(ours, run_folder(runs, run))
    others = [load_result(reference, from_tracking=from_tracking) for reference in reporting.compare]
    return {**compare(ours, others, evaluation.bootstrap.seeded(seed)), MADE_BY: metrics[MADE_BY]}


def write_report(
    run: dict[str, Any],
    runs: Path,
    metrics: Metrics,
    comparison: Metrics,
    timings: dict[str, float],
    reporting: ReportingConfig,
    parameters: dict[str, Any],
    **inputs: Any,
) -> tuple[str, dict[str, go.Figure]]:
    """Render the page, and the figures of the run and of the suites by name; those without data are left out.

    Raises:
        EvaluationError: an input belongs to other weights than the metrics.
    """
    from mm_ldlm.evaluation.report import figures, page

    results, rows = _of_suites(inputs, metrics[MADE_BY])
    _refuse_other(metrics[MADE_BY], {"comparison": comparison})
    record = record_of(run_folder(runs, run))
    if CHOSEN in run:  # the environment does not describe what this run was trained with
        kept = {"model", "objective", "training", "encoder"} & record.config.keys()
        parameters = {**parameters, **{name: record.config[name] for name in kept}}
    drawn: dict[str, go.Figure | None] = {
        "plot_training": figures.training(record.log),
        "plot_diagnostics": figures.diagnostics(record.log),
        "plot_comparison": figures.comparison(comparison),
    }
    for name, suite in suites().items():
        drawn |= {} if "skipped" in results[name] else suite.figures(results[name])
    plots = {name: figure for name, figure in drawn.items() if figure is not None}
    for figure in plots.values():
        figure.update_layout(meta={MADE_BY: metrics[MADE_BY]})
    report = ReportInputs(
        run=run,
        record=record,
        metrics=metrics,
        suites=results,
        rows=rows,
        ingestion_report=inputs["ingestion_report"],
        validation_report=inputs["validation_report"],
        timings=record.timings(timings),
        comparison=comparison,
        parameters=parameters,
        reporting=reporting,
    )
    shown = {name: inputs[name] for name in data_plots() if any(len(trace.x) for trace in inputs[name].data)}
    return page.render(report, plots | shown), plots


def _of_suites(
    inputs: Mapping[str, Any], weights: Mapping[str, str]
) -> tuple[dict[str, Metrics], dict[str, pd.DataFrame]]:
    """Return the metrics and the tables of rows of the suites by name, all of these weights."""
    results = {name: inputs[f"metrics_{name}"] for name in suites()}
    rows = {name: inputs[f"{name}_rows"] for name, suite in suites().items() if suite.row_columns}
    made = {f"metrics_{name}": found for name, found in results.items()}
    _refuse_other(weights, made | {f"{name}_rows": table.attrs for name, table in rows.items()})
    return results, rows


def _refuse_other(weights: Mapping[str, str], inputs: Mapping[str, Any]) -> None:
    """Refuse an input, by its name, that belongs to other weights or does not name any."""
    for name, about in inputs.items():
        refuse_other(about.get(MADE_BY), weights, what=name, remedy=_AGAIN)


def create_pipeline() -> Pipeline:
    found = suites()
    metrics = _named([f"metrics_{name}" for name in found])
    rows = _named([f"{name}_rows" for name, suite in found.items() if suite.row_columns])
    of_run = _named(["run", "runs"])
    evaluation, reporting = {"evaluation": "params:evaluation"}, {"reporting": "params:reporting"}
    reports = _named(["ingestion_report", "validation_report", *data_plots()])
    return Pipeline(
        [
            node(
                collect_metrics,
                inputs={**of_run, "timings": "timings", **evaluation, **metrics},
                outputs="metrics",
                name="collect_metrics",
            ),
            node(
                compare_runs,
                inputs={
                    **of_run, "metrics": "metrics", **reporting, **evaluation, "seed": "params:seed",
                    "from_tracking": "tracked_metrics", **metrics, **rows,
                },
                outputs="comparison",
                name="compare_runs",
            ),
            node(
                write_report,
                inputs={
                    **of_run, **_named(["metrics", "comparison", "timings", "parameters"]), **reporting, **reports,
                    **metrics, **rows,
                },
                outputs=["report", "figures"],
                name="write_report",
            ),
        ],
        tags="reporting",
        namespace="reporting",
        prefix_datasets_with_namespace=False,
    )  # fmt: skip


def _named(names: list[str]) -> dict[str, str]:
    """Use the names of the catalog as the names of the arguments."""
    return {name: name for name in names}
