"""Figures of the data, of the suites, of comparisons and of the training log; a function returns None without data."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mm_ldlm.evaluation.report import theme
from mm_ldlm.training.jsonl import number

METRICS = {
    "exact_match": ("exact match", 1.0),
    "token_accuracy": ("token accuracy", 1.0),
    "token_set_f1": ("token F1", 1.0),
    "bleu": ("BLEU", 0.01),
    "chrf": ("chrF", 0.01),
    "rouge_l": ("ROUGE-L", 1.0),
    "cosine": ("cosine", 1.0),
}
"""Metric of inversion → its name, and its factor on an axis from 0 to 1"""

# -- the data ----------------------------------------------------------------------------------------------------------


def lengths(lengths_n: np.ndarray) -> go.Figure:
    """Plot the lengths of the texts."""
    traces = [{"type": "bar", "x": np.arange(lengths_n.max(initial=-1) + 1), "y": np.bincount(lengths_n)}]
    return theme.chart(traces, x={"title": "tokens of the text"}, y={"title": "texts"}, height=280)


# -- inversion ---------------------------------------------------------------------------------------------------------


def calls(sweep: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot exact match against model calls per sentence, with intervals, and 99 % of the reference as a line."""
    if not sweep:
        return None
    lines = sorted(sweep, key=lambda line: line["model_calls"])
    kinds = (("model", theme.MODEL, "circle"), ("search with the encoder", theme.SECOND, "diamond"))
    groups = [[line for line in lines if bool(line["encoder_calls"]) == searches] for searches in (False, True)]
    traces = [
        {
            "type": "scatter", "mode": "markers+text", "name": name,
            "x": [line["model_calls"] for line in some],
            "y": [line["exact_match"]["value"] for line in some],
            "error_y": theme.bars([line["exact_match"] for line in some], colour),
            "text": [line["label"] for line in some],
            "textposition": ["top center" if i % 2 == 0 else "bottom center" for i in range(len(some))],
            "textfont": {"size": 11, "color": theme.INK},
            "marker": {"size": 11, "color": colour, "symbol": symbol},
            "customdata": [[line["sentences_per_second"]] for line in some],
            "hovertemplate": "<b>%{text}</b><br>%{x:.1f} calls · %{y}<br>%{customdata[0]:.1f} sentences per second"
            "<extra></extra>",
        }
        for some, (name, colour, symbol) in zip(groups, kinds, strict=True) if some
    ]  # fmt: skip
    x = {"title": "model calls per sentence", "type": "log", "tickvals": [2**i for i in range(8)]}
    figure = theme.chart(traces, x=x, y={"title": "exact match", "tickformat": ".0%"}, height=440)
    figure.add_hline(
        y=0.99 * next(line["exact_match"]["value"] for line in lines if line["label"] == line["reference"]),
        line={"dash": "dot", "color": theme.ENCODER, "width": 1},
        annotation={"text": f"99 % of {lines[0]['reference']}", "font": {"size": 11, "color": theme.INK}},
        annotation_position="bottom right",
    )
    return figure


def by_length(lines: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Plot exact match and token accuracy by length of the sentence."""
    x = [f"{line['tokens']}<br><span style='font-size:10px'>n = {line['rows']}</span>" for line in lines]
    exact = [line["exact_match"] for line in lines]
    traces = [
        {
            "type": "bar", "name": "exact match", "x": x, "y": [each["value"] for each in exact],
            "error_y": theme.bars(exact, theme.INK), "marker": {"color": theme.MODEL},
        },
        {
            "type": "scatter", "name": "token accuracy", "x": x, "y": [line["token_accuracy"] for line in lines],
            "mode": "lines+markers", "line": {"color": theme.SECOND, "width": 2},
        },
    ]  # fmt: skip
    return theme.chart(
        traces,
        x={"title": "tokens in the sentence"},
        y={"title": "fraction", "tickformat": ".0%", "rangemode": "tozero"},
    )


def baselines(systems: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Plot the metrics of the model and its baselines, by name."""
    traces = []
    for (name, metrics), colour in zip(systems.items(), (theme.MODEL, theme.BASELINE, theme.ONE_STEP), strict=False):
        some = [metric for metric in METRICS if metric in metrics]
        scaled = [{end: metrics[m][end] * METRICS[m][1] for end in ("value", "low", "high")} for m in some]
        traces.append(
            {
                "type": "bar", "name": name.replace("_", " "), "x": [METRICS[metric][0] for metric in some],
                "y": [each["value"] for each in scaled], "error_y": theme.bars(scaled, theme.INK),
                "marker": {"color": colour},
            }
        )  # fmt: skip
    y = {"title": "value (BLEU and chrF ÷ 100)", "range": [0, 1.05], "tickformat": ".0%"}
    return theme.chart(traces, x={"title": "metric"}, y=y, barmode="group")


def reliability_diagram(systems: Mapping[str, Sequence[Mapping[str, Any]]]) -> go.Figure:
    """Plot the fraction that is right against the confidence, by bin (`bootstrap.reliability`), with intervals.

    A calibrated confidence lies on the diagonal.
    """
    diagonal = {"dash": "dot", "color": theme.GRID}
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "line": diagonal, "name": "calibrated"}
    ]
    for (name, lines), colour in zip(systems.items(), theme.PALETTE, strict=False):
        values = [line["accuracy"] for line in lines]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "line": {"color": colour, "width": 1.5},
                "x": [line["confidence"] for line in lines], "y": [value["value"] for value in values],
                "error_y": theme.bars(values, colour), "customdata": [line["examples"] for line in lines],
                "hovertemplate": "confidence %{x:.3f}, right %{y:.3f}, %{customdata} examples<extra></extra>",
            }
        )  # fmt: skip
    axes = {"range": [0, 1.02], "tickformat": ".0%"}
    return theme.chart(traces, x={"title": "confidence", **axes}, y={"title": "fraction right", **axes})


