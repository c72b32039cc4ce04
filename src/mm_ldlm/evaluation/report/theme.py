"""Theme of the figures: shared colours, fonts and margins.

Each system has one colour in every figure: blue for the model, grey for the encoder, amber for the one-step regression,
rose for baselines and green for real data. Backgrounds are transparent and text is neutral, so that figures suit light
and dark pages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

MODEL, ENCODER, ONE_STEP, BASELINE, REAL, SECOND = "#4c7bd9", "#8b93a1", "#d9962b", "#cf5c7c", "#3f9e6e", "#8a6fd1"
PALETTE = (MODEL, ONE_STEP, REAL, BASELINE, SECOND, "#3aa6b9", "#a3703f", "#7a9a3c", ENCODER)
_SHADES = ("#d9962b", "#cf5c7c", "#4c4fb0")
"""Ends and middle of the colours of ordered lines; each is readable on light and dark pages."""
INK, GRID = "#7d8590", "rgba(125,133,144,0.18)"
FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


SOURCES = {
    "encoder": ("encoder", ENCODER),
    "one_step": ("one-step regression", ONE_STEP),
    "model": ("model", MODEL),
    "real": ("encoder", REAL),
    "unconditional": ("model, unconditional", SECOND),
}
"""Source of embeddings → label and colour"""


def shades(count: int) -> list[str]:
    """Make `count` colours for lines with an order, between the colours of `_SHADES`."""
    return sample_colorscale(list(_SHADES), [place / max(count - 1, 1) for place in range(count)])


def chart(
    traces: Sequence[Mapping[str, Any]], *, x: Mapping[str, Any], y: Mapping[str, Any], height: int = 340, **layout: Any
) -> go.Figure:
    """Make a figure in this theme from its traces, the properties of its axes, and its layout."""
    figure = go.Figure([dict(trace) for trace in traces])
    style(figure, height=height)
    figure.update_xaxes(**x)
    figure.update_yaxes(**y)
    figure.update_layout(**layout)
    return figure


def style(figure: go.Figure, *, height: int) -> None:
    """Set colours, fonts, margins and axes of a figure in place."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 62, "r": 20, "t": 28, "b": 52},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": INK},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        hoverlabel={"font": {"family": FONT}},
        bargap=0.35,
        colorway=PALETTE,
    )
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "ticks": "", "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)


def bars(values: Sequence[Mapping[str, Any]], colour: str) -> dict[str, Any]:
    """Make error bars from intervals (value, low, high; low and high are None without an interval)."""
    ends = [[v["value"] if v[end] is None else v[end] for v in values] for end in ("low", "high")]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - v["value"]) for v, high in zip(values, ends[1], strict=True)],
        "arrayminus": [max(0.0, v["value"] - low) for v, low in zip(values, ends[0], strict=True)],
        "color": colour,
        "thickness": 1.2,
        "width": 4,
    }
