"""Plots of validation: plotly figures for the catalog, kedro-viz and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.validation.vectors import Statistics

if TYPE_CHECKING:
    import plotly.graph_objects as go

_BINS = 60


def draw(statistics: Statistics | None, lengths_n: npt.NDArray[np.int64]) -> dict[str, go.Figure]:
    """Plot the norms, the spectrum and the neighbours of the latents, and the lengths of the texts, by name."""
    norms = fractions = cosines = np.zeros(0)
    if statistics is not None:
        norms, fractions = statistics.norm_n[statistics.finite_n], statistics.spectrum
        cosines = statistics.neighbour_cosine
    texts = np.bincount(lengths_n)
    components = np.arange(1, len(fractions) + 1)
    found = {
        "norms": _figure("bar", *_binned(norms), title="Norms of the latents", x="norm", y="rows"),
        "spectrum": _figure(
            "scatter", components, fractions, title="Spectrum of the covariance", x="component",
            y="fraction of the variance",
        ),
        "lengths": _figure("bar", np.arange(len(texts)), texts, title="Tokens per text", x="tokens", y="texts"),
        "neighbours": _figure("bar", *_binned(cosines), title="Cosine to the nearest neighbour", x="cosine", y="rows"),
    }  # fmt: skip
    found["spectrum"].update_yaxes(type="log")
    return found


def _binned(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the centres and the counts of a histogram, so that a figure is small for any number of rows."""
    if not len(values):
        return values, values
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-6:  # unit vectors: one bar around their norm
        low, high = low - 1e-3, high + 1e-3
    counts, edges = np.histogram(values, bins=_BINS, range=(low, high))
    return (edges[:-1] + edges[1:]) / 2, counts


def _figure(kind: str, x_n: npt.NDArray[Any], y_n: npt.NDArray[Any], *, title: str, x: str, y: str) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure({"type": kind, "x": x_n.tolist(), "y": y_n.tolist()})
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, template="plotly_white", bargap=0)
    return figure
