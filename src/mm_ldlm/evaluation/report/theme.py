"""Theme of the figures: shared colours, fonts and margins.

Each system has one colour in every figure: blue for the model, grey for the encoder, amber for the one-step regression,
rose for baselines and green for real data. Backgrounds are transparent and text is neutral, so that figures suit light
and dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

MODEL, ENCODER, ONE_STEP, BASELINE, REAL, SECOND = "#4c7bd9", "#8b93a1", "#d9962b", "#cf5c7c", "#3f9e6e", "#8a6fd1"
PALETTE = (MODEL, ONE_STEP, REAL, BASELINE, SECOND, "#3aa6b9", "#a3703f", "#7a9a3c", ENCODER)
_SHADES = ("#d9962b", "#cf5c7c", "#4c4fb0")
"""Ends and middle of the colours of ordered lines; each is readable on light and dark pages."""
INK, GRID = "#7d8590", "rgba(125,133,144,0.18)"
FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


def shades(count: int) -> list[str]:
    """Make `count` colours for lines with an order, between those of `_SHADES`."""
    stops = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in _SHADES]
    found = []
    for place in range(count):
        position = place / max(count - 1, 1) * (len(stops) - 1)
        below = min(int(position), len(stops) - 2)
        mixed = (a + (b - a) * (position - below) for a, b in zip(stops[below], stops[below + 1], strict=True))
        found.append("#" + "".join(f"{round(value):02x}" for value in mixed))
    return found


def blank(*, height: int) -> go.Figure:
    """Make an empty figure in this theme."""
    import plotly.graph_objects as go

    figure = go.Figure()
    style(figure, height=height)
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


def adopted(figure: go.Figure, *, height: int = 280) -> go.Figure:
    """Copy a figure of another pipeline and restyle it in this theme."""
    import plotly.graph_objects as go

    own = go.Figure(figure)
    own.update_layout(width=None, autosize=True, title=None)
    style(own, height=height)
    own.update_traces(marker_line_width=0, selector={"type": "bar"})
    return own


def bars(values: Sequence[Mapping[str, float]], colour: str) -> dict[str, Any]:
    """Make error bars from intervals (value, low, high)."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, v["high"] - v["value"]) for v in values],
        "arrayminus": [max(0.0, v["value"] - v["low"]) for v in values],
        "color": colour,
        "thickness": 1.2,
        "width": 4,
    }


def empty(text: str = "nothing to show for this run") -> go.Figure:
    """Make a figure without data that shows a sentence."""
    figure = blank(height=160)
    figure.add_annotation(text=text, showarrow=False, font={"color": INK}, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
