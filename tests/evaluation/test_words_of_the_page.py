"""The words of the page: the sentence about the model, names of sources and samplers, tables of numbers as text."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.evaluation.report import content
from mm_ldlm.evaluation.report.inputs import ReportInputs
from mm_ldlm.training.checkpoints.provenance import MADE_BY


def inputs(**given: Any) -> ReportInputs:
    empty: dict[str, Any] = {
        key: {} for key in ("run", "run_config", "metrics", "inversion", "sts", "likelihood", "latents", "generation")
    }
    return ReportInputs(**{
        "title": "t", **empty, "inversion_rows": pd.DataFrame(), "unconditional": pd.DataFrame(), **given,
    })  # fmt: skip


CONFIG = {
    "model": {"kind": "mmdit", "depth": 4, "heads": 8, "dim": 256, "dropout": 0.1},
    "objective": {"kind": "mdlm", "process": {"kind": "masked"}},
    "encoder": {"name": "sonar", "path": "/models/sonar"},
}
EVENTS = [
    {"event": "trains", "parameters": 1, "objective_parameters": 9_000_000},
    {"event": "trains", "parameters": 12_340_000, "objective_parameters": 300_000},
    {"event": "skip", "parameters": 7},
]
WHOLE: dict[str, Any] = {
    "run_config": CONFIG,
    "events": EVENTS,
    "ingestion_report": {"splits": {"train": 12_345, "test": 3}},
    "parameters": {"ingestion": {"sources": [{"name": "wiki", "kind": "text"}, {"path": "a.txt", "kind": "text"}]}},
    "run": {"step": 4_000},
    "log": [{"step": 10}, {"step": 3_000}],
    "timings": {"training": 421.0, "evaluation": 5.0},
}


def test_the_sentence_about_the_model_contains_every_part_in_order() -> None:
    assert content.lede(inputs(**WHOLE)) == (
        "A model of kind “mmdit” with 12.0 M parameters (depth 4, dim 256, heads 8) was trained with the objective "
        "“mdlm” and the process “masked” (0.3 M further parameters) on 12,345 examples of wiki, a.txt and their "
        "latents by the encoder sonar for 4,000 steps in 7 min 01 s."
    )


@pytest.mark.parametrize(("changed", "words"), [
    ({"run_config": {**CONFIG, "encoder": {"path": "/models/sonar"}}}, "by the encoder /models/sonar for"),
    ({"run_config": {**CONFIG, "encoder": None}}, "wiki, a.txt for 4,000 steps"),
    ({"run_config": {**CONFIG, "model": {"kind": "bert", "heads": 2}}}, "“bert” with 12.0 M parameters (heads 2) was"),
    ({"run_config": {**CONFIG, "model": None}}, "A model with 12.0 M parameters was trained"),
    ({"run_config": {**CONFIG, "objective": {"kind": "ar"}}}, "objective “ar” (0.3 M further parameters) on"),
    ({"run_config": {**CONFIG, "objective": None}}, "was trained on 12,345"),
    ({"run": {}}, "for 3,000 steps in"),
    ({"run": {}, "log": ()}, "encoder sonar in 7 min 01 s."),
    ({"timings": {"evaluation": 5.0}}, "for 4,000 steps."),
    ({"parameters": {}}, "12,345 examples of text and"),
    ({"ingestion_report": {"splits": {"test": 3}}}, "further parameters) and their latents"),
    ({"events": EVENTS[:1]}, "“masked” (9.0 M further parameters)"),
    ({"events": [{"event": "trains", "parameters": 3_040_000, "objective_parameters": 49_999}]},
     "with 3.0 M parameters (depth 4, dim 256, heads 8) was trained with the objective “mdlm” and the process “masked” "
     "on"),
    ({"events": [{"event": "trains", "parameters": 3_240_000, "objective_parameters": 50_000}]}, "(0.1 M further"),
    ({"events": [{"event": "trains", "parameters": 3_040_000}]}, "with 3.0 M parameters"),
    ({"events": ()}, "“mmdit” (depth 4, dim 256, heads 8) was"),
])  # fmt: skip
def test_a_missing_part_is_left_out_of_the_sentence(changed: dict[str, Any], words: str) -> None:
    found = content.lede(inputs(**{**WHOLE, **changed}))
    assert words in found
    assert found.startswith("A model")
    assert found.endswith(".")
    assert "  " not in found


def test_a_run_without_any_artifact_is_a_model_that_was_trained() -> None:
    assert content.lede(inputs()) == "A model was trained."


def test_a_source_is_called_by_its_name_else_its_path_else_its_kind() -> None:
    sources = [{"name": "a", "path": "b", "kind": "c"}, {"path": "b", "kind": "c"}, {"kind": "c"}, "not a mapping"]
    assert content.source_names(inputs(parameters={"ingestion": {"sources": sources}})) == ["a", "b", "c"]
    assert content.source_names(inputs(parameters={"ingestion": None})) == []


def _drawn(parameters: Any) -> ReportInputs:
    frame = pd.DataFrame({"text": ["a"]})
    frame.attrs[MADE_BY] = parameters
    return inputs(unconditional=frame)


def test_the_sampler_of_the_samples_is_described_by_its_given_settings() -> None:
    sampler = {"kind": "remdm_cap", "steps": 8, "top_k": None, "eta": 0.0}
    stored = {"parameters": {"text": {"kind": "other"}, "unconditional": {"text": sampler}}}
    assert content.unconditional_sampler(_drawn(stored)) == "remdm_cap (steps 8, eta 0.0)"
    assert sampler["kind"] == "remdm_cap", "the stored parameters were changed"
    bare = {"parameters": {"unconditional": {"text": {"kind": "ancestral", "top_k": None}}}}
    assert content.unconditional_sampler(_drawn(bare)) == "ancestral"
    assert content.unconditional_sampler(_drawn(None)) is None
    assert content.unconditional_sampler(inputs()) is None


@pytest.mark.parametrize(("value", "kind", "text"), [
    (None, "plain", "–"),
    (2.345, "plain", "2.35"), (2.345, "points", "2.3"), (0.2345, "cosine", "0.234"), (1.5, "nats", "1.500"),
    ({"value": 2.0, "low": 1.25, "high": 3.0}, "plain", "2.00 [1.25, 3.00]"),
    ({"value": 2.0, "low": 2.0, "high": 2.0}, "plain", "2.00"),
    ({"value": 2.0, "low": 2.0, "high": 3.0}, "points", "2.0 [2.0, 3.0]"),
    ({"value": 3.0, "low": 2.0, "high": 3.0}, "points", "3.0 [2.0, 3.0]"),
    ({"value": 2.5, "low": 2.0, "high": 2.0}, "points", "2.5 [2.0, 2.0]"),
])  # fmt: skip
def test_a_number_is_spelled_in_its_unit_with_its_interval(value: Any, kind: str, text: str) -> None:
    assert content.spelled(value, kind) == text


def test_the_table_of_inversion_has_a_row_for_each_metric_and_a_column_for_each_baseline() -> None:
    inversion = {
        "metrics": {"bleu": 30.0, "exact_match": {"value": 0.5, "low": 0.25, "high": 0.75}, "cosine": 0.9, "other": 1},
        "baselines": {"nearest": {"metrics": {"bleu": 10.0}}, "mean": {"metrics": {"exact_match": 0.0, "chrf": 9.0}}},
    }
    exact, bleu, cosine = content.inversion_table(inversion)
    assert (bleu["label"], bleu["model"], bleu["nearest"], bleu["mean"]) == ("BLEU, corpus", "30.0", "10.0", "–")
    assert exact["label"] == "Exact match"
    assert [exact["model"].count("%"), exact["nearest"]] == [3, "–"]
    assert (cosine["model"], list(cosine)) == ("0.900", ["label", "model", "nearest", "mean"])
    assert content.inversion_table({"baselines": {}}) == []


def test_the_findings_are_listed_from_the_worst_to_the_best() -> None:
    severities = ["ok", "info", "WARNING", "unheard of", "pass", "fail", "warn", "critical", "error", None]
    found = content.findings({"findings": [{"severity": s, "n": n} for n, s in enumerate(severities)] + ["text"]})
    assert [item["n"] for item in found] == [5, 7, 8, 2, 6, 1, 3, 9, 0, 4]
    assert content.findings({}) == content.findings({"findings": None}) == []


def test_the_lowest_validation_loss_is_that_of_finite_ones() -> None:
    log = [
        {"step": 10, "validation/loss": 1.5}, {"step": 20, "loss": 0.1}, {"step": 30, "validation/loss": "NaN"},
        {"step": 1_040, "validation/loss": 2.25}, {"step": 2_000, "validation/loss": math.inf},
    ]  # fmt: skip
    assert content.validation_losses(log) == (
        "The validation loss of the averaged weights is 2.250 at step 1,040; its lowest value is 1.500, at step 10."
    )
    assert content.validation_losses(log[2:3]) is None


def test_parameters_are_flattened_to_their_full_keys() -> None:
    nested = {"a": {"b": 1, "c": None}, "d": [{"e": 2}, {"e": 3}], "f": [1, 2], "g": {}}
    assert content.flatten(nested) == [
        ("a.b", "1"), ("a.c", "null"), ("d[0].e", "2"), ("d[1].e", "3"), ("f", "[1, 2]")
    ]  # fmt: skip
    assert content.flatten({"b": 1}, "a") == [("a.b", "1")]
    assert content.flatten(3, "a") == [("a", "3")]


def test_events_are_shown_up_to_a_number_without_the_previews() -> None:
    events = [{"event": "preview", "step": 0}, {"event": "skip", "step": 1, "time": 3.0, "reason": "NaN", "rank": None}]
    assert content.event_lines([*events, {"event": "start", "parts": [{"a": 1}, 2]}]) == [
        ("1", "skip", ["reason: NaN"]), ("", "start", ["{'a': 1}", "2"])
    ]  # fmt: skip
    assert len(content.event_lines([{"event": "skip", "step": n} for n in range(300)])) == 200


def test_words_that_moved_are_lost_at_one_place_and_made_at_another() -> None:
    assert content.word_difference("the old cat", "the cat old") == [
        ("same", "the"), ("made", "cat"), ("same", "old"), ("lost", "cat")
    ]  # fmt: skip
    assert content.word_difference("a b", "c d") == [("lost", "a b"), ("made", "c d")]
    assert content.word_difference("", "") == []


def test_examples_are_the_worst_by_accuracy_then_cosine_and_the_wrong_ones_that_are_nearest() -> None:
    rows = pd.DataFrame({
        "reference": list("abcde"), "hypothesis": list("aBCDE"), "exact": [True, False, False, False, False],
        "matches": [1, 0, 1, 1, 0], "positions": [1, 4, 4, 2, 0], "cosine": [1.0, 0.5, 0.9, 0.7, 0.4],
    })  # fmt: skip
    found = content.examples(rows, count=3, seed=0)
    assert [e.reference for e in found["worst"]] == ["e", "b", "c"]
    assert [e.reference for e in found["near"]] == ["c", "d", "b"]
    assert [e.accuracy for e in found["worst"]] == [0.0, 0.0, 0.25]
    drawn = [e.reference for e in found["any"]]
    assert len(drawn) == 3
    assert drawn == sorted(drawn)
    assert {e.kind for e in found["worst"]} == {"worst"}
    bare = content.examples(rows.drop(columns="cosine"), count=3, seed=0)
    assert list(bare) == ["any", "worst"]
    assert [e.reference for e in bare["worst"]] == ["b", "e", "c"]
    assert {e.cosine for e in bare["worst"]} == {None}
    assert list(content.examples(rows[:1], count=3, seed=0)) == ["any"]
    assert content.examples(rows[:0], count=3, seed=0) == {}
