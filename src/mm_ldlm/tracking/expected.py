"""Expected seconds of what a run does later in this process, for the lines of what it does before."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Expected:
    """Expected seconds of a run; every `before_pipeline_run` resets them."""

    training: float | None = None
    """seconds of the training, where trial steps were measured before it"""


EXPECTED = Expected()
