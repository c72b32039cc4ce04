"""Dropout of conditions in training, for classifier-free guidance (arXiv:2207.12598)."""

from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator

CONDITION_DROPOUT = 0.1
"""Fraction of examples whose condition is dropped, by default"""


def dropped(generator: RowGenerator, fraction: float) -> Tensor:
    """Select the examples (B,) whose condition is replaced by its learned null."""
    return generator.fork("condition").uniform() < fraction
