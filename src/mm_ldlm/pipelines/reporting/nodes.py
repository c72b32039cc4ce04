"""Nodes of `reporting`: collect the metrics, compare runs, and write figures and the report page."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse
from mm_ldlm.training.checkpoints.reference import CHOSEN, run_folder, weights_folder

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Parameters = Any  # a section of the parameters, parsed by the hook
Metrics = dict[str, Any]

log = logging.getLogger(__name__)

PLOTS = (
    "plot_calls",
    "plot_length",
    "plot_baselines",
    "plot_sts",
    "plot_sts_scatter",
    "plot_mask_ratio",
    "plot_cosine",
    "plot_latent_spectrum",
    "plot_calibration",
    "plot_confusion",
    "plot_reliability",
    "plot_training",
    "plot_diagnostics",
    "plot_comparison",
)
"""Figures of this pipeline, each a catalog entry."""
_AGAIN = "Run `kedro run --pipelines=sampling,evaluation,reporting`, which evaluates this run again."
DATA_PLOTS = ("plot_lengths", "plot_norms", "plot_spectrum", "plot_neighbours")
"""Figures of the validation pipeline that the report shows too."""


def collect_metrics(
    inversion: Metrics,
    sts: Metrics,
    likelihood: Metrics,
    latents: Metrics,
    generation: Metrics,
    classification: Metrics,
    images: Metrics,
    timings: dict[str, float],
    run: dict[str, Any],
    runs: Path,
    evaluation: Parameters,
) -> dict[str, Any]:
    """Collect all headline numbers in one flat mapping, with the weights that they belong to ("made_by").

    Raises:
        EvaluationError: a suite evaluated other weights than those of the run.
    """
    from mm_ldlm.evaluation.headline import flat_metrics
    from mm_ldlm.evaluation.report.inputs import own_timings
    from mm_ldlm.training.checkpoints.provenance import MADE_BY, refuse_other

    suites = {
        "inversion": inversion, "sts": sts, "likelihood": likelihood, "latents": latents, "generation": generation,
        "classification": classification, "images": images,
    }  # fmt: skip
    folder = run_folder(runs, run)
    weights = _weights(weights_folder(runs, run), evaluation)
    for name, metrics in suites.items():
        refuse_other(metrics.get(MADE_BY), weights, what=f"metrics_{name}", remedy=_AGAIN)
    return {**flat_metrics(**suites, timings=own_timings(folder, timings)), MADE_BY: weights}


def compare_runs(
    run: dict[str, Any],
    runs: Path,
    metrics: dict[str, Any],
    inversion_rows: pd.DataFrame,
    likelihood_rows: pd.DataFrame,
    reporting: Parameters,
    evaluation: Parameters,
    seed: int,
    tracking: dict[str, Any],
) -> Metrics:
    """Save this run's result in its folder and compare it with the runs of `reporting.compare`.

    The folder of a run that was chosen by its path stays as it is.

    Raises:
        EvaluationError: a table of rows belongs to other weights than the metrics.
    """
    from mm_ldlm.evaluation.compare import compare
    from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig
    from mm_ldlm.evaluation.run_result import Result, keep, load_result
    from mm_ldlm.training.checkpoints.provenance import MADE_BY, refuse_other

    config = parse(ReportingConfig, reporting, at="reporting")
    bootstrap = parse(EvaluationConfig, evaluation, at="evaluation").bootstrap
    for name, rows in (("inversion_rows", inversion_rows), ("likelihood_rows", likelihood_rows)):
        refuse_other(rows.attrs.get(MADE_BY), metrics[MADE_BY], what=name, remedy=_AGAIN)
    ours = Result(str(run["name"]), metrics, inversion_rows, likelihood_rows)
    if CHOSEN not in run:
        keep(ours, run_folder(runs, run))

    def from_tracking(run_id: str) -> dict[str, float] | None:
        if not (uri := tracking.get("tracking_uri")):
            return None
        from mm_ldlm.app.tracking.mlflow import read_metrics

        return read_metrics(uri, run_id)

    others = [load_result(reference, from_tracking=from_tracking) for reference in config.compare]
    return {**compare(ours, others, bootstrap=bootstrap, seed=seed), MADE_BY: metrics[MADE_BY]}


def write_report(
    run: dict[str, Any],
    runs: Path,
    metrics: dict[str, Any],
    comparison: Metrics,
    inversion: Metrics,
    sts: Metrics,
    likelihood: Metrics,
    latents: Metrics,
    generation: Metrics,
    classification: Metrics,
    images: Metrics,
    inversion_rows: pd.DataFrame,
    samples_unconditional: pd.DataFrame,
    ingestion_report: dict[str, Any],
    validation_report: dict[str, Any],
    timings: dict[str, float],
    parameters: Parameters,
    *data_plots: go.Figure,
) -> dict[str, Any]:
    """Render the page ("report") and its figures, by catalog name; `data_plots` are those of `DATA_PLOTS`.

    Raises:
        EvaluationError: an input belongs to other weights than the metrics.
    """
    from mm_ldlm.evaluation.config import ReportingConfig
    from mm_ldlm.evaluation.report import figures, inputs, page, theme
    from mm_ldlm.evaluation.report.cards import cards
    from mm_ldlm.training.checkpoints.provenance import MADE_BY, refuse_other

    config = parse(ReportingConfig, parameters["reporting"], at="reporting")
    weights = metrics[MADE_BY]
    inputs_of_run: dict[str, Any] = {
        "metrics_inversion": inversion, "metrics_sts": sts, "metrics_likelihood": likelihood,
        "metrics_latents": latents, "metrics_generation": generation, "metrics_classification": classification,
        "metrics_images": images, "inversion_rows": inversion_rows.attrs,
        "samples_unconditional": samples_unconditional.attrs, "comparison": comparison,
    }  # fmt: skip
    for name, about in inputs_of_run.items():
        refuse_other(about.get(MADE_BY), weights, what=name, remedy=_AGAIN)
    path = run_folder(runs, run)
    training_log = inputs.training_log(path)
    drawn = figures.all_figures(
        inversion=inversion, sts=sts, likelihood=likelihood, latents=latents, classification=classification,
        log=training_log, comparison=comparison, smoothing=config.smoothing,
    )  # fmt: skip
    for figure in drawn.values():
        figure.update_layout(meta={MADE_BY: weights})
    made_of = inputs.ReportInputs(
        title=config.title,
        run=run,
        run_config=inputs.run_config(path),
        metrics=metrics,
        inversion=inversion,
        sts=sts,
        likelihood=likelihood,
        latents=latents,
        generation=generation,
        classification=classification,
        images=images,
        inversion_rows=inversion_rows,
        unconditional=samples_unconditional,
        log=training_log,
        events=inputs.training_events(path),
        ingestion_report=ingestion_report,
        validation_report=validation_report,
        timings=inputs.own_timings(path, timings),
        parameters=_as_trained(parameters, run, inputs.run_config(path)),
        comparison=comparison,
        examples=config.examples,
        seed=int(parameters["seed"]),
    )
    for card in cards(metrics):
        log.info("%-24s %s%s", card.label, card.value, f"  [{card.interval}]" if card.interval else "")
    shown = {name: theme.adopted(figure) for name, figure in zip(DATA_PLOTS, data_plots, strict=True)}
    return {"report": page.render(made_of, drawn | shown, made_at=inputs.now()), **drawn}


def _as_trained(parameters: Parameters, run: dict[str, Any], config: dict[str, Any]) -> Parameters:
    """Replace what a run that was chosen by its path was trained with, which the environment does not describe."""
    sections = ("model", "objective", "training", "encoder") if CHOSEN in run else ()
    return {**parameters, **{key: config[key] for key in sections if key in config}}


def _weights(folder: Path, evaluation: Parameters) -> dict[str, str]:
    """Name the weights that the evaluation reads; `folder` is that of the run or of a checkpoint."""
    from mm_ldlm.evaluation.config import EvaluationConfig
    from mm_ldlm.training.checkpoints import folder as checkpoints
    from mm_ldlm.training.checkpoints.provenance import weights_of

    config = parse(EvaluationConfig, evaluation, at="evaluation")
    which = str(config.checkpoint).removeprefix("step-")
    return weights_of(checkpoints.find(folder, which=which), use_ema=config.use_ema)
