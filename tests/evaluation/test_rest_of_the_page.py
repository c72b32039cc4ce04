"""What figures and words of the page show at zero, with ties, in many panels, and in the parts that carry no number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from mm_ldlm.evaluation.report import (
    comparison_page,
    content,
    figures,
    inversion_figures,
    latent_figures,
    page,
    theme,
    training_figures,
)
from mm_ldlm.evaluation.report.cards import cards
from mm_ldlm.evaluation.report.inputs import ReportInputs, own_timings
from mm_ldlm.families.classification import figures as classification_figures


def interval(value: float, reach: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - reach, "high": value + reach}


def inputs(**given: Any) -> ReportInputs:
    empty: dict[str, Any] = {
        key: {} for key in ("run", "run_config", "metrics", "inversion", "sts", "likelihood", "latents", "generation")
    }
    tables = {"inversion_rows": pd.DataFrame(), "unconditional": pd.DataFrame()}
    return ReportInputs(**{"title": "t", **empty, **tables, **given})


# -- cards and words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["l2t.bleu", "l2t.cosine", "l2t.exact_match", "classification.macro_f1"])
def test_a_number_of_zero_has_a_bar_of_its_own(key: str) -> None:
    (card,) = cards({key: 0.0, f"{key}.low": 0.0, f"{key}.high": 0.5})
    scale = 100 if key == "l2t.bleu" else 1
    assert (card.fraction, card.low, card.high) == (0.0, 0.0, 0.5 / scale)
    assert card.interval.startswith(("0.0", "0.000"))


def test_every_reason_is_listed_once_and_ends_with_one_full_stop() -> None:
    found = content.left_out(inputs(
        inversion={"skipped": "no texts...", "left_out": ["a.", "b"]}, sts={"skipped": "cannot embed", "sets": {}},
        latents={"skipped": "no latents"}, likelihood={"skipped": "no costs", "left_out": ["c", "d."]},
        generation={"skipped": "no samples."}, images={"left_out": ""},
    ))  # fmt: skip
    assert found == [
        ("From latent to text", "no texts."), ("Part of the inversion", "a."), ("Part of the inversion", "b."),
        ("From text to latent", "no latents."), ("Semantic textual similarity", "cannot embed."),
        ("Likelihood", "no costs."), ("Part of the likelihood", "c."), ("Part of the likelihood", "d."),
        ("Unconditional samples", "no samples."), ("Labels of images", "."),
    ]  # fmt: skip


@pytest.mark.parametrize(("losses", "words"), [
    ([(10, 2.0), (20, 1.5), (30, 1.5)], "1.500 at step 30; its lowest value is 1.500, at step 20."),
    ([(10, 1.5), (20, 1.5)], "1.500 at step 20; its lowest value is 1.500, at step 10."),
    ([(10, 0.0)], "0.000 at step 10."),
    ([(10, -1.0), (20, 0.0)], "0.000 at step 20; its lowest value is -1.000, at step 10."),
])  # fmt: skip
def test_of_equal_losses_the_first_is_the_lowest(losses: list[tuple[int, float]], words: str) -> None:
    log = [{"step": step, "validation/loss": loss} for step, loss in losses]
    assert content.validation_losses(log) == f"The validation loss of the averaged weights is {words}"


def test_values_of_zero_and_no_are_shown_among_the_events() -> None:
    event = {"step": 0, "event": "join", "rank": 0, "late": False, "name": "", "parts": [], "other": None, "time": 3.0,
             "nested": {"a": 0, "b": None}}  # fmt: skip
    assert content.event_lines([event]) == [
        ("0", "join", ["rank: 0", "late: False", "name: ", "nested.a: 0", "nested.b: null"])
    ]


def test_a_likelihood_without_a_name_and_a_missing_end_are_dashes_and_plain_numbers() -> None:
    row = {"member": "a", "seed": "0", "environment": "e", "status": "finished", "likelihood": "", "difference": None,
           "nats_per_token": None}  # fmt: skip
    shown = comparison_page._shown(row, "b")
    assert (shown["likelihood"], shown["cost"], shown["difference"], shown["reference"]) == ("–", "–", "–", False)


def test_times_without_a_training_keep_their_order(tmp_path: Any) -> None:
    times = {"evaluation": 3.0, "reporting": 1.0, "ingestion": 2.0}
    assert list(own_timings(tmp_path, times).items()) == list(times.items())


# -- figures -----------------------------------------------------------------------------------------------------------


def test_more_members_than_colors_begin_again() -> None:
    runs = [{"run": f"m{i}, 0", "member": f"m{i}", "curves": {"loss": [(1, 1.0), (2, 2.0)]}} for i in range(11)]
    figure: Any = comparison_page.curves(runs, smoothing=0.5)
    assert [trace.line.color for trace in figure.data] == [*theme.PALETTE, *theme.PALETTE[:2]]
    layout = figure.layout
    assert (layout.height, layout.margin.t, layout.legend.y) == (360, 70, 1.12)
    assert [trace.line.width for trace in figure.data] == [2] * 11


def test_costs_and_fractions_have_their_own_form() -> None:
    cell = {**interval(0.5), "note": "exact"}
    table = [{"metric": key, "label": key, "values": [cell]} for key in ("nll.per_token", "t2l.cosine")]
    figure: Any = figures.comparison_plot({"runs": ["a"], "table": table})
    axes = [(axis.title.text, axis.tickformat, axis.rangemode) for axis in figure.select_yaxes()]
    assert axes == [("nats per token", ".2f", "tozero"), ("value", ".0%", "tozero")]
    assert (figure.layout.margin.t, figure.layout.legend.y, figure.layout.height) == (70, 1.08, 600)
    upper, lower = figure.layout.yaxis.domain, figure.layout.yaxis2.domain
    assert upper[0] - lower[1] == pytest.approx(0.22)


def test_points_of_sts_are_spread_in_the_same_way_each_time() -> None:
    entry = {"gold": [1.0] * 40, "encoder": [0.5] * 40, "model": [0.4] * 40}
    one, two = (latent_figures.sts_scatter({"sets": {"a": {"scores": {}, "scatter": entry}}}) for _ in range(2))
    assert one is not None
    assert one.to_dict() == two.to_dict()  # type: ignore[union-attr]
    points = np.asarray(one.data[0].x)
    assert 0.2 < np.ptp(points) <= 0.24
    assert [(trace.marker.size, trace.marker.opacity) for trace in one.data] == [(5, 0.65)] * 2


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_rounding_errors_of_a_spectrum_are_relative_to_its_largest_value(scale: float) -> None:
    values = [2.0 * scale, 1.0 * scale, 4e-9 * scale, 1e-9 * scale]
    figure: Any = latent_figures.spectrum(
        {"spectrum": {"real": {"rows": 9, "effective_rank": 1, "eigenvalues": values}}}
    )
    shown = [None if math.isnan(value) else value / scale for value in figure.data[0].y]
    assert shown[:3] == pytest.approx([2.0, 1.0, 4e-9])
    assert shown[3] is None


def test_the_menu_and_the_line_of_the_reference_as_a_whole() -> None:
    line = {"label": "a", "reference": "a", "model_calls": 1.0, "encoder_calls": 0.0, "sentences_per_second": 2.0,
            "exact_match": interval(0.5), "token_accuracy": interval(0.75)}  # fmt: skip
    layout = inversion_figures.calls({"sweep": [line]}).layout  # type: ignore[union-attr]
    menu = layout.updatemenus[0].to_plotly_json()
    assert [button["method"] for button in menu.pop("buttons")] == ["update", "update"]
    assert menu == {
        "direction": "down", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom", "showactive": True,
        "bgcolor": "rgba(0,0,0,0)", "bordercolor": theme.GRID, "font": {"size": 12, "color": theme.INK},
    }  # fmt: skip
    (note,) = layout.annotations
    assert (note.text, note.font.size, note.font.color, note.showarrow) == ("99 % of a", 11, theme.INK, False)
    assert (note.xanchor, note.yanchor, note.x) == ("right", "top", 1), "below the line, at its end"
    (shape,) = layout.shapes
    assert (shape.y0, shape.y1, shape.line.width) == (pytest.approx(0.495), pytest.approx(0.495), 1)


STYLES: dict[str, Any] = {
    "calls": (inversion_figures.calls, {"sweep": [
        {"label": "a", "reference": "a", "model_calls": 1.0, "encoder_calls": calls, "sentences_per_second": 2.0,
         "exact_match": interval(0.5), "token_accuracy": interval(0.75)} for calls in (0.0, 2.0)]},
        [("markers+text", 11, None, None)] * 2),
    "length": (inversion_figures.by_length, {"by_length": [
        {"tokens": "1–4", "rows": 9, "exact_match": 0.5, "low": 0.4, "high": 0.7, "token_accuracy": 0.6}]},
        [(None, None, None, None), ("lines+markers", None, 2, None)]),
    "sts": (latent_figures.sts_scores, {"sets": {"a": {"scores": {"model": {"spearman": interval(50)}}}}},
            [("markers", 11, None, None)]),
    "mask": (figures.mask_ratio, {"unconditional": {"by_mask_ratio": [
        {"low": 0, "high": 1, "cross_entropy": 1.0, "accuracy": 0.5, "masked_tokens": 3}]}},
        [("lines+markers", None, 2, None)]),
    "cosine": (latent_figures.cosine_histogram, {"samplers": {"model": {"cosines": [0.5, 0.75]}}},
               [("lines", None, 2, "hvh")]),
    "spectrum": (latent_figures.spectrum, {"spectrum": {"real": {"rows": 9, "effective_rank": 1.0,
                                                                 "eigenvalues": [2.0, 1.0]}}},
                 [("lines", None, 2, None)]),
}  # fmt: skip


@pytest.mark.parametrize("name", STYLES)
def test_points_and_lines_are_as_wide_as_on_the_whole_page(name: str) -> None:
    draw, given, styles = STYLES[name]
    found = []
    for trace in draw(given).data:
        style = trace.to_plotly_json()
        line = style.get("line", {})
        found.append((style.get("mode"), style.get("marker", {}).get("size"), line.get("width"), line.get("shape")))
    assert found == styles


def test_a_point_of_sts_a_bar_and_a_difference_have_the_same_bars() -> None:
    bars = theme.bars([interval(0.5)], "red")
    assert {key: bars[key] for key in ("type", "symmetric", "color", "thickness", "width")} == {
        "type": "data", "symmetric": False, "color": "red", "thickness": 1.2, "width": 4
    }  # fmt: skip
    nats = {"difference": interval(0.5), "verdict": "significant"}
    paired = {"b": {"differences": {"likelihood": {"differences": {"nats_per_token": nats}}}}}
    (trace,) = comparison_page.differences(paired).data  # type: ignore[union-attr]
    assert (trace.mode, trace.marker.size, trace.marker.color, trace.showlegend, trace.error_x.color) == (
        "markers", 9, theme.MODEL, False, theme.INK
    )  # fmt: skip


@pytest.mark.parametrize(("classes", "height"), [(1, 340), (10, 340), (11, 348), (20, 510)])
def test_a_confusion_of_many_classes_is_higher(classes: int, height: int) -> None:
    """The ends of the interval of a count are those of its own cell."""
    counts = np.arange(classes**2).reshape(classes, classes)
    tables = {"counts": counts, "low": counts + 10_000, "high": counts + 20_000}
    entry = {"classes": [f"c{i}" for i in range(classes)], "confusion": {key: x.tolist() for key, x in tables.items()}}
    figure: Any = classification_figures.confusion({"model": entry})
    assert figure.layout.height == height
    assert [text for row in figure.data[0].hovertext for text in row] == [
        f"{count} examples [{count + 10_000}, {count + 20_000}]" for count in range(classes**2)
    ]


def test_parts_of_a_diagnostic_with_several_levels_share_its_panel() -> None:
    keys = ["grad_norm/block10/mlp", "grad_norm/block2/mlp", "grad_norm/block2/attention", "update_ratio/a/b"]
    figure: Any = training_figures.diagnostics([{"step": step, **dict.fromkeys(keys, 1.0)} for step in (1, 2)])
    assert [(trace.name, trace.yaxis) for trace in figure.data] == [
        ("grad_norm/block2/attention", "y"), ("grad_norm/block2/mlp", "y"), ("grad_norm/block10/mlp", "y"),
        ("update_ratio/a/b", "y2"),
    ]  # fmt: skip


def test_a_page_has_the_library_of_the_figures_only_with_figures() -> None:
    drawn, blank = go.Figure(go.Bar(x=[1], y=[2])), theme.empty()
    with_plot = page.render(inputs(), {"plot_training": drawn, "plot_calls": blank})
    assert with_plot.count(page.plotly_source()) == 1
    assert 'id="plot_training"' in with_plot
    assert 'id="plot_calls"' not in with_plot
    assert "There is no training log" not in with_plot
    without = page.render(inputs(), {"plot_calls": blank})
    assert page.plotly_source() not in without
    assert "There is no training log" in without
    assert "Intervals are 95 % percentile bootstrap intervals" in without
