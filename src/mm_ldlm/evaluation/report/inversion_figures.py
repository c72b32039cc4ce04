"""Figures of inversion: quality against model calls, quality by length, and the baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mm_ldlm.evaluation.report import theme

if TYPE_CHECKING:
    import plotly.graph_objects as go


CHOICES = {
    "exact_match": ("exact match", ".0%"),
    "token_accuracy": ("token accuracy", ".0%"),
    "token_set_f1": ("token F1", ".0%"),
    "bleu": ("BLEU", ".0f"),
    "chrf": ("chrF", ".0f"),
    "rouge_l": ("ROUGE-L", ".0%"),
    "cosine": ("cosine", ".2f"),
}
"""Metric of a line of the sweep → title and tick format of its axis."""


def calls(inversion: Mapping[str, Any]) -> go.Figure | None:
    """Plot quality against model calls per sentence, with intervals, and 99 % of the reference as a line.

    Exact match is shown first; a menu selects the other metrics that all points have.
    """
    lines = sorted(inversion.get("sweep") or [], key=lambda line: line["model_calls"])
    if not lines:
        return None
    import plotly.graph_objects as go

    groups = [
        ([line for line in lines if not line["encoder_calls"]], "model alone", theme.MODEL, "circle"),
        ([line for line in lines if line["encoder_calls"]], "search with the encoder", theme.SECOND, "diamond"),
    ]
    groups = [group for group in groups if group[0]]
    figure = theme.blank(height=440)
    for some, name, colour, symbol in groups:
        figure.add_trace(
            go.Scatter(
                x=[line["model_calls"] for line in some],
                y=[line["exact_match"]["value"] for line in some],
                error_y=theme.bars([line["exact_match"] for line in some], colour),
                mode="markers+text",
                text=[line["label"] for line in some],
                textposition=["top center" if i % 2 == 0 else "bottom center" for i in range(len(some))],
                textfont={"size": 11, "color": theme.INK},
                name=name,
                marker={"size": 11, "color": colour, "symbol": symbol},
                customdata=[
                    [
                        line["sentences_per_second"],
                        line["token_accuracy"]["value"],
                        f" · cosine {line['cosine']['value']:.3f}" if "cosine" in line else "",
                    ]
                    for line in some
                ],
                hovertemplate="<b>%{text}</b><br>%{x:.1f} calls · %{y}<br>"
                "token accuracy %{customdata[1]:.2%}%{customdata[2]}<br>"
                "%{customdata[0]:.1f} sentences per second<extra></extra>",
            )
        )
    reference = next((line for line in lines if line["label"] == line["reference"]), None)
    if reference:
        figure.add_hline(
            y=0.99 * reference["exact_match"]["value"],
            line={"dash": "dot", "color": theme.ENCODER, "width": 1},
            annotation={"text": f"99 % of {reference['label']}", "font": {"size": 11, "color": theme.INK}},
            annotation_position="bottom right",
        )
    highest = max(line["model_calls"] for line in lines)
    figure.update_xaxes(title="model calls per sentence", type="log", range=[-0.35, math.log10(highest) + 0.35])
    figure.update_xaxes(tickvals=[1, 2, 4, 8, 16, 32, 64, 128])
    figure.update_yaxes(title="exact match", tickformat=".0%", range=_reach(lines, "exact_match"))
    choices = [metric for metric in CHOICES if all(metric in line for line in lines)]
    if len(choices) > 1:
        buttons = [_button(metric, lines, [group[0] for group in groups], reference) for metric in choices]
        figure.update_layout(
            updatemenus=[
                {
                    "buttons": buttons,
                    "direction": "down",
                    "x": 1,
                    "xanchor": "right",
                    "y": 1.02,
                    "yanchor": "bottom",
                    "showactive": True,
                    "bgcolor": "rgba(0,0,0,0)",
                    "bordercolor": theme.GRID,
                    "font": {"size": 12, "color": theme.INK},
                }
            ]
        )
    return figure


def _button(
    metric: str, lines: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[Mapping[str, Any]]], reference: Any
) -> dict[str, Any]:
    label, form = CHOICES[metric]
    bars = [theme.bars([line[metric] for line in some], "") for some in groups]
    traces = {
        "y": [[line[metric]["value"] for line in some] for some in groups],
        "error_y.array": [bar["array"] for bar in bars],
        "error_y.arrayminus": [bar["arrayminus"] for bar in bars],
    }
    axis: dict[str, Any] = {
        "yaxis.title.text": label,
        "yaxis.tickformat": form,
        "yaxis.range": _reach(lines, metric),
    }
    if reference:
        level = 0.99 * reference[metric]["value"]
        axis |= {"shapes[0].y0": level, "shapes[0].y1": level, "annotations[0].y": level}
    return {"label": label, "method": "update", "args": [traces, axis]}


def _reach(lines: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Compute the limits of the axis from all intervals, with space for the labels."""
    low = min(line[metric]["low"] for line in lines)
    high = max(line[metric]["high"] for line in lines)
    room = 0.12 * max(high - low, 1e-3)
    return [low - room, high + room]


def by_length(inversion: Mapping[str, Any]) -> go.Figure | None:
    """Plot exact match and token accuracy by length of the sentence."""
    lines = inversion.get("by_length") or []
    if not lines:
        return None
    import plotly.graph_objects as go

    figure = theme.blank(height=340)
    x = [f"{line['tokens']}<br><span style='font-size:10px'>n = {line['rows']}</span>" for line in lines]
    exact = [{"value": line["exact_match"], "low": line["low"], "high": line["high"]} for line in lines]
    figure.add_trace(
        go.Bar(
            x=x,
            y=[e["value"] for e in exact],
            error_y=theme.bars(exact, theme.INK),
            name="exact match",
            marker_color=theme.MODEL,
        )
    )
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[line["token_accuracy"] for line in lines],
            name="token accuracy",
            mode="lines+markers",
            line={"color": theme.SECOND, "width": 2},
        )
    )
    figure.update_xaxes(title="tokens in the sentence")
    figure.update_yaxes(title="fraction", tickformat=".0%", rangemode="tozero")
    return figure


def baselines(inversion: Mapping[str, Any]) -> go.Figure | None:
    """Plot the model and its baselines for each metric."""
    if "metrics" not in inversion:
        return None
    import plotly.graph_objects as go

    names = {"exact_match": 1.0, "token_set_f1": 1.0, "bleu": 0.01, "rouge_l": 1.0, "cosine": 1.0}
    labels = {
        "exact_match": "exact match",
        "token_set_f1": "token F1",
        "bleu": "BLEU",
        "rouge_l": "ROUGE-L",
        "cosine": "cosine",
    }
    figure = theme.blank(height=340)
    sources = [("model", "model", theme.MODEL, inversion["metrics"])]
    for (name, entry), colour in zip(
        (inversion.get("baselines") or {}).items(), (theme.BASELINE, theme.ONE_STEP), strict=False
    ):
        sources.append((name, name.replace("_", " "), colour, entry["metrics"]))
    for _, label, colour, metrics in sources:
        some = [name for name in names if name in metrics]
        scaled = [{k: metrics[n][k] * names[n] for k in ("value", "low", "high")} for n in some]
        figure.add_trace(
            go.Bar(
                x=[labels[n] for n in some],
                y=[s["value"] for s in scaled],
                error_y=theme.bars(scaled, theme.INK),
                name=label,
                marker_color=colour,
            )
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(title="metric")
    figure.update_yaxes(title="value (BLEU ÷ 100)", range=[0, 1.05], tickformat=".0%")
    return figure
