"""What the page of a comparison receives: members in their order, counts of seeds and sessions, rows as text."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from mm_ldlm.evaluation.report import comparison_page, theme


def row(member: str, seed: str, **more: Any) -> dict[str, Any]:
    return {"member": member, "seed": seed, "environment": f"e-{member}", "status": "finished", **more}


ROWS = [
    row("b", "0", nats_per_token=1.25, difference=0.5),
    row("b", "4"),
    row("b", "all", nats_per_token=1.5, nats_per_token_low=1.25, nats_per_token_high=1.75),
    row("a", "0", status="failed"),
    row("c", "1", training_seconds=0.0, parameters=0, steps=0, tokens=0, tokens_per_second=0.0),
]
RESULTS: dict[str, Any] = {"rows": ROWS, "runs": ["b, seed 0", "b, seed 4", "c, seed 1"], "failed": [{}],
                           "baseline": "b"}  # fmt: skip


def given(monkeypatch: pytest.MonkeyPatch, results: dict[str, Any], figures: Any, **options: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(comparison_page.page, "rendered", lambda template, **values: seen.update(values, at=template))
    comparison_page.render(results, figures, **options)
    return seen


def test_the_page_receives_members_in_order_and_the_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {"one": go.Figure(go.Bar(x=[1], y=[2])), "none": theme.empty()}
    seen = given(monkeypatch, RESULTS, drawn, title="T", made_at="now")
    assert (seen["at"], seen["title"], seen["made_at"], seen["c"]) == ("comparison.html.j2", "T", "now", RESULTS)
    assert (seen["members"], seen["sessions"], seen["seeds"]) == (["b", "a", "c"], 4, "1 to 2 seeds")
    assert list(seen["plots"]) == ["one"]
    assert seen["plots"]["one"] == comparison_page.page.embedded_json(drawn["one"])
    assert seen["rows"] == [comparison_page._shown(each, "b") for each in ROWS]
    assert [(each["reference"], each["failed"]) for each in seen["rows"]] == [
        (True, False), (True, False), (True, False), (False, True), (False, False)
    ]  # fmt: skip
    assert given(monkeypatch, RESULTS, {}, title="T")["made_at"] == ""


@pytest.mark.parametrize(
    ("seeds", "words"),
    [({"a": 1}, "1 seed"), ({"a": 1, "b": 1}, "1 seed"), ({"a": 2, "b": 2}, "2 seeds"), ({"a": 3, "b": 1, "c": 2},
     "1 to 3 seeds"), ({}, "0 seed")],
)  # fmt: skip
def test_the_number_of_seeds_in_words(seeds: dict[str, int], words: str) -> None:
    rows = [row(member, str(n)) for member, count in seeds.items() for n in range(count)]
    assert comparison_page._seeds([*rows, *(row(member, "all") for member in seeds)]) == words


def test_a_number_of_zero_is_shown_and_a_missing_one_is_a_dash() -> None:
    shown = [comparison_page._shown(each, "b") for each in ROWS]
    names = ("parameters", "steps", "tokens", "seconds", "rate", "cost", "likelihood", "difference", "report")
    assert [shown[4][name] for name in names] == ["0", "0", "0", "0 s", "0", "–", "–", "", None]
    assert [shown[1][name] for name in names] == ["–", "–", "–", "–", "–", "–", "–", "", None]
    assert [each["cost"] for each in shown[:3]] == ["1.250", "–", "1.500 [1.250, 1.750]"]
    assert [each["difference"] for each in shown[:2]] == ["0.500", ""]


def test_figures_of_a_comparison_without_scores_are_empty_and_named() -> None:
    found = comparison_page.figures({"table": [], "curves": [], "paired": {}, "runs": []}, smoothing=0.5)
    assert list(found) == ["scores", "curves", "differences"]
    assert [figure.data for figure in found.values()] == [()] * 3


@pytest.mark.parametrize("smoothing", [0.25, 0.75])
def test_the_smoothing_of_the_parameters_reaches_the_curves(smoothing: float) -> None:
    values = [float((5 * i) % 7) for i in range(30)]
    runs = [{"run": "a, 0", "member": "a", "curves": {"loss": list(enumerate(values))}}]
    found = comparison_page.figures({"table": [], "curves": runs, "paired": {}, "runs": []}, smoothing=smoothing)
    (trace,) = found["curves"].data
    assert list(trace.y) == pytest.approx(comparison_page.smoothed(values, smoothing))
