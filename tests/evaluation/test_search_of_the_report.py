"""The report names the sampler and the search that wrote its reconstructions, and explains what its numbers compare."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

from mm_ldlm.evaluation.report import content, page
from mm_ldlm.evaluation.report.inputs import ReportInputs

TEXT = {"kind": "confidence", "steps": 7, "temperature": 0.0, "top_k": None}
OTHER = {"kind": "ancestral", "steps": 9}
NO_SEARCH = {"candidates": 1, "rounds": 0}
EMBEDDED_AGAIN = "the encoder embeds each of them"


def inputs(inversion: dict[str, Any]) -> ReportInputs:
    empty: dict[str, Any] = {
        key: {} for key in ("run", "run_config", "metrics", "sts", "likelihood", "latents", "generation")
    }
    return ReportInputs(
        title="t", **empty, inversion=inversion, inversion_rows=pd.DataFrame(), unconditional=pd.DataFrame()
    )


def made(search: dict[str, int] | None, *, encoder_calls: tuple[float, ...] = ()) -> ReportInputs:
    """Report inputs whose reconstructions were written with `search`, and a sweep with `encoder_calls` per sentence."""
    parameters = {"text": TEXT, "search": search, "unconditional": {"text": OTHER}}
    number = {"value": 0.5, "low": 0.4, "high": 0.6, "level": 0.95}
    line = {"label": "a", "reference": "a", "model_calls": 1.0, "sentences_per_second": 1.0, "exact_match": number}
    line |= {"token_accuracy": number, "bleu": number, "exact_ratio": None}
    return inputs({
        "sentences": 1500,
        "metrics": {"exact_match": number},
        "sweep": [{**line, "encoder_calls": calls} for calls in encoder_calls],
        "made_by": {"samples": {"samples_l2t": {"parameters": parameters}}},
    })  # fmt: skip


def text_of(given: ReportInputs) -> str:
    html = re.sub(r"<(script|style)\b.*?</\1>", "", page.render(given, {}), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", "", html).split())


@pytest.mark.parametrize(("search", "described"), [
    (None, None), ({}, None), (NO_SEARCH, None),
    ({"candidates": 4, "rounds": 6, "beam": 1}, "candidates 4, rounds 6"),
    ({"candidates": 2, "rounds": 0}, "candidates 2, rounds 0"),
    ({"candidates": 1, "rounds": 3}, "candidates 1, rounds 3"),
])  # fmt: skip
def test_the_sampler_and_the_search_are_those_stored_with_the_reconstructions(
    search: dict[str, int] | None, described: str | None
) -> None:
    assert content.inversion_sampler(made(search)) == ("confidence (steps 7, temperature 0.0)", described)


@pytest.mark.parametrize("inversion", [{}, {"made_by": {}}, {"made_by": {"samples": {"samples_l2t": {}}}}])
def test_an_evaluation_of_an_unknown_sampler_names_none(inversion: dict[str, Any]) -> None:
    assert content.inversion_sampler(inputs(inversion)) == (None, None)


def test_a_report_with_a_search_does_not_claim_that_the_model_wrote_alone() -> None:
    shown = text_of(made({"candidates": 4, "rounds": 6}, encoder_calls=(0.0, 2.0)))
    assert "Inversion is measured on 1,500 held-out sentences, with a search." in shown
    assert EMBEDDED_AGAIN in shown
    assert "Text sampler: confidence (steps 7, temperature 0.0). Search: candidates 4, rounds 6. The lines" in shown
    assert "are scores without a search." in shown
    assert "scores without a search" not in text_of(made({"candidates": 4, "rounds": 6}, encoder_calls=(2.0,)))
    assert "scores without a search" not in text_of(made({"candidates": 4, "rounds": 6}))


def test_a_report_without_a_search_names_the_sampler_alone() -> None:
    shown = text_of(made(NO_SEARCH, encoder_calls=(0.0,)))
    assert "Inversion is measured on 1,500 held-out sentences." in shown
    assert EMBEDDED_AGAIN not in shown
    assert "Text sampler: confidence (steps 7, temperature 0.0). Search: none." in shown
    assert "scores without a search" not in shown


def test_the_numbers_as_written_are_explained_where_they_are_shown() -> None:
    number = {"value": 0.5, "low": 0.4, "high": 0.6, "level": 0.95}
    as_written = {"value": 0.0, "low": 0.0, "high": 0.01, "level": 0.95}
    with_them = text_of(inputs({"metrics": {"exact_match": number, "exact_match_as_written": as_written}}))
    explained = with_them.index("“As written” compares with the sentence as its author wrote it")
    assert with_them.index("Exact match, as written") < explained
    assert "(an uncased one discards all capitals) counts as an error" in with_them
    assert "this exact match can be 0 % although all tokens agree." in with_them
    assert "As written" not in text_of(inputs({"metrics": {"exact_match": number}}))
