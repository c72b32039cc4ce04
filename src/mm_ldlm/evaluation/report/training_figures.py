"""Figures of the training log: losses and rates, and diagnostics by noise level, by part and by block."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mm_ldlm.evaluation.report import theme
from mm_ldlm.training.jsonl import number

PANELS = (
    ("loss", "loss", ("loss", "validation/loss"), "linear"),
    ("parts of the loss", "loss", ("*_loss",), "log"),
    ("accuracy", "fraction correct", ("*_accuracy",), "linear"),
    ("gradient norm", "norm before clipping", ("grad_norm",), "log"),
    ("learning rate", "learning rate", ("lr",), "linear"),
    ("speed", "tokens per second", ("tokens_per_second",), "linear"),
    ("noise", "noise level; fraction of masks", ("noise_level", "masking_rate"), "linear"),
    ("stage", "stage", ("*_stage",), "linear"),
)
"""Title, axis, patterns of keys of the training log, scale. A pattern with '*' matches keys without '/'."""
DIAGNOSTICS = {
    "grad_norm/": ("gradient norm by part", "norm", "log"),
    "update_ratio/": ("update ÷ weight by part", "ratio", "log"),
    "attention_logit_max/": ("largest attention logit by block", "logit", "linear"),
    "activation_rms/": ("activation RMS by block", "RMS", "linear"),
}
"""Prefix of keys of the training log → title, axis and scale."""
_NAMES_PER_LINE = 5
_BY_NOISE = re.compile(r"(?P<prefix>[a-z][a-z0-9_]*_)t\d+$")
"""A metric by noise level, as in text_nll_t0."""
_STATISTIC = re.compile(r"(?P<prefix>[a-z][a-z0-9_]*_)(mean|std|min|max)$")
"""A statistic of a quantity, which has a panel if two or more of them are logged."""


@dataclass(frozen=True)
class Panel:
    """One panel: the lines of all `keys`, whose names begin with `prefix`."""

    title: str
    axis: str
    scale: str
    prefix: str = ""
    keys: list[str] = field(default_factory=list)

    @property
    def colours(self) -> list[str]:
        """The colour of each line: shades from light to dark where the names are numbered, else the palette."""
        if len(self.keys) > 2 and all(key[-1].isdigit() for key in self.keys):
            return theme.shades(len(self.keys))
        return [theme.PALETTE[place % len(theme.PALETTE)] for place in range(len(self.keys))]

    @property
    def legend(self) -> str:
        """The title, with the name of each line in its colour below it if there are several lines."""
        names = [f'<span style="color:{colour}">{key.removeprefix(self.prefix)}</span>'
                 for key, colour in zip(self.keys, self.colours, strict=True)]  # fmt: skip
        lines = [names[start : start + _NAMES_PER_LINE] for start in range(0, len(names), _NAMES_PER_LINE)]
        return "<br>".join([self.title, *(" · ".join(line) for line in lines if len(names) > 1)])


def training(log: Sequence[Mapping[str, Any]], *, smoothing: float = 0.9) -> go.Figure | None:
    """Plot the training log over steps; thin lines are logged values, thick lines are smoothed."""
    keys = _keys(log)
    panels = [
        Panel(title, axis, scale, keys=[key for pattern in patterns for key in keys if _matches(key, pattern)])
        for title, axis, patterns, scale in PANELS
    ]
    quantities: dict[str, Panel] = {}
    for key in keys:
        if found := _STATISTIC.match(key):
            name = found["prefix"].replace("_", " ").strip()
            quantities.setdefault(found["prefix"], Panel(name, name, "linear", found["prefix"])).keys.append(key)
    panels += [panel for panel in quantities.values() if len(panel.keys) > 1]
    return _drawn(log, [panel for panel in panels if panel.keys], smoothing=smoothing)


def diagnostics(log: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot metrics by noise level, by part and by block, one line each; the title of a panel is also its legend."""
    panels: dict[str, Panel] = {}
    for key in _keys(log):
        prefix = key[: key.find("/") + 1]
        if found := _BY_NOISE.match(key):
            prefix = found["prefix"]
            name = prefix.replace("_", " ").strip()
            made = Panel(f"{name} by noise level (t0: least noise)", name, "linear", prefix)
        elif prefix in DIAGNOSTICS:
            made = Panel(*DIAGNOSTICS[prefix], prefix)
        else:
            continue
        panels.setdefault(prefix, made).keys.append(key)
    return _drawn(log, list(panels.values()), smoothing=0.0)


def _keys(log: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys of a log in alphabetical order, numbers by their value ("block2" before "block10")."""
    found = {key for line in log for key in line}
    return sorted(found, key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)])


def _matches(key: str, pattern: str) -> bool:
    return fnmatchcase(key, pattern) and ("*" not in pattern or "/" not in key)


def _drawn(log: Sequence[Mapping[str, Any]], panels: Sequence[Panel], *, smoothing: float) -> go.Figure | None:
    if not panels:
        return None
    rows = math.ceil(len(panels) / 2)
    most_lines = max(math.ceil(len(panel.keys) / _NAMES_PER_LINE) for panel in panels)
    height = 280 + 16 * most_lines  # pixels of a row, with the names of the lines above the panel
    figure = make_subplots(
        rows=rows,
        cols=2,
        subplot_titles=[panel.legend for panel in panels],
        vertical_spacing=(80 + 16 * most_lines) / (height * rows),
        horizontal_spacing=0.12,
    )
    for place, panel in enumerate(panels):
        where = {"row": place // 2 + 1, "col": place % 2 + 1}
        for key, colour in zip(panel.keys, panel.colours, strict=True):
            for trace in _curve(log, key, colour, smoothing, positive=panel.scale == "log"):
                figure.add_trace(trace, **where)
        ticks = {"tickformat": "~g", "nticks": 5} if panel.scale == "log" else {}
        figure.update_xaxes(title={"text": "step", "standoff": 2}, **where)
        figure.update_yaxes(title=panel.axis, type=panel.scale, **ticks, **where)
    theme.style(figure, height=height * rows)
    figure.update_layout(
        showlegend=False, hovermode="closest", margin={"l": 62, "r": 16, "t": 32 + 16 * most_lines, "b": 52}
    )
    figure.update_annotations(font={"size": 12, "color": theme.INK})
    return figure


def _curve(
    log: Sequence[Mapping[str, Any]], key: str, colour: str, smoothing: float, *, positive: bool
) -> list[dict[str, Any]]:
    """Make the traces of one key: its finite values, and above more than 20 of them their average, thick."""
    logged = [(line["step"], number(line[key])) for line in log if key in line]
    finite = [(step, value) for step, value in logged if value is not None and math.isfinite(value)]
    points = [(step, value) for step, value in finite if value > 0 or not positive]
    if not points:
        return []
    steps, values = zip(*points, strict=True)
    smooth = key != "lr" and not key.startswith("validation/") and len(values) > 20 and smoothing > 0
    trace = {"type": "scatter", "name": key, "x": steps, "mode": "lines" if len(values) > 1 else "markers"}
    thin = {**trace, "y": values, "line": {"color": colour, "width": 1 if smooth else 2}}
    if not smooth:
        return [thin]
    thick = {**trace, "y": smoothed(values, smoothing), "line": {"color": colour, "width": 2.2}}
    return [{**thin, "opacity": 0.3, "hoverinfo": "skip"}, thick]


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Compute the exponential moving average with bias correction (as in Adam)."""
    import pandas as pd

    found: list[float] = pd.Series(values, dtype=float).ewm(alpha=1 - weight, adjust=True).mean().tolist()
    return found
