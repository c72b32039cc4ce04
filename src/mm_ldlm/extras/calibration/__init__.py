"""Fit of the probabilities that inverted texts are right, and its suite; `inference.calibration` applies them."""

COMPONENTS: dict[str, dict[str, str]] = {
    "sections": {"evaluation.calibration": "mm_ldlm.extras.calibration.config:CalibrationConfig"},
    "suites": {"calibration": "mm_ldlm.extras.calibration.suite:InversionCalibration"},
}
