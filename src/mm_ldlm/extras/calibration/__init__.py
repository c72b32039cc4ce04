"""Fit of the probabilities that inverted texts are right, and its suite; `inference.calibration` applies them."""

COMPONENTS: dict[str, dict[str, str]] = {
    "keys": {"evaluation.calibration": "mm_ldlm.extras.calibration.config:CalibrationKeys"},
    "suites": {"calibration": "mm_ldlm.extras.calibration.suite:InversionCalibration"},
}
