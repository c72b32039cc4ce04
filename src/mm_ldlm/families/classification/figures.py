"""Figures of a classifier: confusion matrix and reliability diagram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mm_ldlm.evaluation.report import theme

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SOURCES = (("model", "model", theme.MODEL), ("logistic_regression", "logistic regression", theme.ENCODER))


def confusion(classification: Mapping[str, Any]) -> go.Figure | None:
    """Plot the fraction of each true class by predicted class; the text of a cell has the count and its interval."""
    entry = classification.get("model")
    if not entry:
        return None
    import plotly.graph_objects as go

    names = entry["classes"]
    tables = {key: np.asarray(entry["confusion"][key]) for key in ("counts", "low", "high")}
    fraction = tables["counts"] / np.maximum(tables["counts"].sum(axis=1, keepdims=True), 1)
    texts = [
        [
            f"{tables['counts'][i, j]:.0f} examples [{tables['low'][i, j]:.0f}, {tables['high'][i, j]:.0f}]"
            for j in range(len(names))
        ]
        for i in range(len(names))
    ]
    figure = theme.blank(height=max(340, 150 + 18 * len(names)))
    figure.add_trace(
        go.Heatmap(
            z=fraction.round(4), x=names, y=names, hovertext=texts, zmin=0, zmax=1,
            colorscale=[[0, "rgba(0,0,0,0)"], [1, theme.MODEL]],
            hovertemplate="%{y} → %{x}: %{z:.1%}, %{hovertext}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title="predicted", type="category")
    figure.update_yaxes(title="true", type="category", autorange="reversed")
    return figure


def reliability(classification: Mapping[str, Any]) -> go.Figure | None:
    """Plot accuracy against confidence by bin, with intervals; a calibrated classifier is on the diagonal."""
    if not classification.get("model"):
        return None
    import plotly.graph_objects as go

    figure = theme.blank(height=340)
    diagonal = {"dash": "dot", "color": theme.GRID}
    figure.add_trace(go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line=diagonal, name="calibrated", hoverinfo="skip"))
    for key, label, colour in _SOURCES:
        if entry := classification.get(key):
            values = [line["accuracy"] for line in entry["reliability"]]
            figure.add_trace(
                go.Scatter(
                    x=[line["confidence"] for line in entry["reliability"]],
                    y=[value["value"] for value in values],
                    error_y=theme.bars(values, colour),
                    customdata=[line["examples"] for line in entry["reliability"]],
                    mode="lines+markers",
                    name=label,
                    line={"color": colour, "width": 1.5},
                    hovertemplate="confidence %{x:.3f}, accuracy %{y:.3f}, %{customdata} examples<extra></extra>",
                )
            )
    figure.update_xaxes(title="confidence", range=[0, 1.02])
    figure.update_yaxes(title="accuracy", range=[0, 1.02])
    return figure
