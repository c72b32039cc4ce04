"""Render the page of the pipeline `comparison` and its figures from the result of `results.collect`."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mm_ldlm.evaluation.report import FEW_STEPS, page, theme
from mm_ldlm.evaluation.report.figures import SMOOTHING, comparison, smoothed

TITLES = {"text_nll": "nats per scored token", "loss": "loss"}
"""Key of the training log → title of its panel"""


def report(results: Mapping[str, Any], *, title: str) -> tuple[str, dict[str, go.Figure]]:
    """Render the page; return it and its figures by name."""
    drawn = {
        "plot_members_scores": comparison(results),
        "plot_members_curves": curves(results["curves"]),
        "plot_members_differences": differences(results["paired"]),
    }
    figures = {name: figure for name, figure in drawn.items() if figure is not None}
    text = page.rendered(
        "mm_ldlm.extras.comparison/comparison.html.j2", figures=figures, title=title, kind="comparison", c=results,
        trial=any((row.get("steps") or FEW_STEPS) < FEW_STEPS for row in results["rows"]), few_steps=FEW_STEPS,
    )  # fmt: skip
    return text, figures


def curves(runs: Sequence[Mapping[str, Any]]) -> go.Figure | None:
    """Plot smoothed training metrics of all runs over the tokens seen; the seeds of a member share its colour."""
    keys = [key for key in TITLES if any(key in run["curves"] for run in runs)]
    if not keys:
        return None
    members = list(dict.fromkeys(run["member"] for run in runs))
    figure = make_subplots(rows=1, cols=len(keys), subplot_titles=[TITLES[key] for key in keys])
    for column, key in enumerate(keys, start=1):
        for run in [run for run in runs if key in run["curves"]]:
            tokens, values = zip(*run["curves"][key], strict=True)
            trace = {
                "type": "scatter", "mode": "lines" if len(values) > 1 else "markers", "x": tokens,
                "y": smoothed(values, SMOOTHING) if len(values) > 20 else values,
                "line": {"color": theme.PALETTE[members.index(run["member"]) % len(theme.PALETTE)], "width": 2},
                "name": run["run"], "legendgroup": run["run"], "showlegend": column == 1,
            }  # fmt: skip
            figure.add_trace(trace, row=1, col=column)
    theme.style(figure, height=360)
    figure.update_xaxes(title="tokens seen")
    figure.update_layout(margin={"t": 70}, legend={"y": 1.12})
    return figure


def differences(paired: Mapping[str, Mapping[str, Any]]) -> go.Figure | None:
    """Plot paired differences of the cost per token to the baseline, one point with its interval for each member."""
    found = {}
    for name, entry in paired.items():
        costs = entry.get("differences", {}).get("likelihood", {}).get("differences", {})
        if "nats_per_token" in costs and costs["nats_per_token"]["verdict"] != "too few":
            found[name] = costs["nats_per_token"]["difference"]
    if not found:
        return None
    trace = {
        "type": "scatter", "mode": "markers", "y": list(found), "marker": {"size": 9, "color": theme.MODEL},
        "x": [interval["value"] for interval in found.values()],
        "error_x": theme.bars(list(found.values()), theme.INK),
    }  # fmt: skip
    figure = theme.chart([trace], x={"title": "difference in nats per token"}, y={}, height=120 + 40 * len(found))
    figure.add_vline(x=0, line_color=theme.INK, line_width=1)
    return figure
