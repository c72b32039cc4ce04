"""Figures of a classifier: confusion matrix and reliability diagram."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mm_ldlm.evaluation.report import theme

_SOURCES = (("model", "model", theme.MODEL), ("logistic_regression", "logistic regression", theme.ENCODER))


def confusion(metrics: Mapping[str, Any]) -> go.Figure:
    """Plot the fraction of each true class by predicted class; the text of a cell has the count and its interval."""
    entry = metrics["model"]
    names, tables = entry["classes"], {key: np.asarray(table) for key, table in entry["confusion"].items()}
    fraction = tables["counts"] / np.maximum(tables["counts"].sum(axis=1, keepdims=True), 1)
    texts = np.vectorize("{:.0f} examples [{:.0f}, {:.0f}]".format)(tables["counts"], tables["low"], tables["high"])
    trace = {
        "type": "heatmap", "x": names, "y": names, "z": fraction.round(4), "zmin": 0, "zmax": 1, "hovertext": texts,
        "colorscale": [[0, "rgba(0,0,0,0)"], [1, theme.MODEL]],
        "hovertemplate": "%{y} → %{x}: %{z:.1%}, %{hovertext}<extra></extra>",
    }  # fmt: skip
    y = {"title": "true", "type": "category", "autorange": "reversed"}
    height = max(340, 150 + 18 * len(names))
    return theme.chart([trace], x={"title": "predicted", "type": "category"}, y=y, height=height)


def reliability(metrics: Mapping[str, Any]) -> go.Figure:
    """Plot accuracy against confidence by bin, with intervals; a calibrated classifier is on the diagonal."""
    diagonal = {"dash": "dot", "color": theme.GRID}
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "line": diagonal, "name": "calibrated"}
    ]
    for key, label, colour in _SOURCES:
        if key in metrics:
            lines = metrics[key]["reliability"]
            values = [line["accuracy"] for line in lines]
            traces.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": label, "line": {"color": colour, "width": 1.5},
                    "x": [line["confidence"] for line in lines], "y": [value["value"] for value in values],
                    "error_y": theme.bars(values, colour), "customdata": [line["examples"] for line in lines],
                    "hovertemplate": "confidence %{x:.3f}, accuracy %{y:.3f}, %{customdata} examples<extra></extra>",
                }
            )  # fmt: skip
    return theme.chart(
        traces, x={"title": "confidence", "range": [0, 1.02]}, y={"title": "accuracy", "range": [0, 1.02]}
    )