# -- likelihood and comparison -----------------------------------------------------------------------------------------


def noise_level(likelihood: Mapping[str, Any]) -> go.Figure | None:
    """Plot the cross-entropy per scored token against the noise level, without and with the latent."""
    traces = []
    for name, label, colour in (
        ("unconditional", "unconditional", theme.ENCODER),
        ("given_latent", "given the latent", theme.MODEL),
    ):
        found = likelihood.get(name, {}).get("by_mask_ratio") or ()
        if lines := [line for line in found if line["cross_entropy"] is not None]:
            traces.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": label, "line": {"color": colour, "width": 2},
                    "x": [(line["low"] + line["high"]) / 2 for line in lines],
                    "y": [line["cross_entropy"] for line in lines],
                    "customdata": [[line["accuracy"], line["masked_tokens"]] for line in lines],
                    "hovertemplate": "noise level %{x:.0%}: %{y:.3f} nats · %{customdata[0]:.1%} correct · "
                    "%{customdata[1]} tokens<extra>" + label + "</extra>",
                }
            )  # fmt: skip
    x = {"title": "noise level", "tickformat": ".0%", "range": [0, 1]}
    y = {"title": "nats per scored token", "rangemode": "tozero"}
    return theme.chart(traces, x=x, y=y) if traces else None


def comparison(found: Mapping[str, Any]) -> go.Figure | None:
    """Plot the numbers of all compared runs with intervals: costs in nats per token, and fractions."""
    panels = [
        (title, unit, ticks, lines)
        for title, unit, forms, ticks in (
            ("cost", "nats per token", ("cost",), ".2f"),
            ("fractions and cosines", "value", ("fraction", "cosine"), ".0%"),
        )
        if (lines := [line for line in found["table"] if line["form"] in forms])
    ]
    if not panels:
        return None
    figure = make_subplots(
        rows=len(panels), cols=1, subplot_titles=[panel[0] for panel in panels], vertical_spacing=0.22
    )
    for row, (_, unit, ticks, lines) in enumerate(panels, start=1):
        for place, name in enumerate(found["runs"]):
            cells = [(line["label"], cell) for line in lines if (cell := line["values"][place])["value"] is not None]
            trace = {
                "type": "bar", "name": name, "legendgroup": name, "showlegend": row == 1,
                "x": [label for label, _ in cells], "y": [cell["value"] for _, cell in cells],
                "text": [cell["note"] for _, cell in cells], "textposition": "inside", "insidetextanchor": "start",
                "error_y": theme.bars([cell for _, cell in cells], theme.INK),
                "marker": {"color": theme.PALETTE[place % len(theme.PALETTE)]},
            }  # fmt: skip
            figure.add_trace(trace, row=row, col=1)
        figure.update_yaxes(title=unit, tickformat=ticks, rangemode="tozero", row=row, col=1)
    theme.style(figure, height=300 * len(panels))
    figure.update_layout(barmode="group", margin={"t": 70}, legend={"y": 1.08})
    return figure


# -- the training log --------------------------------------------------------------------------------------------------

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
SMOOTHING = 0.8
"""Weight of the earlier values in the moving average of a curve"""


