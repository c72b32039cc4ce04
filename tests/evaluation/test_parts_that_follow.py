"""A part that is missing ends nothing that follows it; orders, forms of lines, and numbers far from zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr

from mm_ldlm.evaluation import bootstrap, compare, samples
from mm_ldlm.evaluation.config import BootstrapConfig
from mm_ldlm.evaluation.headline import flat_metrics
from mm_ldlm.evaluation.report import content, figures, inputs
from mm_ldlm.evaluation.sts_sets import read_semeval, read_sick, read_stsb
from mm_ldlm.evaluation.suites import latents

NOTHING: dict[str, Any] = {
    key: {} for key in ("inversion", "sts", "likelihood", "latents", "generation", "images", "timings")
}


@pytest.mark.parametrize("parts", [["unconditional"], ["given_latent"], ["unconditional", "given_latent"], []])
def test_each_cost_by_noise_level_is_drawn_without_the_other(parts: list[str]) -> None:
    bucket = {"low": 0, "high": 0.5, "cross_entropy": 1.0, "accuracy": 0.5, "masked_tokens": 3}
    found = figures.mask_ratio({part: {"by_mask_ratio": [bucket]} for part in parts} | {"other": {}})
    names = [] if found is None else [trace.name for trace in found.data]
    assert names == [part.replace("given_", "given the ") for part in parts]
    assert figures.mask_ratio({"unconditional": {}, "given_latent": None}) is None


def test_latents_that_are_missing_leave_the_spectra_of_the_others() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 2))
    found = latents._spectra(a=None, b=vectors, c=vectors[:1], d=vectors[:2])
    assert {name: entry["rows"] for name, entry in found.items()} == {"b": 5, "d": 2}
    assert all(value >= 0 for entry in found.values() for value in entry["eigenvalues"])


@pytest.mark.parametrize(("name", "key"), [("generated", "unconditional"), ("real", "real")])
def test_numbers_of_generated_and_of_real_texts_need_not_come_together(name: str, key: str) -> None:
    entry = {"entropy_sample": 2.0, "distinct": {"1": 9.0, "2": 0.5}}
    found = flat_metrics(**NOTHING | {"generation": {name: entry, "empty": 0.25}})
    assert found == {f"{key}.entropy_sample": 2, f"{key}.distinct_2": 0.5, "unconditional.empty": 0.25}


def test_a_number_has_its_interval_and_its_standard_error() -> None:
    cost = {"value": 1.5, "standard_error": 0.25, "low": 1.0, "high": 2.0, "level": 0.95}
    found = flat_metrics(**NOTHING | {"likelihood": {"given_latent": {"per_token": cost, "perplexity": 3}}})
    name = "nll.given_latent.per_token"
    assert found == {
        name: 1.5, f"{name}.low": 1, f"{name}.high": 2, f"{name}.standard_error": 0.25, "perplexity.given_latent": 3
    }  # fmt: skip


def test_runs_that_are_scored_only_given_the_latent_are_compared_by_that_cost() -> None:
    rows = pd.DataFrame({"id": [f"i{i}" for i in range(40)], "tokens": 2, "nll_given_latent": np.arange(40.0)})
    found = compare.likelihood_difference(
        [rows], [rows.assign(nll_given_latent=rows["nll_given_latent"] + 1)], bootstrap=BootstrapConfig(replicates=20),
        seed=0,
    )["differences"]  # fmt: skip
    assert {name: entry["difference"]["value"] for name, entry in found.items()} == {"nats_given_latent_per_token": 0.5}


# -- orders and forms --------------------------------------------------------------------------------------------------


def test_words_that_occur_often_are_compared_in_long_texts_too() -> None:
    """Python's matcher takes words of more than 1 % of a text of 200 words for noise, unless it is told otherwise."""
    words = ["the"] * 150 + [f"w{i}" for i in range(100)]
    assert content.word_difference(" ".join(words), " ".join(words[1:])) == [
        ("lost", "the"), ("same", " ".join(words[1:]))
    ]  # fmt: skip
    often = "a b " * 150
    assert content.word_difference(often, often[2:]) == [("lost", "a"), ("same", often[2:].strip())]


