"""Titles, scales and colours of the figures: each system has one colour, each axis names what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mm_ldlm.evaluation.report import (
    comparison_page,
    figures,
    inversion_figures,
    latent_figures,
    theme,
    training_figures,
)
from mm_ldlm.families.classification import figures as classification_figures


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def point(label: str, calls: float, encoder_calls: float = 0.0) -> dict[str, Any]:
    return {"label": label, "reference": "a", "model_calls": calls, "encoder_calls": encoder_calls,
            "sentences_per_second": 1.0, "exact_match": interval(0.5), "token_accuracy": interval(0.6)}  # fmt: skip


def score(*sources: str) -> dict[str, Any]:
    return {"scores": {source: {"spearman": interval(50)} for source in sources},
            "scatter": {"gold": [1.0, 2.0, 5.0], **{source: [0.1, 0.2, 0.3] for source in sources}}}  # fmt: skip


def bins() -> list[dict[str, Any]]:
    return [{"confidence": c, "accuracy": interval(c), "examples": 3} for c in (0.25, 0.75)]


SWEEP = {"sweep": [point("a", 1), point("b", 2), point("c", 4), point("d", 100), point("e", 9, 3)]}
LENGTHS = {"by_length": [{"tokens": "1–4", "rows": 9, "exact_match": 0.5, "low": 0.4, "high": 0.7,
                          "token_accuracy": 0.6}]}  # fmt: skip
ENTRY = {"metrics": {"exact_match": interval(0.5), "bleu": interval(30)}}
BASELINES = {**ENTRY, "baselines": {"nearest_training_sentence": ENTRY, "bag_of_words": ENTRY}}
STS = {"sets": {"news": score("encoder", "one_step", "model")}}
MANY_STS = {"sets": {f"s{i}": score("encoder", "one_step", "model") for i in range(9)}}
MASKS = {part: {"by_mask_ratio": [{"low": 0, "high": 0.5, "cross_entropy": 1.0, "accuracy": 0.5, "masked_tokens": 3}]}
         for part in ("unconditional", "given_latent")}  # fmt: skip
SPECTRA = {name: {"rows": 9, "effective_rank": 2.0, "eigenvalues": [2.0, 1.0]}
           for name in ("real", "model", "one_step", "unconditional")}  # fmt: skip
LATENTS = {
    "samplers": {"model": {"cosines": [0.9, 0.8]}, "one_step": {"cosines": [0.7]}}, "spectrum": SPECTRA,
    "calibration": {"samples": 2, "rank_fraction": [0.5, 0.2, 0.3]},
}  # fmt: skip
COUNTS = [[3, 1], [0, 5]]
CLASSES = {
    "model": {"classes": ["x", "y"], "confusion": dict.fromkeys(("counts", "low", "high"), COUNTS),
              "reliability": bins()},
    "logistic_regression": {"reliability": bins()},
}  # fmt: skip
COMPARED = {
    "runs": ["ours", "theirs"],
    "table": [{"metric": key, "label": key, "values": [{**interval(0.5), "note": "exact"}] * 2}
              for key in ("nll.per_token", "l2t.exact_match")],
}  # fmt: skip


def entry(value: float) -> dict[str, Any]:
    nats = {"nats_per_token": {"difference": interval(value), "verdict": "significant"}}
    return {"differences": {"likelihood": {"differences": nats}}}


MEMBERS = [
    {"run": "a, 0", "member": "a", "curves": {"text_nll": [(1.0, 3.0)], "loss": [(1.0, 3.0), (2.0, 2.0)]}},
    {"run": "b, 0", "member": "b", "curves": {"text_nll": [(1.0, 3.0), (2.0, 2.5)], "loss": [(1.0, 4.0)]}},
]
DRAWN: dict[str, Any] = {
    "calls": lambda: inversion_figures.calls(SWEEP),
    "length": lambda: inversion_figures.by_length(LENGTHS),
    "baselines": lambda: inversion_figures.baselines(BASELINES),
    "sts": lambda: latent_figures.sts_scores(STS),
    "scatter": lambda: latent_figures.sts_scatter(STS),
    "mask": lambda: figures.mask_ratio(MASKS),
    "cosine": lambda: latent_figures.cosine_histogram(LATENTS),
    "spectrum": lambda: latent_figures.spectrum(LATENTS),
    "calibration": lambda: latent_figures.calibration(LATENTS),
    "confusion": lambda: classification_figures.confusion(CLASSES),
    "reliability": lambda: classification_figures.reliability(CLASSES),
    "comparison": lambda: figures.comparison_plot(COMPARED),
    "members": lambda: comparison_page.curves(MEMBERS, smoothing=0.5),
    "differences": lambda: comparison_page.differences({"b": entry(0.5), "c": entry(-1.0)}),
}
AXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "calls": ({"title": "model calls per sentence", "type": "log", "tickvals": (1, 2, 4, 8, 16, 32, 64, 128)},
              {"title": "exact match", "tickformat": ".0%"}),
    "length": ({"title": "tokens in the sentence"}, {"title": "fraction", "tickformat": ".0%", "rangemode": "tozero"}),
    "baselines": ({"title": "metric"},
                  {"title": "value (BLEU ÷ 100)", "tickformat": ".0%", "range": (0, 1.05)}),
    "sts": ({"title": "Spearman × 100"}, {"title": "STS set", "type": "category", "autorange": "reversed"}),
    "scatter": ({"title": "gold score"}, {"title": "cosine of the two embeddings"}),
    "mask": ({"title": "noise level", "tickformat": ".0%", "range": (0, 1)},
             {"title": "nats per scored token", "rangemode": "tozero"}),
    "cosine": ({"title": "cosine to the encoder's vector"}, {"title": "fraction of sentences", "tickformat": ".0%"}),
    "spectrum": ({"title": "direction", "type": "log", "tickformat": "~g"},
                 {"title": "variance", "type": "log", "tickformat": "~g", "nticks": 6}),
    "calibration": ({"title": "number of 2 samples lie below the encoder's latent", "dtick": 1},
                    {"title": "fraction", "tickformat": ".0%"}),
    "confusion": ({"title": "predicted", "type": "category"},
                  {"title": "true", "type": "category", "autorange": "reversed"}),
    "reliability": ({"title": "confidence", "range": (0, 1.02)}, {"title": "accuracy", "range": (0, 1.02)}),
    "comparison": ({"title": "metric"}, {"title": "nats per token", "tickformat": ".2f", "rangemode": "tozero"}),
    "members": ({"title": "tokens seen"}, {"title": "value"}),
    "differences": ({"title": "difference in nats per token"}, {"title": "member"}),
}  # fmt: skip
OPTIONS = ("type", "tickvals", "tickformat", "range", "rangemode", "autorange", "nticks", "dtick")


def shown(axis: Any) -> dict[str, Any]:
    """The title of an axis, and the options that are set beyond those of the theme."""
    found = {"title": axis.title.text} | {name: getattr(axis, name) for name in OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("name", DRAWN)
def test_each_axis_names_what_it_shows_in_its_scale(name: str) -> None:
    figure = DRAWN[name]()
    x, y = AXES[name]
    own_range = {"calls": ("x", "y")}.get(name, ())
    for axis, expected, side in ((figure.layout.xaxis, x, "x"), (figure.layout.yaxis, y, "y")):
        found = shown(axis)
        if side in own_range:
            assert len(found.pop("range")) == 2
        assert found == expected
        assert (axis.gridcolor, axis.zerolinecolor, axis.linecolor, axis.ticks, axis.automargin) == (
            theme.GRID, theme.GRID, theme.GRID, "", True
        )  # fmt: skip
    layout = figure.layout
    assert (layout.paper_bgcolor, layout.plot_bgcolor) == ("rgba(0,0,0,0)",) * 2
    assert (layout.font.family, layout.font.color, layout.hoverlabel.font.family) == (theme.FONT, theme.INK, theme.FONT)
    assert layout.legend.orientation == "h"


COLOURS = {
    "calls": {"model alone": theme.MODEL, "search with the encoder": theme.SECOND},
    "length": {"exact match": theme.MODEL, "token accuracy": theme.SECOND},
    "baselines": {"model": theme.MODEL, "nearest training sentence": theme.BASELINE, "bag of words": theme.ONE_STEP},
    "sts": {"encoder": theme.ENCODER, "one-step regression": theme.ONE_STEP, "model": theme.MODEL},
    "scatter": {"encoder": theme.ENCODER, "model": theme.MODEL},
    "mask": {"unconditional": theme.ENCODER, "given the latent": theme.MODEL},
    "cosine": {"model": theme.MODEL, "one-step regression": theme.ONE_STEP},
    "spectrum": {"encoder": theme.REAL, "model, given the text": theme.MODEL, "one-step regression": theme.ONE_STEP,
                 "model, unconditional": theme.SECOND},
    "calibration": {"model": theme.MODEL},
    "reliability": {"calibrated": theme.GRID, "model": theme.MODEL, "logistic regression": theme.ENCODER},
    "comparison": {"ours": theme.MODEL, "theirs": theme.ONE_STEP},
    "members": {"a, 0": theme.PALETTE[0], "b, 0": theme.PALETTE[1]},
}  # fmt: skip


@pytest.mark.parametrize("name", COLOURS)
def test_each_system_has_its_own_colour(name: str) -> None:
    figure, found = DRAWN[name](), {}
    for trace in figure.data:
        label = trace.name.split(" (effective")[0]
        colour = (trace.marker.color or trace.line.color) if trace.type == "scatter" else trace.marker.color
        found.setdefault(label, set()).add(colour)
        bars = trace.error_x.color or trace.error_y.color
        if trace.type == "scatter" and bars is not None:
            assert bars == colour, "the interval of a point has its colour"
    assert found == {label: {colour} for label, colour in COLOURS[name].items()}


@pytest.mark.parametrize("name", ["comparison", "members"])
def test_a_name_of_several_panels_is_listed_once_and_switches_all_of_them(name: str) -> None:
    traces = DRAWN[name]().data
    assert len({trace.name for trace in traces}) * 2 == len(traces)
    first = traces[0].xaxis or "x"
    for trace in traces:
        assert (trace.legendgroup, trace.showlegend) == (trace.name, (trace.xaxis or "x") == first)


def test_points_and_lines_are_drawn_where_there_are_enough_of_them() -> None:
    one, two = DRAWN["members"]().data[:2]
    assert (one.mode, two.mode) == ("markers", "lines"), "one point alone would be invisible as a line"
    for count, mode in ((1, "markers"), (2, "lines")):
        log = [{"step": step, "loss": 1.0} for step in range(count)]
        figure: Any = training_figures.training(log)
        assert (figure.data[0].mode, figure.data[0].opacity, figure.data[0].hoverinfo) == (mode, 1.0, "all")
    assert [trace.mode for trace in DRAWN["reliability"]().data] == ["lines", "lines+markers", "lines+markers"]
    assert [trace.mode for trace in DRAWN["mask"]().data] == ["lines+markers"] * 2


def test_labels_of_neighboring_points_lie_above_and_below() -> None:
    alone, search = DRAWN["calls"]().data
    above, below = "top center", "bottom center"
    assert (alone.textposition, search.textposition) == ((above, below, above, below), (above,))
    assert (alone.marker.symbol, search.marker.symbol) == ("circle", "diamond")
    assert list(DRAWN["calls"]().layout.xaxis.range) == pytest.approx([-0.35, 2.35]), "ten to the 2 are 100 calls"


def test_bars_of_several_systems_stand_side_by_side() -> None:
    assert {name: DRAWN[name]().layout.barmode for name in ("baselines", "comparison")} == dict.fromkeys(
        ("baselines", "comparison"), "group"
    )
    layout = DRAWN["sts"]().layout
    assert (layout.scattermode, layout.scattergap) == ("group", 0.6)
    assert DRAWN["calibration"]().layout.showlegend is False
    bar = DRAWN["comparison"]().data[0]
    assert (bar.textposition, bar.insidetextanchor) == ("inside", "start"), "exact or NELBO, at the foot of the bar"


def test_the_points_of_the_model_lie_beside_those_of_the_encoder() -> None:
    encoder, model = DRAWN["scatter"]().data
    assert np.asarray(model.x) - np.asarray(encoder.x) == pytest.approx([0.2] * 3)
    assert abs(np.asarray(encoder.x) - [0.9, 1.9, 4.9]).max() <= 0.12
    assert len(set(np.round(np.asarray(encoder.x) - [1.0, 2.0, 5.0], 6))) == 3, "points of one score are spread"


def test_a_figure_grows_with_what_it_shows() -> None:
    assert DRAWN["sts"]().layout.height == 340
    assert latent_figures.sts_scores(MANY_STS).layout.height == 130 + 70 * 9  # type: ignore[union-attr]
    assert DRAWN["differences"]().layout.height == 120 + 40 * 2
    assert DRAWN["comparison"]().layout.height == 300 * 2


def test_lines_mark_no_difference_the_flat_histogram_and_the_reference() -> None:
    (zero,) = DRAWN["differences"]().layout.shapes
    assert (zero.x0, zero.x1, zero.line.color) == (0, 0, theme.INK)
    (flat,) = DRAWN["calibration"]().layout.shapes
    assert (flat.y0, flat.line.color, flat.line.dash) == (pytest.approx(1 / 3), theme.ENCODER, "dot")
    (level,) = DRAWN["calls"]().layout.shapes
    assert (level.line.color, level.line.dash) == (theme.ENCODER, "dot")
    assert DRAWN["reliability"]().data[0].line.dash == "dot"


def test_a_histogram_of_cosines_holds_every_sentence_and_shows_where_most_are() -> None:
    """One outlier of a thousand does not stretch the axis; it is counted at its end."""
    cosines = [*np.linspace(0.5, 0.9, 999), -0.99]
    (trace,) = latent_figures.cosine_histogram({"samplers": {"model": {"cosines": cosines}}}).data  # type: ignore[union-attr]
    assert sum(trace.y) == pytest.approx(1)
    assert trace.x[0] == pytest.approx(0.5 + 0.25 / 59, abs=1e-4)
    assert trace.x[-1] == pytest.approx(1.0, abs=0.01)
    assert (len(trace.x), trace.line.shape, trace.fill) == (59, "hvh", "tozeroy")
    assert trace.y[0] * 1000 == pytest.approx(23), "22 cosines below 0.5 + 0.5 ÷ 59, and the outlier"
    wide: Any = latent_figures.cosine_histogram({"samplers": {"model": {"cosines": [-1.0] * 9 + [1.0]}}})
    assert (sum(wide.data[0].y), wide.data[0].y[0], wide.data[0].y[-1]) == pytest.approx((1, 0.9, 0.1))


HOVER = {
    "calls": ["<b>%{text}</b><br>%{x:.1f} calls · %{y}<br>token accuracy %{customdata[1]:.2%}%{customdata[2]}<br>"
              "%{customdata[0]:.1f} sentences per second<extra></extra>"] * 2,
    "sts": [f"%{{y}}: %{{x:.2f}}<extra>{name}</extra>" for name in ("encoder", "one-step regression", "model")],
    "scatter": [f"gold %{{x:.1f}} · cosine %{{y:.2f}}<extra>{name}</extra>" for name in ("encoder", "model")],
    "mask": [f"noise level %{{x:.0%}}: %{{y:.3f}} nats · %{{customdata[0]:.1%}} correct · %{{customdata[1]}} tokens"
             f"<extra>{name}</extra>" for name in ("unconditional", "given the latent")],
    "confusion": ["%{y} → %{x}: %{z:.1%}, %{hovertext}<extra></extra>"],
    "reliability": [None, *["confidence %{x:.3f}, accuracy %{y:.3f}, %{customdata} examples<extra></extra>"] * 2],
}  # fmt: skip


@pytest.mark.parametrize("name", HOVER)
def test_the_text_beside_the_pointer_names_the_numbers_of_its_point(name: str) -> None:
    """A true class leads to the predicted one; the order of the custom numbers is that of the traces."""
    assert [trace.hovertemplate for trace in DRAWN[name]().data] == HOVER[name]


def test_a_confusion_is_colored_by_the_fraction_of_its_row_and_a_class_without_examples_is_blank() -> None:
    counts = [[0, 0], [1, 3]]
    classes = {"model": {"classes": ["x", "y"], "confusion": dict.fromkeys(("counts", "low", "high"), counts)}}
    (matrix,) = classification_figures.confusion(classes).data  # type: ignore[union-attr]
    assert np.asarray(matrix.z).tolist() == [[0, 0], [0.25, 0.75]]
    assert (matrix.zmin, matrix.zmax, matrix.colorscale[-1][1]) == (0, 1, theme.MODEL)


def test_latents_of_another_name_keep_it() -> None:
    other = {"spectrum": {"mine": {"rows": 9, "effective_rank": 1.6, "eigenvalues": [2.0, 1.0]}}}
    (trace,) = latent_figures.spectrum(other).data  # type: ignore[union-attr]
    assert (trace.name, trace.line.color) == ("mine (effective rank 2)", theme.ENCODER)


def test_a_number_without_an_interval_has_a_bar_without_ends() -> None:
    cell = {"value": 0.75, "low": None, "high": None, "note": ""}
    table = [{"metric": "l2t.exact_match", "label": "Exact match", "values": [cell, {**cell, "value": None}]}]
    figure: Any = figures.comparison_plot({"runs": ["a", "b"], "table": table})
    one, none = figure.data
    assert (list(one.y), list(one.error_y.array), list(one.error_y.arrayminus)) == ([0.75], [0], [0])
    assert (none.name, list(none.y)) == ("b", [])
    for nothing in (None, {}, {"runs": ["a"], "table": []}):
        assert figures.comparison_plot(nothing) is None


COSTS, FRACTIONS = ("cost", "nats per token"), ("fractions and cosines", "value")


@pytest.mark.parametrize(
    ("metrics", "panels"),
    [(["l2t.exact_match", "t2l.cosine"], [FRACTIONS]), (["nll.per_token"], [COSTS]),
     (["t2l.cosine", "nll.given_latent.per_token"], [COSTS, FRACTIONS])],
)  # fmt: skip
def test_each_panel_of_a_comparison_has_the_title_of_its_numbers(
    metrics: list[str], panels: list[tuple[str, str]]
) -> None:
    """Runs of models without a likelihood have no costs, others have costs alone."""
    values = [{**interval(0.5), "note": "exact"}] * 2
    table = [{"metric": key, "label": key, "values": values} for key in metrics]
    figure: Any = figures.comparison_plot({"runs": ["a", "b"], "table": table})
    axes = [axis.title.text for axis in figure.select_yaxes()]
    assert list(zip([title.text for title in figure.layout.annotations], axes, strict=True)) == panels
