"""Parameters under `evaluation.calibration`."""

from mm_ldlm.core import RowsOrNone, config
from mm_ldlm.evaluation.config import Level


@config
class CalibrationConfig:
    """Parameters of the suite of calibration.

    Attributes:
        sentences: number of sentences of the validation split that the probabilities are fitted on; 0 disables it.
        threshold: probability from which on a text counts as `vouched` in the metrics.
    """

    sentences: RowsOrNone = 300
    threshold: Level = 0.9


@config
class CalibrationKeys:
    """The key that the suite adds to the section `evaluation`."""

    calibration: CalibrationConfig = CalibrationConfig()
