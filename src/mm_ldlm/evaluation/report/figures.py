"""Figures of the suites and of comparisons, one function each; a function returns None if there is nothing to draw."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mm_ldlm.evaluation.report import theme

METRICS = {
    "exact_match": ("exact match", ".0%", 1.0),
    "token_accuracy": ("token accuracy", ".0%", 1.0),
    "token_set_f1": ("token F1", ".0%", 1.0),
    "bleu": ("BLEU", ".0f", 0.01),
    "chrf": ("chrF", ".0f", 0.01),
    "rouge_l": ("ROUGE-L", ".0%", 1.0),
    "cosine": ("cosine", ".2f", 1.0),
}
"""Metric of inversion → title and tick format of its axis, and its factor where metrics share an axis from 0 to 1"""
SOURCES = {
    "encoder": ("encoder", theme.ENCODER),
    "one_step": ("one-step regression", theme.ONE_STEP),
    "model": ("model", theme.MODEL),
    "real": ("encoder", theme.REAL),
    "unconditional": ("model, unconditional", theme.SECOND),
}
"""Source of embeddings → label and colour"""

# -- inversion ---------------------------------------------------------------------------------------------------------


def calls(sweep: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot quality against model calls per sentence, with intervals, and 99 % of the reference as a line.

    Exact match is shown first; a menu selects the other metrics that all points have.
    """
    if not sweep:
        return None
    lines = sorted(sweep, key=lambda line: line["model_calls"])
    kinds = (("model", theme.MODEL, "circle"), ("search with the encoder", theme.SECOND, "diamond"))
    groups = [[line for line in lines if bool(line["encoder_calls"]) == searches] for searches in (False, True)]
    views = {metric: _view(metric, lines, [some for some in groups if some])
             for metric in METRICS if all(metric in line for line in lines)}  # fmt: skip
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
    choices = [{"label": METRICS[name][0], "method": "update", "args": list(view)} for name, view in views.items()]
    menu = {
        "buttons": choices, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)",
        "bordercolor": theme.GRID, "font": {"size": 12, "color": theme.INK},
    }  # fmt: skip
    first = views["exact_match"][1]
    figure = theme.chart(
        traces,
        x={
            "title": "model calls per sentence", "type": "log", "tickvals": [2**i for i in range(8)],
            "range": [-0.35, math.log10(lines[-1]["model_calls"]) + 0.35],
        },
        y={"title": "exact match", "tickformat": ".0%", "range": first["yaxis.range"]},
        height=440, updatemenus=[menu],
    )  # fmt: skip
    figure.add_hline(
        y=first["shapes[0].y0"],
        line={"dash": "dot", "color": theme.ENCODER, "width": 1},
        annotation={"text": f"99 % of {lines[0]['reference']}", "font": {"size": 11, "color": theme.INK}},
        annotation_position="bottom right",
    )
    return figure


def _view(metric: str, lines: Sequence[Any], groups: Sequence[Sequence[Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make the values of the traces and of the layout that show one metric."""
    title, form, _ = METRICS[metric]
    bars = [theme.bars([line[metric] for line in some], "") for some in groups]
    low, high = min(line[metric]["low"] for line in lines), max(line[metric]["high"] for line in lines)
    room = 0.12 * max(high - low, 1e-3)  # for the labels
    level = 0.99 * next(line[metric]["value"] for line in lines if line["label"] == line["reference"])
    return {
        "y": [[line[metric]["value"] for line in some] for some in groups],
        "error_y.array": [bar["array"] for bar in bars],
        "error_y.arrayminus": [bar["arrayminus"] for bar in bars],
    }, {
        "yaxis.title.text": title,
        "yaxis.tickformat": form,
        "yaxis.range": [low - room, high + room],
        "shapes[0].y0": level,
        "shapes[0].y1": level,
        "annotations[0].y": level,
    }


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
        scaled = [{end: metrics[m][end] * METRICS[m][2] for end in ("value", "low", "high")} for m in some]
        traces.append(
            {
                "type": "bar", "name": name.replace("_", " "), "x": [METRICS[metric][0] for metric in some],
                "y": [each["value"] for each in scaled], "error_y": theme.bars(scaled, theme.INK),
                "marker": {"color": colour},
            }
        )  # fmt: skip
    y = {"title": "value (BLEU and chrF ÷ 100)", "range": [0, 1.05], "tickformat": ".0%"}
    return theme.chart(traces, x={"title": "metric"}, y=y, barmode="group")


# -- latents and STS ---------------------------------------------------------------------------------------------------


def cosine_histogram(samplers: Mapping[str, Any]) -> go.Figure:
    """Plot the histogram of the cosine of sampled latents to the encoder's."""
    values = np.concatenate([entry["cosines"] for entry in samplers.values()])
    edges = np.linspace(math.floor(max(-1.0, float(np.quantile(values, 0.002))) * 50) / 50, 1.0, 60)
    counts = {
        name: np.histogram(np.clip(entry["cosines"], edges[0], 1.0), bins=edges)[0] for name, entry in samplers.items()
    }
    traces = [
        {
            "type": "scatter", "mode": "lines", "name": SOURCES[name][0], "fill": "tozeroy",
            "x": ((edges[1:] + edges[:-1]) / 2).round(4), "y": count_b / count_b.sum(),
            "line": {"color": SOURCES[name][1], "width": 2, "shape": "hvh"},
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
        label, colour = SOURCES[name]
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


def sts_scores(sets: Mapping[str, Any]) -> go.Figure:
    """Plot Spearman × 100 by set, with intervals, of model, one-step regression and encoder."""
    traces = []
    for source, (label, colour) in SOURCES.items():
        found = {name: e["scores"][source]["spearman"] for name, e in sets.items() if source in e["scores"]}
        if found:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": label, "y": list(found),
                    "x": [each["value"] for each in found.values()],
                    "error_x": theme.bars(list(found.values()), colour), "marker": {"size": 11, "color": colour},
                    "hovertemplate": "%{y}: %{x:.2f}<extra>" + label + "</extra>",
                }
            )  # fmt: skip
    y = {"title": "STS set", "type": "category", "autorange": "reversed"}
    height = max(340, 130 + 70 * len(sets))
    return theme.chart(traces, x={"title": "Spearman × 100"}, y=y, height=height, scattermode="group", scattergap=0.6)


def sts_scatter(points: Mapping[str, Any]) -> go.Figure:
    """Plot cosine against gold score, for model and encoder."""
    gold = np.array(points["gold"])
    jitter = np.random.default_rng(0).uniform(-0.12, 0.12, size=len(gold))
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": SOURCES[source][0], "y": points[source],
            "x": gold + jitter + shift, "marker": {"size": 5, "color": SOURCES[source][1], "opacity": 0.65},
            "hovertemplate": "gold %{x:.1f} · cosine %{y:.2f}<extra>" + SOURCES[source][0] + "</extra>",
        }
        for source, shift in (("encoder", -0.1), ("model", 0.1)) if source in points
    ]  # fmt: skip
    return theme.chart(traces, x={"title": "gold score"}, y={"title": "cosine of the two embeddings"})


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
