"""The theme of the figures, figures of other pipelines in it, and the layout of the panels of a training."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go
import pytest

from mm_ldlm.evaluation.report import figures, inversion_figures, theme, training_figures


def test_a_figure_of_another_pipeline_is_copied_before_it_is_restyled() -> None:
    figure = go.Figure(go.Bar(x=[1], y=[2], marker={"line": {"width": 3}}))
    figure.add_trace(go.Scatter(x=[1], y=[3], marker={"line": {"width": 3}}))
    figure.update_layout(width=700, autosize=False, title="lengths", height=900, paper_bgcolor="white")
    before = figure.to_dict()
    for options, height in (({}, 280), ({"height": 150}, 150)):
        own = theme.adopted(figure, **options)
        assert figure.to_dict() == before
        assert (own.layout.width, own.layout.autosize, own.layout.title.text) == (None, True, None)
        assert (own.layout.height, own.layout.paper_bgcolor) == (height, "rgba(0,0,0,0)")
        assert [trace.marker.line.width for trace in own.data] == [0, 3], "bars without an edge"
        assert [list(trace.y) for trace in own.data] == [[2], [3]]


def test_an_empty_figure_shows_its_sentence_without_axes() -> None:
    for given, text in (((), "nothing to show for this run"), (("why",), "why")):
        figure = theme.empty(*given)
        assert ([each.text for each in figure.layout.annotations], figure.data) == ([text], ())
        assert (figure.layout.xaxis.visible, figure.layout.yaxis.visible, figure.layout.height) == (False, False, 160)


# -- training ----------------------------------------------------------------------------------------------------------


def test_a_validation_loss_and_a_learning_rate_are_not_smoothed() -> None:
    log = [{"step": step, "loss": 1 / step, "validation/loss": 2 / step, "lr": 0.1} for step in range(1, 31)]
    figure: Any = training_figures.training(log, smoothing=0.5)
    drawn = [(trace.name, trace.opacity, trace.line.width, trace.hoverinfo) for trace in figure.data]
    assert drawn == [
        ("loss", 0.3, 1, "skip"), ("loss", None, 2.2, None), ("validation/loss", 1.0, 2, "all"), ("lr", 1.0, 2, "all")
    ]  # fmt: skip
    plain: Any = training_figures.training(log, smoothing=0.0)
    assert [trace.name for trace in plain.data] == ["loss", "validation/loss", "lr"]


@pytest.mark.parametrize(
    ("keys", "shaded"),
    [(["a_t0", "a_t1"], False), (["a_t0", "a_t1", "a_t2"], True), (["a", "b", "c"], False), (["b0", "b1", "c"], False)],
)
def test_numbered_lines_have_shades_and_others_the_palette(keys: list[str], shaded: bool) -> None:
    colours = training_figures.Panel("t", "a", "a_", keys, "linear").colours()
    assert colours == (theme.shades(len(keys)) if shaded else list(theme.PALETTE[: len(keys)]))
    many = training_figures.Panel("t", "a", "", [f"k{chr(97 + i)}" for i in range(11)], "linear").colours()
    assert many == [*theme.PALETTE, *theme.PALETTE[:2]]


def test_the_legend_of_a_panel_has_five_names_in_a_line() -> None:
    panel = training_figures.Panel("norms", "norm", "norm/", [f"norm/{name}" for name in "abcdefg"], "log")
    title, *lines = panel.legend().split("<br>")
    assert (title, [line.count("<span") for line in lines]) == ("norms", [5, 2])
    assert "norm/" not in "".join(lines)
    assert training_figures.Panel("one", "x", "", ["loss"], "linear").legend() == "one"


@pytest.mark.parametrize("count", range(2, 17))
def test_every_line_of_a_panel_is_named_once_and_in_order(count: int) -> None:
    """Also a last name that stands alone in its line, as the 6th, 11th and 16th."""
    names = list("abcdefghijklmnop"[:count])
    panel = training_figures.Panel("norms", "norm", "norm/", [f"norm/{name}" for name in names], "log")
    _, *lines = panel.legend().split("<br>")
    found = [re.sub(r"<[^>]*>", "", line).split(" · ") for line in lines]
    assert [name for line in found for name in line] == names
    full, rest = divmod(count, 5)
    assert [len(line) for line in found] == [5] * full + [rest] * bool(rest)


def test_panels_have_room_for_the_names_of_their_lines() -> None:
    keys = [f"grad_norm/part{i}" for i in range(11)]
    log = [{"step": step, "attention_logit_max/block0": 1.0, **dict.fromkeys(keys, 2.0)} for step in (1, 2)]
    figure: Any = training_figures.diagnostics([*log, {"step": 3, "update_ratio/a": 0.1}])
    row = 280 + 16 * 3  # eleven names are three lines
    layout = figure.layout
    assert (layout.height, layout.margin.t, layout.showlegend, layout.hovermode) == (2 * row, 32 + 48, False, "closest")
    assert [(axis.title.text, axis.title.standoff) for axis in figure.select_xaxes()][:3] == [("step", 2)] * 3
    kinds = [(axis.title.text, axis.type, axis.tickformat, axis.nticks) for axis in figure.select_yaxes()][:3]
    assert kinds == [("logit", "linear", None, None), ("norm", "log", "~g", 5), ("ratio", "log", "~g", 5)]
    assert [each.font.size for each in layout.annotations] == [12] * 3
    assert layout.xaxis.domain[1] == pytest.approx(0.44)
    assert layout.yaxis.domain[0] - layout.yaxis3.domain[1] == pytest.approx((80 + 48) / (2 * row))
    assert training_figures.diagnostics([{"step": 1, "loss": 2.0}]) is None


def test_the_theme_of_a_figure() -> None:
    layout = theme.blank(height=123).layout
    assert (layout.height, layout.margin.to_plotly_json(), layout.bargap) == (
        123, {"l": 62, "r": 20, "t": 28, "b": 52}, 0.35
    )  # fmt: skip
    assert (layout.font.size, layout.colorway) == (12, theme.PALETTE)
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"}
    assert layout.legend.to_plotly_json() == legend
    assert layout.template.layout.to_plotly_json() == {}, "no theme of plotly below it"


def test_curves_are_smoothed_by_nine_tenths_unless_the_parameters_say_otherwise() -> None:
    nothing: dict[str, Any] = {"inversion": {}, "sts": {}, "likelihood": {}, "latents": {}}
    log = [{"step": step, "loss": float(step % 7)} for step in range(30)]
    expected = training_figures.smoothed([line["loss"] for line in log], 0.9)
    for figure in (training_figures.training(log), figures.all_figures(**nothing, log=log)["plot_training"]):
        assert list(figure.data[1].y) == pytest.approx(expected)  # type: ignore[union-attr]


def test_an_axis_of_points_that_are_all_equal_has_room_around_them() -> None:
    same = {"bleu": {"value": 0.5, "low": 0.5, "high": 0.5}}
    apart = {"bleu": {"value": 0.5, "low": 0.25, "high": 1.25}}
    assert inversion_figures._reach([same], "bleu") == pytest.approx([0.5 - 0.00012, 0.5 + 0.00012])
    assert inversion_figures._reach([same, apart], "bleu") == pytest.approx([0.13, 1.37])


def test_the_lines_of_a_quantity_and_of_a_noise_level_are_named_without_their_common_beginning() -> None:
    line = {"importance_mean": 0.5, "importance_std": 0.1, "text_nll_t0": 2.0, "text_nll_t1": 1.0, "text_nll_t2": 0.5}
    log = [{"step": step, **line} for step in (1, 2)]
    for drawn, title, axis, names in (
        (training_figures.training(log), "importance", "importance", ["mean", "std"]),
        (
            training_figures.diagnostics(log),
            "text nll by noise level (t0: least noise)",
            "text nll",
            ["t0", "t1", "t2"],
        ),
    ):
        figure: Any = drawn
        (heading,) = figure.layout.annotations
        assert re.sub(r"<span[^>]*>|</span>", "", heading.text) == f"{title}<br>{' · '.join(names)}"
        assert (figure.layout.yaxis.title.text, figure.layout.yaxis.type) == (axis, "linear")
        assert re.findall(r"color:(#\w+)", heading.text) == [trace.line.color for trace in figure.data]
