"""Plots of validation: plotly figures for the catalog, kedro-viz and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.validation.vectors import Statistics

if TYPE_CHECKING:
    import plotly.graph_objects as go

_BINS = 60


def norm_histogram(statistics: Statistics | None) -> go.Figure:
    """Plot the norms of the vectors."""
    values = statistics.norm_n[statistics.finite_n] if statistics is not None else np.zeros(0)
    return _histogram(values, title="Norms of the latents", x="norm")


def length_histogram(lengths: npt.NDArray[np.int64]) -> go.Figure:
    """Plot the number of tokens per text."""
    import plotly.graph_objects as go

    counts = np.bincount(lengths) if len(lengths) else np.zeros(1, int)
    figure = go.Figure(go.Bar(x=np.arange(len(counts)).tolist(), y=counts.tolist()))
    return _with_titles(figure, title="Tokens per text", x="tokens", y="texts")


def spectrum(statistics: Statistics | None) -> go.Figure:
    """Plot the eigenvalues of the covariance as fractions of the variance, on a logarithmic axis."""
    import plotly.graph_objects as go

    figure = go.Figure()
    fractions = statistics.spectrum if statistics is not None else np.zeros(0)
    if len(fractions):
        figure.add_trace(go.Scatter(x=list(range(1, len(fractions) + 1)), y=fractions.tolist(), mode="lines"))
    figure.update_yaxes(type="log")
    return _with_titles(figure, title="Spectrum of the covariance", x="component", y="fraction of the variance")


def neighbour_cosine(statistics: Statistics | None) -> go.Figure:
    """Plot the cosine similarity to the nearest other text of a sample."""
    values = statistics.neighbour_cosine if statistics is not None else np.zeros(0)
    return _histogram(values, title="Cosine to the nearest neighbour", x="cosine")


def _histogram(values: npt.NDArray[Any], *, title: str, x: str) -> go.Figure:
    """Plot a histogram that is binned here, so that the figure remains small for any number of rows."""
    import plotly.graph_objects as go

    if not len(values):
        return _with_titles(go.Figure(), title=title, x=x, y="rows")
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-6:  # unit vectors: one bar around their norm
        low, high = low - 1e-3, high + 1e-3
    counts, edges = np.histogram(values, bins=_BINS, range=(low, high))
    figure = go.Figure(go.Bar(x=((edges[:-1] + edges[1:]) / 2).tolist(), y=counts.tolist()))
    figure.update_layout(bargap=0)
    return _with_titles(figure, title=title, x=x, y="rows")


def _with_titles(figure: go.Figure, *, title: str, x: str, y: str) -> go.Figure:
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white")
    return figure
