"""The page of an audit and its frontier; the input is what `audit.audit` returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from mm_ldlm.evaluation.report import page, theme
from mm_ldlm.extras.audit.audit import strongest

CARDS = {
    "exact": ("Texts read exactly", "up to case and spaces"),
    "as_written": ("Texts read as written", "every character"),
    "nearly": ("Texts read nearly", "four words in five, or more"),
    "words": ("Words read", "of all words, in any place of the text"),
}
"""Fraction → label and note of its card"""
KINDS = {
    "numbers": "numbers", "addresses": "addresses (mail, web, telephone, street)",
    "names": "names (a capital inside a sentence)", "rare": "rare words (in at most two sampled texts)",
}  # fmt: skip


def report(results: Mapping[str, Any]) -> tuple[str, dict[str, go.Figure]]:
    """Render the page, and its figure by name."""
    figures = {"plot_frontier": frontier(results["forms"])}
    text = page.rendered(
        "mm_ldlm.extras.audit/audit.html.j2", figures=figures, title="Vectors of texts", kind="audit", a=results,
        cards=CARDS, kinds=KINDS, strongest=strongest, versions=page.installed_versions(),
    )  # fmt: skip
    return text, figures


def frontier(forms: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Plot the texts that the strongest attacker reads against the retrieval that is kept.

    Each form is a point with its number in the table.
    """
    numbers = {form["name"]: str(number) for number, form in enumerate(forms, 1)}
    groups = {
        "stored as": (theme.REAL, [form for form in forms if form["group"] == "stored as"]),
        "noise": (theme.ONE_STEP, [form for form in forms if form["level"]]),
        "other defences": (theme.BASELINE, [f for f in forms if f["group"] == "defence" and not f["level"]]),
    }
    traces: list[dict[str, Any]] = []
    for name, (colour, some) in groups.items():
        best = [strongest(dict(form)) for form in some]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers+text" if name == "noise" else "markers+text",
                "name": name,
                "x": [form["recall"]["value"] for form in some], "y": [each["value"] for each in best],
                "error_x": theme.bars([form["recall"] for form in some], colour),
                "error_y": theme.bars(best, colour), "text": [numbers[form["name"]] for form in some],
                "textposition": "top right", "textfont": {"size": 11, "color": colour},
                "hovertext": [form["name"] for form in some],
                "marker": {"size": 10, "color": colour}, "line": {"color": colour, "width": 1, "dash": "dot"},
                "hovertemplate": "<b>%{hovertext}</b><br>recall@10 %{x:.1%} · exact %{y:.1%}<extra></extra>",
            }
        )  # fmt: skip
    naive = [form for form in forms if form["naive"]["exact"] != form["adaptive"]["exact"]]
    traces.append(
        {
            "type": "scatter", "mode": "markers", "name": "naive attacker",
            "x": [form["recall"]["value"] for form in naive], "y": [form["naive"]["exact"]["value"] for form in naive],
            "text": [form["name"] for form in naive],
            "marker": {"size": 9, "color": theme.ENCODER, "symbol": "circle-open"},
            "hovertemplate": "<b>%{text}</b>, naive<br>recall@10 %{x:.1%} · exact %{y:.1%}<extra></extra>",
        }
    )  # fmt: skip
    x = {"title": "retrieval kept (recall@10)", "tickformat": ".0%"}
    y = {"title": "texts read exactly", "tickformat": ".0%", "rangemode": "tozero"}
    return theme.chart(traces, x=x, y=y, height=460)
