"""The suite of calibration on a finished quick run."""

import math
from dataclasses import replace

import numpy as np
from tests.evaluation.suites.conftest import Run

from mm_ldlm.core import to_dict
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.config import CalibrationConfig
from mm_ldlm.evaluation.suites.calibration import EVENTS, InversionCalibration, measure


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
    off = replace(given, config=replace(given.config, calibration=CalibrationConfig(sentences=0)))
    assert "calibration.sentences" in str(suite.skip_reason(off))
    unembedded = given.samples["l2t"].assign(cosine=math.nan)
    assert "cosine" in str(suite.skip_reason(replace(given, samples={"l2t": unembedded})))
    assert suite.skip_reason(given) is None


def test_a_calibrated_prediction_has_the_error_of_chance_and_an_overconfident_one_more() -> None:
    draw = np.random.default_rng(0)
    p_n = draw.beta(0.5, 0.5, 2000)
    right = dict.fromkeys(EVENTS, draw.random(2000) < p_n)
    found = measure({"exact": p_n, "up_to_case": p_n**0.2}, right, CalibrationConfig(), Bootstrap(100))
    good, bad = found["exact"], found["up_to_case"]
    assert good["error"]["value"] < 2 * good["by_chance"] < 0.05 < bad["error"]["low"]
    assert good["vouched"]["value"] == (p_n >= 0.9).mean()
    assert good["vouched_right"]["value"] >= 0.9 > bad["vouched_right"]["value"]
