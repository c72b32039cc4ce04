"""Plotly figures of the metrics, one function each; a function returns None if the run has nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mm_ldlm.evaluation.report import inversion_figures, latent_figures, theme, training_figures
from mm_ldlm.families.classification import figures as classification_figures

if TYPE_CHECKING:
    import plotly.graph_objects as go


def all_figures(
    *,
    inversion: Mapping[str, Any],
    sts: Mapping[str, Any],
    likelihood: Mapping[str, Any],
    latents: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]],
    classification: Mapping[str, Any] | None = None,
    comparison: Mapping[str, Any] | None = None,
    smoothing: float = 0.9,
) -> dict[str, go.Figure]:
    """Draw every figure, by name; one without data is an empty figure with a sentence in it."""
    drawn = {
        "plot_calls": inversion_figures.calls(inversion),
        "plot_length": inversion_figures.by_length(inversion),
        "plot_baselines": inversion_figures.baselines(inversion),
        "plot_sts": latent_figures.sts_scores(sts),
        "plot_sts_scatter": latent_figures.sts_scatter(sts),
        "plot_mask_ratio": mask_ratio(likelihood),
        "plot_cosine": latent_figures.cosine_histogram(latents),
        "plot_latent_spectrum": latent_figures.spectrum(latents),
        "plot_calibration": latent_figures.calibration(latents),
        "plot_confusion": classification_figures.confusion(classification or {}),
        "plot_reliability": classification_figures.reliability(classification or {}),
        "plot_training": training_figures.training(log, smoothing=smoothing),
        "plot_diagnostics": training_figures.diagnostics(log),
        "plot_comparison": comparison_plot(comparison),
    }
    return {name: figure if figure is not None else theme.empty() for name, figure in drawn.items()}


# -- likelihood and comparison -------------------------------------------------------------------------------------


def mask_ratio(likelihood: Mapping[str, Any]) -> go.Figure | None:
    """Plot the cross-entropy per scored token against the noise level, without and with the latent."""
    import plotly.graph_objects as go

    figure = theme.blank(height=340)
    drawn = False
    for name, label, colour in (
        ("unconditional", "unconditional", theme.ENCODER),
        ("given_latent", "given the latent", theme.MODEL),
    ):
        if not (likelihood.get(name) or {}).get("by_mask_ratio"):
            continue
        lines = [line for line in likelihood[name]["by_mask_ratio"] if line["cross_entropy"] is not None]
        figure.add_trace(
            go.Scatter(
                x=[(line["low"] + line["high"]) / 2 for line in lines],
                y=[line["cross_entropy"] for line in lines],
                mode="lines+markers",
                line={"color": colour, "width": 2},
                name=label,
                customdata=[[line["accuracy"], line["masked_tokens"]] for line in lines],
                hovertemplate="noise level %{x:.0%}: %{y:.3f} nats · %{customdata[0]:.1%} correct · "
                "%{customdata[1]} tokens<extra>" + label + "</extra>",
            )
        )
        drawn = True
    figure.update_xaxes(title="noise level", tickformat=".0%", range=[0, 1])
    figure.update_yaxes(title="nats per scored token", rangemode="tozero")
    return figure if drawn else None


FRACTIONS = (
    "l2t.exact_match",
    "l2t.token_accuracy",
    "l2t.token_set_f1",
    "l2t.cosine",
    "t2l.cosine",
    "t2l.retrieval.at_1",
    "unconditional.attested_bigrams",
    "unconditional.distinct_2",
)
COSTS = ("nll.per_token", "nll.given_latent.per_token")


def comparison_plot(comparison: Mapping[str, Any] | None) -> go.Figure | None:
    """Plot headline numbers of all compared runs with intervals: costs in nats per token, and fractions."""
    if not comparison:
        return None
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    lines = {line["metric"]: line for line in comparison["table"]}
    panels = [
        (title, unit, some, form)
        for title, unit, keys, form in (
            ("cost", "nats per token", COSTS, ".2f"),
            ("fractions and cosines", "value", FRACTIONS, ".0%"),
        )
        if (some := [lines[key] for key in keys if key in lines])
    ]
    if not panels:
        return None
    figure = make_subplots(
        rows=len(panels), cols=1, subplot_titles=[title for title, *_ in panels], vertical_spacing=0.22
    )
    colours = (theme.MODEL, theme.ONE_STEP, theme.BASELINE, theme.REAL, theme.SECOND, theme.ENCODER)
    for row, (_, unit, some, form) in enumerate(panels, start=1):
        for place, name in enumerate(comparison["runs"]):
            cells = [(line["label"], line["values"][place]) for line in some]
            cells = [(label, cell) for label, cell in cells if cell["value"] is not None]
            whole = [{k: c[k] if c[k] is not None else c["value"] for k in ("value", "low", "high")} for _, c in cells]
            figure.add_trace(
                go.Bar(
                    x=[label for label, _ in cells],
                    y=[interval["value"] for interval in whole],
                    text=[cell["note"] for _, cell in cells],
                    textposition="inside",
                    insidetextanchor="start",
                    error_y=theme.bars(whole, theme.INK),
                    name=name,
                    legendgroup=name,
                    showlegend=row == 1,
                    marker_color=colours[place % len(colours)],
                ),
                row=row,
                col=1,
            )
        figure.update_xaxes(title="metric", row=row, col=1)
        figure.update_yaxes(title=unit, tickformat=form, rangemode="tozero", row=row, col=1)
    theme.style(figure, height=300 * len(panels))
    figure.update_layout(barmode="group", margin={"t": 70}, legend={"y": 1.08})
    return figure
