"""Inputs that differ in one respect: tokens of equal sums, forms of a letter, exact limits, names of files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from mm_ldlm.evaluation import compare, retrieval
from mm_ldlm.evaluation.config import BootstrapConfig, GenerationConfig, TextFile
from mm_ldlm.evaluation.headline import MOST_UNKNOWN, sts_headlines
from mm_ldlm.evaluation.overlap import attested_bigrams, memorised
from mm_ldlm.evaluation.report import comparison_page, figures, page
from mm_ldlm.evaluation.sts_sets import read_sick, read_stsb
from mm_ldlm.evaluation.suites import generation, likelihood

BOOTSTRAP = BootstrapConfig(replicates=20)
IDS = [f"i{row}" for row in range(40)]
TOKENS = np.arange(40) % 5 + 2


def costs(tokens: Any = TOKENS, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": IDS, "tokens": tokens, "nll": np.arange(40.0) + 1, **columns})


@pytest.mark.parametrize("tokens", [TOKENS[::-1], np.roll(TOKENS, 1), TOKENS + 1])
def test_tokens_that_differ_by_sentence_are_no_common_unit(tokens: Any) -> None:
    options: dict[str, Any] = {"bootstrap": BOOTSTRAP, "seed": 0}
    same = compare.likelihood_difference([costs()], [costs()], **options)
    assert set(same["differences"]) == {"nats_per_token"}
    for a, b in (([costs()], [costs(tokens)]), ([costs(), costs()], [costs(), costs(tokens)])):
        for one, two in ((a, b), (b, a)):
            found = compare.likelihood_difference(one, two, **options)
            assert set(found["differences"]) == {"nats_per_sentence"}


@pytest.mark.parametrize("has", [(True, True), (True, False), (False, True), (False, False)])
def test_a_column_is_compared_where_both_runs_have_it(has: tuple[bool, bool]) -> None:
    ours, theirs = (costs(**({"nll_given_latent": np.arange(40.0)} if own else {})) for own in has)
    options: dict[str, Any] = {"bootstrap": BOOTSTRAP, "seed": 0}
    found = compare.likelihood_difference([theirs], [ours], **options)
    assert ("nats_given_latent_per_token" in found["differences"]) == all(has)
    counts = {f"bleu_{part}{n}": 1 for part in "ct" for n in range(1, 5)} | {"bleu_sys": 4, "bleu_ref": 4}
    plain = {"id": IDS, "exact": True, "matches": 1, "positions": 2, **counts}
    ours, theirs = (pd.DataFrame(plain | ({"cosine": 0.5} if own else {})) for own in has)
    found = compare.inversion_difference([theirs], [ours], **options)
    assert ("cosine" in found["differences"]) == all(has)


@pytest.mark.parametrize("form", ["ﬁne ｗｏｒｄｓ ①", "FINE  words\u00a01", "fine\twords 1\n"])
def test_forms_of_a_letter_are_one_text(form: str) -> None:
    assert memorised([form], ["fine words 1"]).tolist() == memorised(["fine words 1"], [form]).tolist() == [True]
    assert attested_bigrams([form], ["fine words 1"]).tolist() == attested_bigrams(["fine words 1"], [form]).tolist()
    assert attested_bigrams([form], ["fine words 1"]).tolist() == [1.0]


@pytest.mark.parametrize(("shift", "bins"), [(9.0, [0, 0, 0, 1]), (-9.0, [1, 0, 0, 0])])
def test_ranks_at_either_end_have_a_bin(shift: float, bins: list[float]) -> None:
    samples = np.random.default_rng(0).random((3, 5, 2))
    assert retrieval.calibration(samples, samples[0] * 0.5 + shift).rank_fraction.tolist() == bins


def test_a_set_with_half_of_its_words_unknown_is_still_a_headline() -> None:
    metrics = {f"sts.{name}.spearman": 50.0 for name in ("half", "more", "none")}
    metrics |= {"sts.half.unknown": MOST_UNKNOWN, "sts.more.unknown": MOST_UNKNOWN + 1e-6}
    assert sts_headlines(metrics) == ["sts.half.spearman", "sts.none.spearman"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_sts_may_begin_with_a_byte_order_mark(mark: str, end: str, tmp_path: Path) -> None:
    stsb, sick = tmp_path / "a.csv", tmp_path / "SICK_test_annotated.txt"
    stsb.write_bytes(end.join([f"{mark}sentence1,sentence2,score", "a,b,1", "c,d,0", ""]).encode())
    sick.write_bytes(end.join([f"{mark}sentence_A\tsentence_B\trelatedness_score", "a\tb\t1", "c\td\t5", ""]).encode())
    assert read_stsb(stsb).gold_N.tolist() == [1, 0]
    assert (read_sick(sick).first, read_sick(sick).gold_N.tolist()) == (("a", "c"), [1, 5])


@pytest.mark.parametrize("name", ["lines", "lines.txt", "lines.gz", "lines.txt.gz", "lines.csv.gz"])
def test_a_text_is_compressed_if_its_name_says_so(name: str, tmp_path: Path) -> None:
    content = b"one\n\n two \r\nthree"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert likelihood.read_lines(TextFile(name="x", path=str(tmp_path / name))) == ["one", " two ", "three"]


def test_a_sample_without_a_token_is_empty_even_if_it_has_a_text() -> None:
    found = generation.evaluate(
        ["a b", "c", "d e"], [[1, 2], [], [3, 4]], real_texts=["c d", "e f"], real_tokens=[[1, 2], [3, 4]],
        training_texts=lambda: ["a b", "c"], config=GenerationConfig(), bootstrap=BOOTSTRAP,
    )  # fmt: skip
    assert found["empty"] == pytest.approx(1 / 3)
    assert found["memorised"] == 0.5, "of the samples that have tokens, and without the held-out texts"


def difference(verdict: str) -> dict[str, Any]:
    entry = {"difference": {"value": 0.1, "low": -0.1, "high": 0.3}, "verdict": verdict}
    return {"differences": {"likelihood": {"differences": {"nats_per_token": entry}}}}


def test_differences_are_drawn_unless_they_are_of_too_few_sentences() -> None:
    paired = {"a": difference("significant"), "b": difference("not significant"), "c": difference("too few"),
              "d": {"left_out": "why"}}  # fmt: skip
    figure = comparison_page.differences(paired)
    assert figure is not None
    assert list(figure.data[0].y) == ["a", "b"]
    assert comparison_page.differences({"c": difference("too few")}) is None


@pytest.mark.parametrize("count", [1, 6, 7, 13])
def test_any_number_of_runs_is_drawn_each_with_its_own_numbers(count: int) -> None:
    cells = [{"value": 1.0 + run, "low": None, "high": None, "note": f"n{run}"} for run in range(count)]
    names = [f"run {run}" for run in range(count)]
    table = [{"metric": "nll.per_token", "label": "Nats per token", "values": cells}]
    figure = figures.comparison_plot({"runs": names, "table": table})
    assert figure is not None
    assert [(trace.name, list(trace.y), list(trace.text)) for trace in figure.data] == [
        (name, [1.0 + run], [f"n{run}"]) for run, name in enumerate(names)
    ]
    colours = [trace.marker.color for trace in figure.data]
    assert len(set(colours)) == min(count, 6)
    assert figures.comparison_plot({"runs": names, "table": [{**table[0], "metric": "other"}]}) is None


def test_the_text_of_a_figure_cannot_end_its_script() -> None:
    hostile = "<!-- </script> --> & \u2028 \u2029 <b>"
    text = page.embedded_json(go.Figure(go.Bar(x=[hostile], y=[1])))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["data"][0]["x"] == [hostile]


def test_perplexities_have_an_interval_or_are_left_out() -> None:
    estimate: Any = SimpleNamespace(value=1.0, low=0.5, high=2.0)
    assert likelihood._perplexity(estimate) == {"value": np.e, "low": np.e**0.5, "high": pytest.approx(np.e**2)}
    assert likelihood._perplexity(SimpleNamespace(value=700.0, low=690.0, high=800.0)) is None  # type: ignore[arg-type]
