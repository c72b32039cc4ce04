"""The page of a finished run against a golden one, and each number that the page computes."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.data.validation.checks import plots
from mm_ldlm.evaluation.config import ReportingConfig
from mm_ldlm.evaluation.report import page
from mm_ldlm.evaluation.report.inputs import ReportInputs, RunRecord, examples, record_of, trained, word_difference
from mm_ldlm.evaluation.report.theme import chart
from mm_ldlm.evaluation.suites import SUITES, suites

GOLDEN = Path(__file__).parents[2] / "golden" / "report.txt"


def outline(text: str) -> str:
    """The structure and the words of a page: numbers masked, without what the data say."""
    for part in ("script", "style", "tbody", "ul", "details"):
        text = re.sub(rf"(<{part}[^>]*>).*?(</{part}>)", r"\1\2", text, flags=re.S)
    text = re.sub(r"<(/?)(\w+)[^>]*?( id=\"\w+\")?[^>]*>", r"<\1\2\3>", text)
    text = re.sub(r"run-\w+|[0-9a-f]{32}|/\S+/runs/\S+|written [^<]*", "NAME", html.unescape(text))
    text = re.sub(r"\d+ (h|min|s)\b( \d+ (min|s)\b)?", "TIME", text)
    text = re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", text)
    lines = "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"
    return re.sub(r"(<script></script>\n)+", r"\1", lines)  # one for each figure


def test_the_page_has_the_golden_structure_and_words(finished: Path, request: pytest.FixtureRequest) -> None:
    """Without the sections and cards of suites outside the core, and without figures of registered checks."""
    folder = finished / "data/test/08_reporting"
    found, numbers = (
        outline((folder / "report.html").read_text("utf-8")),
        json.loads((folder / "metrics.json").read_text()),
    )
    for name in suites().keys() - SUITES.core.keys():
        found = re.sub(rf'<section id="{name}">.*?</section>\n', "", found, flags=re.S)
        found = found.replace(f"<a>{suites()[name].title}</a>\n", "")
        for headline in suites()[name].headlines(numbers):
            card = rf"<article>\n<h#>{re.escape(headline.label)}</h#>\n.*?</article>\n"
            found = re.sub(card, "", found, flags=re.S)
    for caption in list(plots().values())[1:]:
        found = found.replace(f"<figure><div></div><figcaption>{caption}</figcaption></figure>\n", "")
    if request.config.getoption("--regenerate"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


def test_the_page_needs_no_other_file(finished: Path) -> None:
    text = (finished / "data/test/08_reporting/report.html").read_text(encoding="utf-8")
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*\"", body)
    shown = set(re.findall(r'data-plot="(\w+)"', text))
    assert shown == set(re.findall(r'<script type="application/json" id="(\w+)"', text))


# -- numbers -----------------------------------------------------------------------------------------------------------

METRICS = {
    "l2t.bleu": 41.26, "l2t.bleu.low": 39.0, "l2t.bleu.high": 43.0, "l2t.exact_match": 0.5, "nll.exact": 1.0,
    "nll.per_token": 2.0, "nll.given_latent.per_token": 1.5, "nll.per_token.low": 1.9, "nll.per_token.high": 2.1, "perplexity": 7.389,
    "unconditional.entropy_sample": 2.0, "real.entropy_sample": 3.0,
}  # fmt: skip


def test_a_card_shows_the_number_its_interval_and_what_to_compare_it_with() -> None:
    cards = {card["label"]: card for card in page.cards(METRICS)}
    bleu = cards["BLEU"]
    assert (bleu["value"], bleu["interval"]) == ("41.3", "39.0 – 43.0")
    assert bleu["bar"] == {"value": 41.26, "low": 39.0, "high": 43.0}  # percent of its width
    assert (cards["Exact match"]["interval"], cards["Exact match"]["bar"]) == ("", None)
    cost = cards["Nats per token"]
    assert all(words in cost["note"] for words in ("exact", "7.39", "given the latent 1.500"))
    assert cost["bar"] is None
    assert "3.00" in next(card["note"] for label, card in cards.items() if "entropy" in label)


@pytest.mark.parametrize("value", [-0.3, 0.4, 1.7])
def test_a_bar_stays_inside_its_frame(value: float) -> None:
    key = "l2t.cosine"
    (card,) = page.cards({key: value, f"{key}.low": value - 0.2, f"{key}.high": value + 0.2})
    assert all(0 <= end <= 100 for end in card["bar"].values())


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (0.1234, "fraction", "12.3 %"),
        ({"value": 0.5, "low": 0.25, "high": 0.75}, "cosine", "0.500 [0.250, 0.750]"),
        ({"value": 12.0, "low": 12.0, "high": 12.0}, "points", "12.0"),
        ({"value": 3.0, "low": None, "high": None}, "plain", "3.00"),
        ({"value": None, "low": None, "high": None}, "plain", "–"),
        (1234567.0, "count", "1,234,567"),
        (None, "cost", "–"),
    ],
)
def test_numbers_are_spelled_in_their_form(value: Any, form: str, expected: str) -> None:
    assert page.spelled(value, form) == expected


words = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=8)


@given(words, words)
def test_the_differences_of_two_texts_rebuild_both(one: list[str], two: list[str]) -> None:
    pieces = list(word_difference(" ".join(one), " ".join(two)))
    assert " ".join(text for kind, text in pieces if kind != "made").split() == one
    assert " ".join(text for kind, text in pieces if kind != "lost").split() == two


def test_examples_are_random_worst_and_nearest() -> None:
    rows = pd.DataFrame(
        {
            "reference": [f"a {i}" for i in range(20)], "hypothesis": [f"b {i}" for i in range(20)],
            "exact": [i < 5 for i in range(20)], "matches": [i - i % 2 for i in range(20)], "positions": 20, "cosine": np.linspace(1, 0, 20),
        }
    )  # fmt: skip
    found = examples(rows, count=3, seed=0)
    assert [each["reference"] for each in found["worst"]] == [
        "a 5",
        "a 7",
        "a 6",
    ]  # the fewest matches, then the lowest cosine
    assert [each["cosine"] for each in found["near"]] == sorted(rows["cosine"][5:], reverse=True)[:3]
    assert [each["accuracy"] for each in found["worst"]] == [0.2, 0.3, 0.3]
    assert len(found["any"]) == 3
    assert found["any"] != examples(rows, count=3, seed=1)["any"]
    assert set(examples(rows[rows["exact"]].drop(columns="cosine"), count=3, seed=0)) == {"any"}


def test_the_validation_loss_is_the_last_and_the_lowest() -> None:
    log = [{"step": step, "validation/loss": loss} for step, loss in ((5, 2.0), (10, 1.0), (15, "nan"), (20, 3.0))]
    assert page.validation_losses([*log, {"step": 25}]) == {"last": 3.0, "last_step": 20, "best": 1.0, "best_step": 10}
    assert page.validation_losses([{"step": 5, "validation/loss": "nan"}]) is None


def test_parameters_are_those_of_the_last_session() -> None:
    events = [{"event": "trains", "parameters": 5, "objective_parameters": 1}, {"event": "start"}]
    assert trained(events) == {"parameters": 5, "objective_parameters": 1}
    assert trained([*events, {"event": "trains", "parameters": 7}])["parameters"] == 7
    assert trained([]) == {"parameters": 0, "objective_parameters": 0}


def test_events_are_lines_without_previews() -> None:
    events = [
        *[{"event": "preview", "step": 1, "text": "x"}] * page.MOST_EVENTS,
        {"event": "end", "step": 2, "time": 1, "checks": ["a", "b"]},
    ]
    (line,) = page.event_lines(events)
    assert line == {"step": 2, "event": "end", "told": [("checks[0]", "a"), ("checks[1]", "b")]}
    assert page.flatten({"a": {"b": None}, "c": []}) == [("a.b", "null"), ("c", "[]")]


def test_the_page_counts_parameters_spikes_and_events() -> None:
    trains = {"event": "trains", "step": 0, "parameters": 2_500_000, "objective_parameters": 100_000}
    shown = [{"event": "preview", "step": 1, "text": "x"}, *({"event": "spike", "step": step} for step in (2, 3))]
    parameters = {
        "seed": 7,
        "ingestion": {"sources": []},
        "evaluation": {"bootstrap": {"level": 0.9, "replicates": 50}},
    }
    names = ("run", "metrics", "suites", "rows", "ingestion_report", "validation_report", "timings", "comparison")
    empty: dict[str, Any] = {name: {} for name in names}
    record = RunRecord({}, [], [trains, *shown])
    inputs = ReportInputs(**empty, record=record, parameters=parameters, reporting=ReportingConfig())
    text = page.render(inputs, {})
    assert "with 2.4 M parameters" in text
    assert "(0.1 M further parameters)" in text
    assert "Steps that were spikes: 2." in text
    assert "<summary>3 events</summary>" in text
    assert "Intervals are 90 % percentile bootstrap intervals over sentences or pairs (50 resamples" in text
    assert "Seed 7" in text


def test_the_time_of_a_training_covers_all_its_sessions(tmp_path: Path) -> None:
    assert record_of(tmp_path).timings({"training": 1.0, "embedding": 2.0}) == {"embedding": 2.0}
    (tmp_path / "training_log.jsonl").write_text('{"step": 1, "seconds": 4.5}\n{"step": 2, "seconds": 9.5}\n')
    assert record_of(tmp_path).timings({"training": 1.0, "embedding": 2.0}) == {"training": 9.5, "embedding": 2.0}


# -- safety ------------------------------------------------------------------------------------------------------------

COMPARISON: dict[str, Any] = {
    "rows": [],
    "runs": [],
    "failed": [],
    "seeds": [],
    "baseline": "x",
    "budget": "x",
    "table": [],
    "paired": {},
}
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u2028", "&lt;", "{{ 7 * 7 }}"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_figures_cannot_leave_its_element(text: str) -> None:
    figure = chart([{"type": "bar", "name": text, "x": [text], "y": [1]}], x={"title": text}, y={})
    values: dict[str, Any] = {"title": "x", "kind": "comparison", "c": COMPARISON}
    shown = page.rendered("mm_ldlm.evaluation.report/templates/page.html.j2", figures={"plot_x": figure}, **values)
    (embedded,) = re.findall(r'<script type="application/json" id="plot_x">(.*?)</script>', shown, flags=re.S)
    assert not set("<>\u2028\u2029") & set(embedded)
    assert go.Figure(json.loads(embedded)).data[0].name == text