def test_lists_that_hold_a_mapping_are_flattened_item_by_item() -> None:
    assert content.flatten({"a": [{"b": 1}, 2, [{"c": None}]]}) == [
        ("a[0].b", "1"),
        ("a[1]", "2"),
        ("a[2][0].c", "null"),
    ]
    assert content.flatten({"a": ({"b": 1},), "c": []}) == [("a[0].b", "1"), ("c", "[]")]


def test_the_time_of_the_training_comes_before_the_others(tmp_path: Path) -> None:
    (tmp_path / "training_log.jsonl").write_text('{"step": 1, "seconds": 9.0}\n{"step": 2, "seconds": 12.5}\n')
    found = inputs.own_timings(tmp_path, {"sampling": 5.0, "training": 0.1, "evaluation": 6.0})
    assert list(found.items()) == [("training", 12.5), ("sampling", 5.0), ("evaluation", 6.0)]


def test_kept_samples_are_numbered_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other columns are added to them by place."""
    asked: list[Any] = []
    monkeypatch.setattr(samples, "rows_of_ids", lambda dataset, ids: asked.append((dataset, ids)) or [7, 8])
    monkeypatch.setattr(samples, "read_sentences", lambda dataset, rows: (dataset, rows))
    table = pd.DataFrame({"id": [None, "b", "a", "c"], "best": [True, True, True, False], "text": list("wxyz")})
    held, found = samples.of_samples(table, dataset="the dataset")  # type: ignore[arg-type]
    assert (held, asked) == (("the dataset", [7, 8]), [("the dataset", ["b", "a"])])
    assert (found.index.tolist(), found["text"].tolist()) == ([0, 1], ["x", "y"])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_any_system_are_the_same_set(end: str, tmp_path: Path) -> None:
    files = {
        "STS.input.one.txt": ["a\tb", "c\td", "e\tf", ""], "STS.gs.one.txt": ["1", "", "2", ""],
        "mine.csv": ["a,b,1", "e,f,2", ""], "mine.tsv": ["g\tf\ty\ti\t1\ta\tb", "g\tf\ty\ti\t2\te\tf", ""],
        "SICK.txt": ["sentence_A\tsentence_B\trelatedness_score", "a\tb\t1", "e\tf\t2", ""],
    }  # fmt: skip
    for name, lines in files.items():
        (tmp_path / name).write_bytes(end.join(lines).encode())
    for found in (read_semeval(tmp_path, name="x"), read_stsb(tmp_path / "mine.csv"), read_stsb(tmp_path / "mine.tsv"),
                  read_sick(tmp_path / "SICK.txt")):  # fmt: skip
        assert (found.first, found.second, found.gold_N.tolist()) == (("a", "e"), ("b", "f"), [1, 2])
    for name, lines in (("input", ["a\tb", "c\td", "e\tf", "g\th", ""]), ("gs", ["1", "", "2", ""])):
        (tmp_path / f"STS.{name}.one.txt").write_bytes(end.join(lines).encode())
    assert read_semeval(tmp_path, name="x").first == ("a", "e"), "the last score is empty, without a line break"


def test_a_correlation_of_numbers_far_from_zero_keeps_its_digits() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 9, 50).astype(float), draw.normal(size=50)
    counts = next(bootstrap.count_blocks(50, replicates=20, seed=0))
    near, far = (bootstrap.PearsonOfCounts(x + shift, y)(counts) for shift in (0.0, 1e13))
    np.testing.assert_allclose(far, near, atol=1e-9)
    rows = np.repeat(np.arange(50), counts[3].astype(int))
    assert near[3] == pytest.approx(pearsonr(x[rows], y[rows]).statistic)
    assert np.isnan(bootstrap.PearsonOfCounts(np.full(50, 3.0), y)(counts)).all(), "a constant has no correlation"
