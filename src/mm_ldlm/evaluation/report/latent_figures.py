"""Figures of the sampled latents: STS, cosine to the encoder, spectrum, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mm_ldlm.evaluation.report import theme

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SOURCES = (
    ("encoder", "encoder", theme.ENCODER),
    ("one_step", "one-step regression", theme.ONE_STEP),
    ("model", "model", theme.MODEL),
)


def sts_scores(sts: Mapping[str, Any]) -> go.Figure | None:
    """Plot Spearman × 100 by set, with intervals, of model, one-step regression and encoder."""
    sets = sts.get("sets") or {}
    if not sets:
        return None
    import plotly.graph_objects as go

    figure = theme.blank(height=max(340, 130 + 70 * len(sets)))
    for source, label, colour in _SOURCES:
        names = [name for name, entry in sets.items() if source in entry["scores"]]
        if not names:
            continue
        values = [sets[name]["scores"][source]["spearman"] for name in names]
        figure.add_trace(
            go.Scatter(
                y=names,
                x=[v["value"] for v in values],
                error_x=theme.bars(values, colour),
                mode="markers",
                name=label,
                marker={"size": 11, "color": colour},
                hovertemplate="%{y}: %{x:.2f}<extra>" + label + "</extra>",
            )
        )
    figure.update_xaxes(title="Spearman × 100")
    figure.update_yaxes(title="STS set", type="category", autorange="reversed")
    figure.update_layout(scattermode="group", scattergap=0.6)
    return figure


def sts_scatter(sts: Mapping[str, Any]) -> go.Figure | None:
    """Plot cosine against gold score on the first set, for model and encoder."""
    entry = next(iter((sts.get("sets") or {}).values()), None)
    if not entry or "scatter" not in entry:
        return None
    import plotly.graph_objects as go

    figure = theme.blank(height=340)
    gold = np.array(entry["scatter"]["gold"])
    jitter = np.random.default_rng(0).uniform(-0.12, 0.12, size=len(gold))
    for source, label, colour in _SOURCES:
        if source in entry["scatter"] and source != "one_step":
            figure.add_trace(
                go.Scatter(
                    x=gold + jitter + (0.1 if source == "model" else -0.1),
                    y=entry["scatter"][source],
                    mode="markers",
                    name=label,
                    marker={"size": 5, "color": colour, "opacity": 0.65},
                    hovertemplate="gold %{x:.1f} · cosine %{y:.2f}<extra>" + label + "</extra>",
                )
            )
    figure.update_xaxes(title="gold score")
    figure.update_yaxes(title="cosine of the two embeddings")
    return figure


def cosine_histogram(latents: Mapping[str, Any]) -> go.Figure | None:
    """Plot the histogram of the cosine of sampled latents to the encoder's."""
    samplers = latents.get("samplers") or {}
    if not samplers:
        return None
    import plotly.graph_objects as go

    figure = theme.blank(height=320)
    colours = {"model": theme.MODEL, "one_step": theme.ONE_STEP}
    values = np.concatenate([np.asarray(entry["cosines"]) for entry in samplers.values()])
    low = math.floor(max(-1.0, float(np.quantile(values, 0.002))) * 50) / 50
    edges = np.linspace(low, 1.0, 60)
    for name, entry in samplers.items():
        counts, _ = np.histogram(np.clip(entry["cosines"], low, 1.0), bins=edges)
        figure.add_trace(
            go.Scatter(
                x=((edges[1:] + edges[:-1]) / 2).round(4),
                y=counts / max(1, counts.sum()),
                mode="lines",
                line={"color": colours.get(name, theme.SECOND), "width": 2, "shape": "hvh"},
                fill="tozeroy",
                name="model" if name == "model" else "one-step regression",
            )
        )
    figure.update_xaxes(title="cosine to the encoder's vector")
    figure.update_yaxes(title="fraction of sentences", tickformat=".0%")
    return figure


def spectrum(latents: Mapping[str, Any]) -> go.Figure | None:
    """Plot the eigenvalues of the covariance of sampled and of real latents."""
    found = latents.get("spectrum") or {}
    if not found:
        return None
    import plotly.graph_objects as go

    figure = theme.blank(height=320)
    names = {
        "real": ("encoder", theme.REAL),
        "model": ("model, given the text", theme.MODEL),
        "one_step": ("one-step regression", theme.ONE_STEP),
        "unconditional": ("model, unconditional", theme.SECOND),
    }
    for name, entry in found.items():
        label, colour = names.get(name, (name, theme.ENCODER))
        values = np.asarray(entry["eigenvalues"], dtype=float)
        values = values[: min(len(values), max(1, entry["rows"] - 1))]
        figure.add_trace(
            go.Scatter(
                x=np.arange(1, len(values) + 1),
                y=np.where(values > 1e-9 * values.max(), values, np.nan),  # smaller ones are rounding errors
                mode="lines",
                line={"color": colour, "width": 2},
                name=f"{label} (effective rank {entry['effective_rank']:.0f})",
            )
        )
    figure.update_xaxes(title="direction", type="log", tickformat="~g")
    figure.update_yaxes(title="variance", type="log", tickformat="~g", nticks=6)
    return figure


def calibration(latents: Mapping[str, Any]) -> go.Figure | None:
    """Plot the rank of the encoder's latent among K samples; a flat histogram is calibrated."""
    entry = latents.get("calibration")
    if not entry:
        return None
    import plotly.graph_objects as go

    fraction = entry["rank_fraction"]
    figure = theme.blank(height=300)
    figure.add_trace(go.Bar(x=list(range(len(fraction))), y=fraction, marker_color=theme.MODEL, name="model"))
    figure.add_hline(y=1 / len(fraction), line={"dash": "dot", "color": theme.ENCODER, "width": 1})
    figure.update_xaxes(title=f"number of {entry['samples']} samples lie below the encoder's latent", dtick=1)
    figure.update_yaxes(title="fraction", tickformat=".0%")
    figure.update_layout(showlegend=False)
    return figure
