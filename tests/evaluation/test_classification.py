"""Measures of a classifier, compared with scikit-learn and with cases that are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.families.classification import figures as classification_figures
from mm_ldlm.families.classification import metrics as measures

OPTIONS = {"replicates": 200, "seed": 0, "level": 0.95}
NAMES = ["a", "b", "c", "d"]


def drawn(n: int = 300, *, classes: int = 4, signal: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    true_n = draw.integers(0, classes, n)
    logits = draw.normal(size=(n, classes))
    logits[np.arange(n), true_n] += signal
    probability = np.exp(logits)
    return true_n, probability / probability.sum(axis=1, keepdims=True)


def test_the_measures_are_those_of_scikit_learn() -> None:
    true_n, probability_nK = drawn()
    found = measures.measure(true_n, probability_nK, names=NAMES, bins=10, **OPTIONS)
    predicted_n = probability_nK.argmax(1)
    assert found["accuracy"]["value"] == pytest.approx((predicted_n == true_n).mean())
    assert found["macro_f1"]["value"] == pytest.approx(f1_score(true_n, predicted_n, average="macro"))
    assert found["confusion"]["counts"] == confusion_matrix(true_n, predicted_n).tolist()
    for name in ("accuracy", "macro_f1", "ece", "nll"):
        assert found[name]["low"] < found[name]["value"] + 1e-9
        assert found[name]["low"] < found[name]["high"]
    low, high = np.array(found["confusion"]["low"]), np.array(found["confusion"]["high"])
    assert (low <= np.array(found["confusion"]["counts"])).mean() > 0.9
    assert (low < high).any()


@pytest.mark.parametrize(("level", "low", "high"), [(0.9, 5.0, 95.0), (0.5, 25.0, 75.0)])
def test_the_intervals_of_the_confusions_are_quantiles_of_the_replicates(
    level: float, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One example of class 0, predicted as 1, which occurs 0 to 100 times in the replicates."""
    monkeypatch.setattr(measures, "replicates_of", lambda statistic, *_, **__: statistic(np.arange(101.0)[:, None]))
    found = measures.confusion(np.array([[0.0, 1.0, 0.0, 0.0]]), 2, replicates=101, seed=0, level=level)
    for name, expected in (("counts", 1.0), ("low", low), ("high", high)):
        np.testing.assert_allclose(found[name], [[0.0, expected], [0.0, 0.0]], err_msg=name)


def test_a_class_that_occurs_nowhere_does_not_count() -> None:
    statistic = measures.macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]), 5)
    assert statistic(np.ones((1, 3)))[0] == pytest.approx(2 / 3)
    assert statistic(np.array([[1.0, 0, 0]]))[0] == 1.0


def test_the_calibration_error_of_known_bins() -> None:
    # the bin of 0.8: 10 examples, all right; the bin of 0.6: 5 examples, none right
    confidence_n = np.array([0.8] * 10 + [0.6] * 5)
    correct_n = np.array([1.0] * 10 + [0.0] * 5)
    statistic = measures.expected_calibration_error(confidence_n, correct_n, 10)
    assert statistic(np.ones((1, 15)))[0] == pytest.approx((10 * 0.2 + 5 * 0.6) / 15)
    lines = measures.reliability(confidence_n, correct_n, 10, **OPTIONS)
    assert [(line["examples"], round(line["accuracy"]["value"], 2)) for line in lines] == [(5, 0.0), (10, 1.0)]
    assert measures.bin_of(np.array([0.05, 0.1, 0.1000001, 1.0]), 10).tolist() == [0, 0, 1, 9]


def test_a_calibrated_classifier_has_a_small_error_and_an_overconfident_one_a_large_one() -> None:
    draw = np.random.default_rng(3)
    confidence_n = draw.uniform(0.5, 1, 20_000)
    correct_n = (draw.random(20_000) < confidence_n).astype(float)
    calibrated = measures.expected_calibration_error(confidence_n, correct_n, 15)(np.ones((1, 20_000)))[0]
    wrong = measures.expected_calibration_error(np.full(20_000, 0.99), correct_n, 15)(np.ones((1, 20_000)))[0]
    assert calibrated < 0.015
    assert wrong == pytest.approx(0.99 - correct_n.mean(), abs=1e-6)


def test_classes_outside_the_names_are_refused() -> None:
    with pytest.raises(EvaluationError, match="expected examples with classes 0 to 1"):
        measures.measure(np.array([0, 2]), np.full((2, 2), 0.5), names=NAMES[:2], bins=5, **OPTIONS)


def test_the_figures_show_every_class_and_bin() -> None:
    true_n, probability_nK = drawn()
    entry = measures.measure(true_n, probability_nK, names=NAMES, bins=10, **OPTIONS)
    matrix = classification_figures.confusion({"model": entry})
    assert list(matrix.data[0].x) == NAMES
    diagram = classification_figures.reliability({"model": entry, "logistic_regression": entry})
    assert [trace.name for trace in diagram.data] == ["calibrated", "model", "logistic regression"]
    assert len(diagram.data[1].x) == len(entry["reliability"])
    assert (list(diagram.data[0].x), list(diagram.data[0].y)) == ([0, 1], [0, 1]), "the diagonal"
    assert classification_figures.confusion({"skipped": "reason"}) is None
