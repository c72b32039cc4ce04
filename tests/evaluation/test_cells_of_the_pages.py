"""Every cell of the comparison page and of the lists below the figures of the report, read from the rendered pages."""

from __future__ import annotations

import html
import re
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.evaluation.report import comparison_page, page
from mm_ldlm.evaluation.report.inputs import ReportInputs


def plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def body_of(rendered: str) -> str:
    return re.sub(r"<(style|script)\b.*?</\1>", "", rendered, flags=re.DOTALL)


def rows_of(rendered: str) -> list[list[str]]:
    return [
        [plain(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL)]
        for row in re.findall(r"<tr\b[^>]*>(.*?)</tr>", rendered, flags=re.DOTALL)
    ]


# -- the comparison ----------------------------------------------------------------------------------------------------


def difference(a: float) -> dict[str, Any]:
    return {"a": a, "b": a + 0.25, "p": None, "verdict": "too few", "clear": False,
            "difference": {"value": a + 0.5, "low": a + 0.125, "high": a + 0.75}}  # fmt: skip


RESULTS: dict[str, Any] = {
    "budget": "12,000 tokens seen", "baseline": "<ar>", "seeds": [3, 5],
    "runs": ["<ar>, seed 3", "b, seed 3", "b, seed 5"],
    "table": [{"metric": "perplexity", "label": "Perplexity", "values": [
        {"value": 1.5, "low": 1.25, "high": 1.75, "note": "exact"},
        {"value": 2.5, "low": None, "high": None, "note": ""},
        {"value": None, "low": None, "high": None, "note": ""}]}],
    "rows": [
        {"member": "<ar>", "seed": "3", "environment": "ar+x", "status": "finished", "report": "a/r.html",
         "parameters": 1234567.0, "steps": 321, "tokens": 76543, "training_seconds": 61.0, "tokens_per_second": 4321.5,
         "nats_per_token": 1.5, "nats_per_token_low": 1.25, "nats_per_token_high": 1.75, "likelihood": "exact"},
        {"member": "b", "seed": "3", "environment": "b", "status": "finished", "nats_per_token": 2.0,
         "difference": 0.5},
        {"member": "c", "seed": "5", "environment": "<c>", "status": "failed"},
    ],
    "failed": [{"member": "c", "seed": 5, "reason": "Error: <why>\n(exit code 1)", "log": "c/log.txt"}],
    "paired": {
        "b": {"seeds": [3, 5], "differences": {
            "inversion": {"sentences": 1234, "fewest_sentences": 30, "differences": {"exact_match": difference(1.0)}},
            "likelihood": {"sentences": 29, "fewest_sentences": 30, "note": "<a note>",
                           "differences": {"nats_per_token": {**difference(2.0), "p": 0.0625,
                                                              "verdict": "significant"}}},
        }},
        "c": {"left_out": "no <seed>"},
    },
}  # fmt: skip


