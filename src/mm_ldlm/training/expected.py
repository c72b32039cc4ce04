"""Expected seconds of later parts of a run, for the messages of earlier parts in this process."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Expected:
    """Expected seconds of a run; every `before_pipeline_run` resets them."""

    training: float | None = None
    """seconds of the training, if trial steps were measured"""


EXPECTED = Expected()
