"""The page of the pipeline `comparison`: all runs in one table, failures, scores, paired differences, learning curves.

Its input is what `comparison.results.collect` returns; tables and theme are those of the report of one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.messages import duration
from mm_ldlm.evaluation.report import page, theme
from mm_ldlm.evaluation.report.content import spelled
from mm_ldlm.evaluation.report.figures import comparison_plot
from mm_ldlm.evaluation.report.training_figures import smoothed

if TYPE_CHECKING:
    import plotly.graph_objects as go

TITLES = {"text_nll": "nats per scored token", "loss": "loss"}
"""Key of the training log → title of its panel."""


def render(results: Mapping[str, Any], figures: Mapping[str, go.Figure], *, title: str, made_at: str = "") -> str:
    """Render the page as text; `figures` by catalog name."""
    plots = {name: page.embedded_json(figure) for name, figure in figures.items() if figure.data}
    rows = results["rows"]
    return page.rendered(
        "comparison.html.j2",
        plots=plots,
        title=title,
        made_at=made_at,
        c=results,
        members=list(dict.fromkeys(row["member"] for row in rows)),
        sessions=len(results["runs"]) + len(results["failed"]),
        seeds=_seeds(rows),
        rows=[_shown(row, results["baseline"]) for row in rows],
    )


def _seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describe the number of seeds of each model, as in "2 seeds" or "1 to 3 seeds"."""
    counts = Counter(row["member"] for row in rows if row["seed"] != "all").values()
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{f'{least} to ' if least < most else ''}{most} seed{'s' if most > 1 else ''}"


def figures(results: Mapping[str, Any], *, smoothing: float) -> dict[str, go.Figure]:
    """The figures `scores`, `curves` and `differences`; one without data is an empty figure with a sentence in it."""
    drawn = {
        "scores": comparison_plot(results),
        "curves": curves(results["curves"], smoothing=smoothing),
        "differences": differences(results["paired"]),
    }
    return {name: figure if figure is not None else theme.empty() for name, figure in drawn.items()}


def curves(runs: Sequence[Mapping[str, Any]], *, smoothing: float) -> go.Figure | None:
    """Smoothed training metrics of all runs over the tokens seen; the seeds of a member share its colour."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    keys = [key for key in TITLES if any(key in run["curves"] for run in runs)]
    if not keys:
        return None
    members = list(dict.fromkeys(run["member"] for run in runs))
    figure = make_subplots(rows=1, cols=len(keys), subplot_titles=[TITLES[key] for key in keys])
    for column, key in enumerate(keys, start=1):
        for run in runs:
            if not (points := run["curves"].get(key)):
                continue
            values = [value for _, value in points]
            figure.add_trace(
                go.Scatter(
                    x=[tokens for tokens, _ in points],
                    y=smoothed(values, smoothing) if len(values) > 20 else values,
                    mode="lines" if len(values) > 1 else "markers",
                    line={"color": theme.PALETTE[members.index(run["member"]) % len(theme.PALETTE)], "width": 2},
                    name=run["run"],
                    legendgroup=run["run"],
                    showlegend=column == 1,
                ),
                row=1,
                col=column,
            )
    theme.style(figure, height=360)
    figure.update_xaxes(title="tokens seen")
    figure.update_yaxes(title="value")
    figure.update_layout(margin={"t": 70}, legend={"y": 1.12})
    return figure


def differences(paired: Mapping[str, Mapping[str, Any]]) -> go.Figure | None:
    """Paired differences of the cost per token to the baseline, one point with its interval for each member."""
    import plotly.graph_objects as go

    found = {
        name: entry["differences"]["likelihood"]["differences"]["nats_per_token"]["difference"]
        for name, entry in paired.items()
        if "nats_per_token" in (entry.get("differences") or {}).get("likelihood", {}).get("differences", {})
        and entry["differences"]["likelihood"]["differences"]["nats_per_token"]["verdict"] != "too few"
    }
    if not found:
        return None
    figure = theme.blank(height=120 + 40 * len(found))
    figure.add_trace(
        go.Scatter(
            x=[interval["value"] for interval in found.values()],
            y=list(found),
            mode="markers",
            marker={"size": 9, "color": theme.MODEL},
            error_x=theme.bars(list(found.values()), theme.INK),
            showlegend=False,
        )
    )
    figure.add_vline(x=0, line_color=theme.INK, line_width=1)
    figure.update_xaxes(title="difference in nats per token")
    figure.update_yaxes(title="member")
    return figure


def _shown(row: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """A row of the table as text."""

    def number(key: str, form: str = ",.0f") -> str:
        return "–" if row.get(key) is None else format(row[key], form)

    return {
        "member": row["member"],
        "seed": row["seed"],
        "environment": row["environment"],
        "failed": row["status"] == "failed",
        "reference": row["member"] == baseline,
        "report": row.get("report"),
        "parameters": number("parameters"),
        "steps": number("steps"),
        "tokens": number("tokens"),
        "seconds": "–" if row.get("training_seconds") is None else duration(row["training_seconds"]),
        "rate": number("tokens_per_second"),
        "cost": spelled(_interval(row, "nats_per_token"), "nats"),
        "likelihood": row.get("likelihood") or "–",
        "difference": spelled(_interval(row, "difference"), "nats") if "difference" in row else "",
    }


def _interval(row: Mapping[str, Any], key: str) -> Mapping[str, float] | float | None:
    """A number with its interval where the row has one."""
    if f"{key}_low" not in row:
        return row.get(key)
    return {"value": row[key], "low": row[f"{key}_low"], "high": row[f"{key}_high"]}
