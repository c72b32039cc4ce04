"""Measures of a classifier, compared with scikit-learn and with cases that are known by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, f1_score, log_loss

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.report.figures import reliability_diagram
from mm_ldlm.families.classification import suite as metrics
from mm_ldlm.families.classification.figures import confusion

BOOTSTRAP = Bootstrap(200, 0.95, 0)


def drawn(n: int = 300, *, classes: int = 4, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    true_n = draw.integers(0, classes, n)
    logits_nK = draw.normal(size=(n, classes)) + 2 * np.eye(classes)[true_n]
    return true_n, np.exp(logits_nK) / np.exp(logits_nK).sum(axis=1, keepdims=True)


@given(n=st.integers(20, 200), classes=st.integers(2, 6), seed=st.integers(0, 99))
def test_the_measures_are_those_of_scikit_learn(n: int, classes: int, seed: int) -> None:
    true_n, probability_nK = drawn(n, classes=classes, seed=seed)
    names, predicted_n = list("abcdef")[:classes], probability_nK.argmax(1)
    found = metrics.measure(true_n, probability_nK, names=names, bootstrap=Bootstrap(20, 0.9, 0))
    assert found["accuracy"]["value"] == pytest.approx((predicted_n == true_n).mean())
    assert found["macro_f1"]["value"] == pytest.approx(f1_score(true_n, predicted_n, average="macro"))
    assert found["nll"]["value"] == pytest.approx(log_loss(true_n, probability_nK, labels=range(classes)))
    assert found["confusion"]["counts"] == confusion_matrix(true_n, predicted_n, labels=range(classes)).tolist()
    assert found["majority"] == pytest.approx(np.bincount(true_n).max() / n)
    assert sum(line["examples"] for line in found["reliability"]) == n


def test_the_intervals_contain_the_value_and_the_level_widens_them() -> None:
    true_n, probability_nK = drawn()
    wide, narrow = (
        metrics.measure(true_n, probability_nK, names=list("abcd"), bootstrap=Bootstrap(200, level, 0))
        for level in (0.99, 0.5)
    )
    tables = {name: np.array(wide["confusion"][name]) for name in ("low", "counts", "high")}
    assert ((tables["low"] <= tables["counts"]) & (tables["counts"] <= tables["high"])).all()
    assert (np.array(narrow["confusion"]["low"]) >= tables["low"]).all()
    narrow_high = np.array(narrow["confusion"]["high"])
    assert ((tables["counts"] <= narrow_high) & (narrow_high <= tables["high"])).all()


def test_a_class_that_occurs_nowhere_does_not_count() -> None:
    statistic = metrics.macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]), 5)
    assert statistic(np.ones((1, 3)))[0] == pytest.approx(2 / 3)
    assert statistic(np.array([[1.0, 0, 0]]))[0] == 1.0


def test_classes_outside_the_names_are_refused(refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError, 2):
        metrics.measure(np.array([0, 2]), np.full((2, 2), 0.5), names=["a", "b"], bootstrap=BOOTSTRAP)


def test_the_figures_show_every_class_and_bin() -> None:
    true_n, probability_nK = drawn()
    entry = metrics.measure(true_n, probability_nK, names=list("abcd"), bootstrap=BOOTSTRAP)
    (matrix,) = confusion({"model": entry}).data
    assert list(matrix.x) == list(matrix.y) == list("abcd")
    np.testing.assert_allclose(np.sum(matrix.z, axis=1), 1, atol=1e-3)
    diagonal, *sources = reliability_diagram({"model": entry["reliability"], "other": entry["reliability"]}).data
    assert (list(diagonal.x), list(diagonal.y)) == ([0, 1], [0, 1])
    assert [len(trace.x) for trace in sources] == [len(entry["reliability"])] * 2