def test_every_cell_of_the_comparison_page() -> None:
    rendered = body_of(comparison_page.render(RESULTS, {}, title="T<i>", made_at="<now>"))
    assert rows_of(rendered) == [
        ["model", "seed", "environment", "parameters", "steps", "tokens seen", "training", "tokens/s", "nats per token",
         "likelihood", "− <ar>"],
        ["<ar>", "3", "ar+x", "1,234,567", "321", "76,543", "61 s", "4,322", "1.500 [1.250, 1.750]", "exact", ""],
        ["b", "3", "b", "–", "–", "–", "–", "–", "2.000", "–", "0.500"],
        ["c", "5", "<c>", "failed"],
        ["run", "last lines of its log", "log"],
        ["c, seed 5", "Error: <why> (exit code 1)", "c/log.txt"],
        ["", "<ar>, seed 3", "b, seed 3", "b, seed 5"],
        ["Perplexity", "1.500 [1.250, 1.750] exact", "2.500", "–"],
        ["inversion, paired on 1,234 sentences", "b", "<ar>", "difference", "p", ""],
        ["exact match", "1.2500", "1.0000", "1.5000 [1.1250, 1.7500]", "", "too few"],
        ["likelihood, paired on 29 sentences", "b", "<ar>", "difference", "p", ""],
        ["nats per token", "2.2500", "2.0000", "2.5000 [2.1250, 2.7500]", "0.062", "significant"],
    ]  # fmt: skip
    text = plain(rendered)
    for words in (
        "T<i> – comparison", "Comparison of 3 models",
        "Budget: 12,000 tokens seen. 3 of 4 runs are finished, with 1 seed for each model. The baseline is <ar>.",
        "Differences to <ar>", "b − <ar>", "Paired over the seeds 3, 5.",
        "Left out: no <seed>.", "<a note>", "Fewer than 30 shared sentences are too few for a statement.",
        "Written <now>.",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("Fewer than 30") == 1, "of the inversion alone"
    assert '<th><a href="a/r.html">&lt;ar&gt;</a></th>' in rendered
    assert rendered.count('<tr class="reference">') == 1
    assert re.findall(r'href="#(\w+)"', rendered) == ["runs", "failed", "scores", "differences"]


def test_a_comparison_without_failures_scores_and_differences_has_no_such_sections() -> None:
    bare = RESULTS | {"failed": [], "table": [], "paired": {}}
    rendered = body_of(comparison_page.render(bare, {}, title="T"))
    assert re.findall(r'href="#(\w+)"', rendered) == re.findall(r'section id="(\w+)"', rendered) == ["runs"]
    assert "Written" not in rendered


# -- the report --------------------------------------------------------------------------------------------------------

TEXTS = [f"text <{i}>" for i in range(50)]


def report(**given: Any) -> ReportInputs:
    names = ("run", "run_config", "metrics", "inversion", "sts", "likelihood", "latents", "generation")
    empty: dict[str, Any] = {name: {} for name in names}
    tables = {"inversion_rows": pd.DataFrame(), "unconditional": pd.DataFrame({"text": TEXTS})}
    return ReportInputs(**{"title": "T", **empty, **tables, **given})


def test_the_lists_of_the_report_have_every_entry() -> None:
    given = report(
        run={"name": "run <a>"}, metrics={"some.number": 0.5, "other": 2.0}, parameters={"seed": 3, "a": {"b": "<c>"}},
        run_config={"fingerprints": {"tokens": "f1", "model": "f2"}, "versions": {"torch": "9.9"}},
        events=[{"event": "skip", "step": 3, "reason": "<why>", "parts": ["x", "y"]}, {"event": "preview", "step": 4}],
        validation_report={"findings": [
            {"severity": "info", "name": "n", "found": "some", "count": 0},
            {"severity": "ERROR", "check": "norms", "count": 7, "message": "<far>", "remedy": "look"},
            {"contract": "c", "description": "described"},
        ]},
    )  # fmt: skip
    rendered = body_of(page.render(given, {}))
    rows = rows_of(rendered)
    for row in (
        ["3", "skip", "reason: <why> x y"], ["ERROR", "norms", "7", "<far>", "look"], ["info", "n", "0", "some", ""],
        ["", "c", "", "described", ""], ["tokens", "f1"], ["model", "f2"], ["torch (training)", "9.9"], ["seed", "3"],
        ["a.b", "<c>"], ["some.number", "0.5"], ["other", "2.0"],
    ):  # fmt: skip
        assert rows.count(row) == 1, row
    severities = re.findall(r'class="pill (\w*)"', rendered)
    assert severities == ["error", "info", "info"]
    assert re.findall(r"<summary>(.*?)</summary>", rendered) == [
        "More unconditional samples", "2 events", "Fingerprints", "Versions", "2 parameters",
        "2 numbers of metrics.json",
    ]  # fmt: skip
    shown = re.findall(r"<li>(.*?)</li>", rendered)
    assert [html.unescape(text) for text in shown] == TEXTS[:40]
    first, more = re.findall(r'<ul class="quotes">(.*?)</ul>', rendered, flags=re.DOTALL)
    assert (first.count("<li>"), more.count("<li>")) == (6, 34)
    assert "<h1>run &lt;a&gt;</h1>" in rendered


@pytest.mark.parametrize(("run", "config", "name"), [
    ({"name": "a"}, {"name": "b"}, "a"), ({}, {"name": "b"}, "b"), ({}, {}, "A run")
])  # fmt: skip
def test_a_report_is_headed_by_the_name_of_its_run(run: Any, config: Any, name: str) -> None:
    rendered = page.render(report(run=run, run_config=config), {})
    assert re.findall(r"<h1>(.*?)</h1>", rendered) == [name]
    assert re.findall(r"<title>(.*?)</title>", rendered) == ["T – report"]


@pytest.mark.parametrize(("report_of_validation", "words"), [
    ({}, "There is no validation report."), ({"findings": []}, "Validation found nothing to report.")
])  # fmt: skip
def test_a_validation_without_findings_is_not_a_missing_one(report_of_validation: Any, words: str) -> None:
    text = plain(body_of(page.render(report(validation_report=report_of_validation), {})))
    both = {"There is no validation report.", "Validation found nothing to report."}
    assert {each for each in both if each in text} == {words}


def test_a_bar_reaches_from_its_low_end_to_its_high_end_within_its_frame() -> None:
    metrics = {"l2t.exact_match": 0.5, "l2t.exact_match.low": 0.25, "l2t.exact_match.high": 0.75, "l2t.cosine": -0.5,
               "l2t.cosine.low": -0.75, "l2t.cosine.high": 0.25, "t2l.cosine": 0.5}  # fmt: skip
    rendered = page.render(report(metrics=metrics), {})
    fills = re.findall(r'class="fill" style="width: ([\d.]+)%"', rendered)
    ranges = re.findall(r'class="range" style="left: ([\d.]+)%; width: ([\d.]+)%"', rendered)
    assert [float(width) for width in fills] == [50.0, 0.0], "a number without an interval has no bar"
    assert [(float(left), float(width)) for left, width in ranges] == [(25.0, 50.0), (0.0, 100.0)]
