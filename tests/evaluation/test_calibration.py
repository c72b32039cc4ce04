"""Calibration errors of known cases."""

import numpy as np
import pytest

from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.calibration import bin_of, calibration_error, reliability


def test_the_calibration_error_of_known_bins() -> None:
    # ten examples with confidence 0.8, all right; five with 0.6, all wrong
    confidence_n, correct_n = np.array([0.8] * 10 + [0.6] * 5), np.array([1.0] * 10 + [0.0] * 5)
    statistic = calibration_error(confidence_n, correct_n, 10)
    assert statistic(np.ones((1, 15)))[0] == pytest.approx((10 * 0.2 + 5 * 0.6) / 15)
    lines = reliability(confidence_n, correct_n, 10, Bootstrap(50))
    assert [(line["examples"], line["accuracy"]["value"]) for line in lines] == [(5, 0.0), (10, 1.0)]
    assert bin_of(np.array([0.05, 0.1, 0.1000001, 1.0]), 10).tolist() == [0, 0, 1, 9]


def test_a_calibrated_classifier_has_a_small_error_and_an_overconfident_one_a_large_one() -> None:
    draw = np.random.default_rng(3)
    confidence_n = draw.uniform(0.5, 1, 20_000)
    correct_n = (draw.random(20_000) < confidence_n).astype(float)
    once = np.ones((1, 20_000))
    assert calibration_error(confidence_n, correct_n, 15)(once)[0] < 0.015
    overconfident = calibration_error(np.full(20_000, 0.99), correct_n, 15)(once)[0]
    assert overconfident == pytest.approx(0.99 - correct_n.mean(), abs=1e-6)