def training(log: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot the training log over steps; thin lines are logged values, thick lines are smoothed."""
    return _panels(log, TRAINING, smoothing=SMOOTHING)


def diagnostics(log: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot metrics by noise level, by part and by block, one line each; the title of a panel is also its legend."""
    return _panels(log, DIAGNOSTICS, smoothing=0.0)


def _panels(
    log: Sequence[Mapping[str, Any]], rules: Sequence[tuple[str, str, str, str]], *, smoothing: float
) -> go.Figure | None:
    """Plot the keys of a log in panels, numbers in their names by value ("block2" before "block10")."""
    table = pd.DataFrame(log).map(number).astype(float)
    keys = sorted(
        map(str, table), key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]
    )
    panels: dict[tuple[str, str, str], dict[str, str]] = {}  # title, axis and scale → key → its name in the legend
    for pattern, title, axis, scale in rules:
        for key in keys:
            if found := re.fullmatch(pattern, key):
                prefix = found.groupdict().get("prefix") or ""
                name = prefix.replace("_", " ").strip()
                panel = (title.format(name=name), axis.format(name=name), scale)
                panels.setdefault(panel, {})[key] = key.removeprefix(prefix)
    if not panels:
        return None
    rows = math.ceil(len(panels) / 2)
    most_lines = max(math.ceil(len(names) / _NAMES_PER_LINE) for names in panels.values())
    height = 280 + 16 * most_lines  # pixels of a row, with the names of the lines above the panel
    figure = make_subplots(
        rows=rows,
        cols=2,
        subplot_titles=[_legend(title, names) for (title, _, _), names in panels.items()],
        vertical_spacing=(80 + 16 * most_lines) / (height * rows),
        horizontal_spacing=0.12,
    )
    for place, ((_, axis, scale), names) in enumerate(panels.items()):
        where = {"row": place // 2 + 1, "col": place % 2 + 1}
        for key, colour in zip(names, _colours(names), strict=True):
            weight = 0.0 if key == "lr" or key.startswith("validation/") else smoothing
            values = table.set_index("step")[key]
            drawn = values[values.between(0 if scale == "log" else -math.inf, math.inf, inclusive="neither")]
            for trace in _curve(drawn, colour, weight) if len(drawn) else ():
                figure.add_trace(trace, **where)
        ticks = {"tickformat": "~g", "nticks": 5} if scale == "log" else {}
        figure.update_xaxes(title={"text": "step", "standoff": 2}, **where)
        figure.update_yaxes(title=axis, type=scale, **ticks, **where)
    theme.style(figure, height=height * rows)
    figure.update_layout(
        showlegend=False, hovermode="closest", margin={"l": 62, "r": 16, "t": 32 + 16 * most_lines, "b": 52}
    )
    figure.update_annotations(font={"size": 12, "color": theme.INK})
    return figure


def _colours(names: Mapping[str, str]) -> list[str]:
    """Choose the colour of each line of a panel: from light to dark where the names are numbered, else the palette."""
    if len(names) > 2 and all(key[-1].isdigit() for key in names):
        return theme.shades(len(names))
    return [theme.PALETTE[place % len(theme.PALETTE)] for place in range(len(names))]


def _legend(title: str, names: Mapping[str, str]) -> str:
    """Make a title with the name of each line in its colour below it, if there are several lines."""
    spans = [
        f'<span style="color:{colour}">{name}</span>'
        for name, colour in zip(names.values(), _colours(names), strict=True)
    ]
    lines = [spans[start : start + _NAMES_PER_LINE] for start in range(0, len(spans), _NAMES_PER_LINE)]
    return "<br>".join([title, *(" · ".join(line) for line in lines if len(names) > 1)])


def _curve(values: pd.Series, colour: str, weight: float) -> list[dict[str, Any]]:
    """Make the traces of one key: its values by step, and above more than 20 of them their average, thick."""
    mode = "lines" if len(values) > 1 else "markers"
    trace = {"type": "scatter", "name": values.name, "x": values.index, "y": values, "mode": mode}
    if len(values) <= 20 or weight == 0:
        return [{**trace, "line": {"color": colour, "width": 2}}]
    thin = {**trace, "line": {"color": colour, "width": 1}, "opacity": 0.3, "hoverinfo": "skip"}
    return [thin, {**trace, "y": smoothed(values.tolist(), weight), "line": {"color": colour, "width": 2.2}}]


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Compute the exponential moving average with bias correction (as in Adam)."""
    return pd.Series(values, dtype=float).ewm(alpha=1 - weight).mean().tolist()
