"""Figures show the numbers of their inputs: every bar, point and interval."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.evaluation.report import figures, theme

COUNT = itertools.count(1)


def interval(value: float | None = None) -> dict[str, float]:
    value = next(COUNT) / 100 if value is None else value
    return {"value": value, "low": value - 0.03, "high": value + 0.05, "level": 0.95}


def shown(trace: Any, axis: str = "y") -> list[dict[str, float]]:
    """The intervals of a trace."""
    bars = trace[f"error_{axis}"]
    ends = zip(trace[axis], bars["arrayminus"], bars["array"], strict=True)
    return [{"value": value, "low": value - low, "high": value + high} for value, low, high in ends]


def same(found: list[dict[str, float]], expected: list[Mapping[str, float]], factor: float = 1) -> None:
    for one, two in zip(found, expected, strict=True):
        assert one == pytest.approx({end: two[end] * factor for end in ("value", "low", "high")})


def line(label: str, calls: float, *, searches: bool = False) -> dict[str, Any]:
    return {"label": label, "model_calls": calls, "encoder_calls": float(searches), "sentences_per_second": next(COUNT),
            "reference": "two", "exact_match": interval()}  # fmt: skip


def test_quality_against_calls_shows_the_intervals_and_the_reference() -> None:
    lines = [line("two", 3), line("one", 2), line("search", 4, searches=True)]
    figure = figures.calls(lines)
    assert [trace.name for trace in figure.data] == ["model", "search with the encoder"]
    assert list(figure.data[0].text) == ["one", "two"]
    same(shown(figure.data[0]), [lines[1]["exact_match"], lines[0]["exact_match"]])
    assert figure.layout.shapes[0].y0 == 0.99 * lines[0]["exact_match"]["value"]
    assert figures.calls([]) is None


def test_lengths_and_baselines_show_their_intervals() -> None:
    lines = [{"tokens": f"{i}–{i + 1}", "rows": i, "exact_match": interval(), "token_accuracy": next(COUNT)} for i in (1, 3)]  # fmt: skip
    bar, curve = figures.by_length(lines).data
    same(shown(bar), [each["exact_match"] for each in lines])
    assert list(curve.y) == [each["token_accuracy"] for each in lines]
    assert "n = 3" in bar.x[1]
    systems = {name: {"exact_match": interval(), "bleu": interval(40)} for name in ("model", "bag_of_words")}
    for trace, metrics in zip(figures.baselines(systems).data, systems.values(), strict=True):
        same(shown(trace)[:1], [metrics["exact_match"]])
        same(shown(trace)[1:], [metrics["bleu"]], factor=0.01)


def test_costs_by_noise_level_leave_out_empty_buckets() -> None:
    buckets = [{"low": 0, "high": 0.5, "cross_entropy": 1.5, "accuracy": 0.5, "masked_tokens": 7},
               {"low": 0.5, "high": 1, "cross_entropy": None, "accuracy": None, "masked_tokens": 0}]  # fmt: skip
    figure = figures.noise_level({"given_latent": {"by_mask_ratio": buckets}, "unconditional": {"by_mask_ratio": None}})
    assert (list(figure.data[0].x), list(figure.data[0].y)) == ([0.25], [1.5])
    assert figures.noise_level({"unconditional": {"by_mask_ratio": None}}) is None


def test_a_comparison_has_a_bar_for_each_number_of_each_run() -> None:
    def row(key: str, form: str, *values: Any) -> dict[str, Any]:
        return {"metric": key, "label": key, "form": form, "values": [v or dict.fromkeys(("value", "low", "high")) for v in values]}  # fmt: skip

    marked = [{**interval(), "note": note} for note in ("exact", "NELBO", "", "")]
    table = [row("nats", "cost", marked[0], marked[1]), row("ratio", "fraction", None, marked[2]), row("x", "plain", marked[3], None)]  # fmt: skip
    for cell in (cell for each in table for cell in each["values"]):
        cell.setdefault("note", "")
    figure = figures.comparison({"runs": ["a", "b"], "table": table})
    cost_a, cost_b, _, ratio_b = figure.data
    same([*shown(cost_a), *shown(cost_b), *shown(ratio_b)], marked[:3])
    assert (cost_a.text, cost_b.text) == (("exact",), ("NELBO",))
    assert cost_a.marker.color != cost_b.marker.color == ratio_b.marker.color
    assert figures.comparison({"runs": [], "table": [table[2]]}) is None


def test_intervals_without_ends_have_no_bar() -> None:
    bars = theme.bars([{"value": 1.0, "low": None, "high": None}, interval(2)], "red")
    assert bars["array"] == pytest.approx([0, 0.05])
    assert bars["arrayminus"] == pytest.approx([0, 0.03])


@given(st.lists(st.integers(0, 9), min_size=1))
def test_the_lengths_of_the_texts_count_every_text(lengths: list[int]) -> None:
    assert sum(figures.lengths(np.array(lengths)).data[0].y) == len(lengths)


# -- the training log --------------------------------------------------------------------------------------------------


def log(steps: int = 30, **more: Any) -> list[dict[str, Any]]:
    keys = {"loss": 2.0, "text_loss": 1.0, "lr": 0.1, "text_nll_t0": 1.0, "text_nll_t1": 2.0, "text_nll_t10": 3.0,
            "grad_norm/head": 1.0, "attention_logit_max/block2": 1.0, "attention_logit_max/block10": 1.0,
            "scale_mean": 1.0, "scale_std": 2.0, **more}  # fmt: skip
    return [{"step": step, **keys} for step in range(1, steps + 1)]


def test_the_log_is_drawn_in_panels_by_kind_of_key() -> None:
    figure, found = figures.training(log()), figures.diagnostics(log())
    titles = [note.text.split("<br>")[0] for note in figure.layout.annotations]
    assert titles == ["loss", "parts of the loss", "learning rate", "scale"]
    assert [trace.name for trace in found.data] == ["text_nll_t0", "text_nll_t1", "text_nll_t10", "grad_norm/head", "attention_logit_max/block2", "attention_logit_max/block10"]  # fmt: skip
    assert len({trace.line.color for trace in found.data[:3]}) == 3
    assert "block10" in found.layout.annotations[2].text
    assert figures.training([]) is figures.diagnostics([]) is None


def test_thin_lines_are_the_log_and_thick_lines_are_smoothed() -> None:
    lines = [{"step": i, "loss": float(i % 2), "lr": 0.1} for i in range(40)]
    figure = figures.training(lines)
    thin, thick, rate = figure.data
    assert list(thin.y) == [line["loss"] for line in lines]
    assert np.ptp(thick.y[20:]) < 0.2
    assert (thick.line.width > thin.line.width, rate.name) == (True, "lr")


def test_the_average_has_adams_bias_correction() -> None:
    values, state, expected = [3.0, 1.0, 4.0, 1.0, 5.0], 0.0, []
    for count, value in enumerate(values, start=1):
        state = 0.8 * state + 0.2 * value
        expected.append(state / (1 - 0.8**count))
    assert figures.smoothed(values, 0.8) == pytest.approx(expected)


@pytest.mark.parametrize("bad", ["nan", "inf", -1.0])
def test_numbers_without_a_place_on_the_axis_are_left_out(bad: Any) -> None:
    lines = [{"step": 1, "text_loss": bad}, {"step": 2, "text_loss": 2.0}]
    figure = figures.training(lines)
    assert list(figure.data[0].y) == [2.0]
