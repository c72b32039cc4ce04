"""Tiny data of the kind `ccdd`: a state for each token."""

from typing import Any

import numpy as np
from tests.training.task import SHAPE, Example

DIM = 6


def states(draw: np.random.Generator, lengths: Any) -> Any:
    """Draw states (N, L, d), 0 behind the end of a text."""
    values = draw.standard_normal((len(lengths), SHAPE.max_length, DIM)).astype(np.float32)
    return np.where((np.arange(SHAPE.max_length) < lengths[:, None])[..., None], values, 0)


EXAMPLES = {"ccdd": Example(shape={"token_states": (DIM,)}, fields={"token_states": states})}
