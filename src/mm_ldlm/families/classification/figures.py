"""Confusion matrix of a classifier."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mm_ldlm.evaluation.report import theme


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
