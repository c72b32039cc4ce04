"""Figures of sampled latents."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mm_ldlm.evaluation.report import theme


def cosine_histogram(samplers: Mapping[str, Any]) -> go.Figure:
    """Plot the histogram of the cosine of sampled latents to the encoder's."""
    values = np.concatenate([entry["cosines"] for entry in samplers.values()])
    edges = np.linspace(math.floor(max(-1.0, float(np.quantile(values, 0.002))) * 50) / 50, 1.0, 60)
    counts = {
        name: np.histogram(np.clip(entry["cosines"], edges[0], 1.0), bins=edges)[0] for name, entry in samplers.items()
    }
    traces = [
        {
            "type": "scatter", "mode": "lines", "name": theme.SOURCES[name][0], "fill": "tozeroy",
            "x": ((edges[1:] + edges[:-1]) / 2).round(4), "y": count_b / count_b.sum(),
            "line": {"color": theme.SOURCES[name][1], "width": 2, "shape": "hvh"},
        }
        for name, count_b in counts.items()
    ]  # fmt: skip
    y = {"title": "fraction of sentences", "tickformat": ".0%"}
    return theme.chart(traces, x={"title": "cosine to the encoder's vector"}, y=y)


def spectrum(spectra: Mapping[str, Any]) -> go.Figure:
    """Plot the eigenvalues of the covariance of sampled and of real latents."""
    traces = []
    for name, entry in spectra.items():
        values = np.asarray(entry["eigenvalues"][: max(1, entry["rows"] - 1)], dtype=float)
        label, colour = theme.SOURCES[name]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": f"{label} (effective rank {entry['effective_rank']:.0f})",
                "x": np.arange(1, len(values) + 1), "line": {"color": colour, "width": 2},
                "y": np.where(values > 1e-9 * values.max(), values, np.nan),  # smaller ones are rounding errors
            }
        )  # fmt: skip
    log = {"type": "log", "tickformat": "~g", "nticks": 6}
    return theme.chart(traces, x={"title": "direction", **log}, y={"title": "variance", **log})


def calibration(entry: Mapping[str, Any] | None) -> go.Figure | None:
    """Plot the rank of the encoder's latent among K samples; a flat histogram is calibrated."""
    if not entry:
        return None
    fraction = entry["rank_fraction"]
    x = {"title": f"number of {entry['samples']} samples lie below the encoder's latent", "dtick": 1}
    figure = theme.chart(
        [{"type": "bar", "x": list(range(len(fraction))), "y": fraction, "marker": {"color": theme.MODEL}}],
        x=x, y={"title": "fraction", "tickformat": ".0%"}, showlegend=False,
    )  # fmt: skip
    figure.add_hline(y=1 / len(fraction), line={"dash": "dot", "color": theme.ENCODER, "width": 1})
    return figure
