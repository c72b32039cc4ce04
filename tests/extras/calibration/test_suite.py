"""The fit of the probabilities that inverted texts are right, and the suite of calibration on a finished quick run."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.evaluation.suites.conftest import Run, run_of

from mm_ldlm.core import to_dict
from mm_ldlm.data.held_out import held_out
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.extras.calibration.config import CalibrationConfig, CalibrationKeys
from mm_ldlm.extras.calibration.fitting import expected_calibration_error, fit_calibration, fit_curve, right_texts
from mm_ldlm.extras.calibration.suite import EVENTS, InversionCalibration, measure
from mm_ldlm.inference.calibration import Calibration, features_of
from mm_ldlm.training.checkpoints.provenance import MADE_BY


@pytest.fixture(scope="module")
def run(finished: Path) -> Run:
    return run_of(finished)


def test_the_run_folder_keeps_what_the_report_measured(run: Run) -> None:
    found, metrics = run.given.model.parts.calibration, run.metrics("calibration")
    assert found is not None
    assert to_dict(found) == metrics["fitted"]
    assert found.texts == run.given.config.calibration.sentences
    made = run.given.model.invert(run.given.dataset.require("latents").take([0, 1]), search=True)
    assert made.p_exact is not None
    assert (made.p_exact <= made.p_up_to_case).all()


def test_a_run_that_cannot_be_calibrated_is_skipped_with_a_reason(run: Run) -> None:
    suite, given = InversionCalibration(), run.of("calibration")
    off = replace(given, config=CalibrationKeys(calibration=CalibrationConfig(sentences=0)))
    assert "calibration.sentences" in str(suite.skip_reason(off))
    unembedded = given.samples["l2t"].assign(cosine=lambda table: table["cosine"].where(table.index > 0))
    assert "cosine" in str(suite.skip_reason(replace(given, samples={"l2t": unembedded})))
    no_rows: Any = SimpleNamespace(rows=lambda split: [])
    assert "no validation split" in str(suite.skip_reason(replace(given, dataset=no_rows)))
    assert suite.skip_reason(given) is None


def test_validation_sentences_are_inverted_as_the_held_out_ones_were(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given, table, asked = run.of("calibration"), run.samples["l2t"].copy(), list[Any]()
    config = replace(given.config, calibration=CalibrationConfig(sentences=5))
    how = {"text": {"kind": "random"}, "length": 4, "search": {"rounds": 2}, "l2t": {"samples": 3}}
    table.attrs = {MADE_BY: {"parameters": how}}
    held = held_out(given.dataset, count=5, seed=7, split="validation")
    made = SimpleNamespace(texts=held.texts, cosines=np.linspace(0, 1, 5), log_probs=np.zeros(5))
    monkeypatch.setattr(given.model, "invert", lambda latents, **how: asked.append((latents.tolist(), how)) or made)
    metrics, _ = InversionCalibration().evaluate(replace(given, config=config, seed=7, samples={"l2t": table}))
    passed = {"sampler": how["text"], "length": 4, "search": how["search"], "samples": 3, "reembed": True, "seed": 7}
    assert asked == [(held.latents.tolist(), passed)]
    assert metrics["fitted"]["weights"] == given.model.parts.weights != {}


def test_a_calibrated_prediction_has_the_error_of_chance_and_an_overconfident_one_more() -> None:
    draw = np.random.default_rng(0)
    p_n = np.append(draw.beta(0.5, 0.5, 1900), np.full(100, 0.9))
    right = dict.fromkeys(EVENTS, draw.random(2000) < p_n)
    given = {"exact": p_n, "up_to_case": p_n**0.2, "content_words": p_n / 2}
    found = measure(given, right, CalibrationConfig(), Bootstrap(100))
    good, bad = found["exact"], found["up_to_case"]
    assert good["error"]["value"] < 2 * good["by_chance"] < 0.05 < bad["error"]["low"]
    assert (good["vouched"]["value"], found["content_words"]["vouched_right"]) == ((p_n >= 0.9).mean(), None)
    assert good["vouched_right"]["value"] >= 0.9 > bad["vouched_right"]["value"]
    _, *lines = InversionCalibration().figures(found)["plot_inversion_reliability"].data
    assert [len(line.x) for line in lines] == [10, 10, 5], "each event has its own line"


# -- the fit ----------------------------------------------------------------------------------------------------------


def inverted(count: int, *, seed: int) -> dict[str, Any]:
    """Draw texts of which the cosine decides the words, and the log-probability the capitals."""
    draw = np.random.default_rng(seed)
    words_n = draw.random(count) < 0.6
    same_n = words_n | (draw.random(count) < 0.05)  # the encoder does not tell a few wrong texts from their sources
    gap_n = np.where(same_n, 1e-8, 10 ** -draw.uniform(0.3, 4, count))
    digits_n = draw.normal(0.3, 0.7, count)
    capitals_n = words_n & (draw.random(count) < 1 / (1 + np.exp(-1 - 3 * digits_n)))
    near_n = draw.random(count) < 0.3
    sources = [f"The Reader found page {number}" for number in range(count)]
    texts = [
        source if capital else source.lower() if word else f"{source} of it" if near else "something else"
        for source, word, capital, near in zip(sources, words_n, capitals_n, near_n, strict=True)
    ]
    return {"sources": sources, "texts": texts, "cosines": 1 - gap_n, "log_probs": -(10**-digits_n)}


@pytest.fixture(scope="module")
def fitted() -> Calibration:
    return fit_calibration(**inverted(1000, seed=1))


def test_the_probabilities_are_those_of_other_texts_of_the_same_kind(fitted: Calibration) -> None:
    other = inverted(4000, seed=2)
    found = fitted.probabilities(other["cosines"], other["log_probs"])
    right = right_texts(other["sources"], other["texts"])
    for event in EVENTS:
        assert expected_calibration_error(found[event], right[event]) < 0.03, event
        assert found[event].mean() == pytest.approx(right[event].mean(), abs=0.03)
    wrong_n = (other["cosines"] > 1 - 1e-7) & ~right["up_to_case"]
    of_wrong_n = fitted.content_words(features_of(other["cosines"], other["log_probs"]))[wrong_n]
    assert of_wrong_n.mean() == pytest.approx(right["content_words"][wrong_n].mean(), abs=0.25)
    sure_n = found["exact"] >= 0.9
    assert sure_n.mean() > 0.2
    assert right["exact"][sure_n].mean() >= 0.9


def test_no_text_is_surer_than_those_of_the_fit() -> None:
    features = np.random.default_rng(0).normal(size=(300, 3))
    curve = fit_curve(features, features.sum(axis=1) > 0)
    assert curve(features + 100).max() == curve(features).max() < 1
    assert fit_curve(features[:0], np.zeros(0, bool)).most == 0.5


@given(st.integers(0, 60), st.booleans(), st.integers(0, 99))
def test_a_few_texts_give_no_certainty(count: int, right: bool, seed: int) -> None:
    features = features_of(1 - 10 ** -np.random.default_rng(seed).uniform(0, 8, count), np.linspace(-9, 0, count))
    found = fit_curve(features, np.full(count, right))(features)
    assert (np.abs(found - right) >= 0.8 / (count + 2)).all()


def test_a_feature_against_the_order_is_left_out() -> None:
    features = np.random.default_rng(0).normal(size=(300, 3))
    curve = fit_curve(features, features[:, 0] < features[:, 1])
    assert curve.slopes[0] == 0 < curve.slopes[1]


@given(st.text(max_size=30), st.text(max_size=30))
def test_the_events_are_nested(source: str, text: str) -> None:
    pairs = [(source, text), (source, source), (source, source.swapcase()), (source, f"  {source}")]
    found = right_texts(*zip(*pairs, strict=True))
    for narrow, wide in pairwise(EVENTS):
        assert not (found[narrow] & ~found[wide]).any()
    assert found["exact"][1]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("a girl was drawing: Horse, 3!", False),
        ("The GIRL drew 3 horses", True),
        ("3 horses! drew the girl", True),
        ("The girl drew 4 horses.", False),
        ("The girl drew 3 horses, horses.", False),
        ("The girl drew horses.", False),
        ("The girl never drew 3 horses.", False),
    ],
)
def test_content_words_are_compared_without_order_and_function_words(text: str, right: bool) -> None:
    assert right_texts(["The girl drew 3 horses."], [text])["content_words"][0] == right
