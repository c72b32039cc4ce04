"""Figures of the training log: losses and rates, and diagnostics by noise level, by part and by block."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mm_ldlm.evaluation.report import theme
from mm_ldlm.training.jsonl import number

TRAINING = (
    (r"(validation/)?loss", "loss", "loss", "linear"),
    (r"[^/]*_loss", "parts of the loss", "loss", "log"),
    (r"[^/]*_accuracy", "accuracy", "fraction correct", "linear"),
    (r"grad_norm", "gradient norm", "norm before clipping", "log"),
    (r"lr", "learning rate", "learning rate", "linear"),
    (r"tokens_per_second", "speed", "tokens per second", "linear"),
    (r"noise_level|masking_rate", "noise", "noise level; fraction of masks", "linear"),
    (r"[^/]*_stage", "stage", "stage", "linear"),
    (r"(?P<prefix>[a-z][a-z0-9_]*_)(mean|std|min|max)", "{name}", "{name}", "linear"),
)
"""Pattern of keys of the training log → title, axis and scale of their panel; {name} is the prefix in words"""
DIAGNOSTICS = (
    (r"(?P<prefix>[a-z][a-z0-9_]*_)t\d+", "{name} by noise level (t0: least noise)", "{name}", "linear"),
    (r"(?P<prefix>grad_norm/).*", "gradient norm by part", "norm", "log"),
    (r"(?P<prefix>update_ratio/).*", "update ÷ weight by part", "ratio", "log"),
    (r"(?P<prefix>attention_logit_max/).*", "largest attention logit by block", "logit", "linear"),
    (r"(?P<prefix>activation_rms/).*", "activation RMS by block", "RMS", "linear"),
)
_NAMES_PER_LINE = 5


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
    return _drawn(log, _panels(log, TRAINING), smoothing=smoothing)


def diagnostics(log: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot metrics by noise level, by part and by block, one line each; the title of a panel is also its legend."""
    return _drawn(log, _panels(log, DIAGNOSTICS), smoothing=0.0)


def _panels(log: Sequence[Mapping[str, Any]], rules: Sequence[tuple[str, str, str, str]]) -> list[Panel]:
    """Assign the keys of a log to panels, in alphabetical order, numbers by value ("block2" before "block10")."""
    keys = sorted(
        {key for line in log for key in line},
        key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)],
    )
    panels: dict[str, Panel] = {}
    for pattern, title, axis, scale in rules:
        for key in keys:
            if found := re.fullmatch(pattern, key):
                prefix = found.groupdict().get("prefix") or ""
                name = prefix.replace("_", " ").strip()
                panel = Panel(title.format(name=name), axis.format(name=name), scale, prefix)
                panels.setdefault(panel.title, panel).keys.append(key)
    return list(panels.values())


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
    lowest = 0 if positive else -math.inf
    points = [(step, value) for step, value in logged if value is not None and lowest < value < math.inf]
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
    found: list[float] = pd.Series(values, dtype=float).ewm(alpha=1 - weight).mean().tolist()
    return found
