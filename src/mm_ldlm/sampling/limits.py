"""Largest and smallest settings of samplers, each with its reason, and the lengths of texts that requests give.

Counts far above these bounds cost days without a measurable effect on a sample. Temperatures and guidance beyond theirs
leave float32 too few digits.
"""

from typing import Annotated, Literal

from mm_ldlm.core import Rows, bounded, checked

MOST_STEPS = 10_000
"""Steps of a sampler: ten times the grids of DDPM and MDLM (1,000)"""
MOST_DRAWS = 10_000
"""Draws of a latent or of a likelihood: the standard error of their mean is then 1 % of the spread of one draw"""
MOST_CANDIDATES = 1_000
"""Candidates, rounds and kept candidates of a search; the distinct candidates of a round are compared in pairs"""
MOST_GUIDANCE = 1_000.0
"""Guidance scale: the difference of two predictions in float32 (relative error 1e-7) then has an error of 1e-4"""
COLDEST, HOTTEST = 1e-4, 1e4
"""Temperatures above 0: the rounding of a float32 log-probability (1e-6 at −10) is 1 % of a logit at 1e-4, and at 1e4
the largest differences of log-probabilities (about 100) are 1 %, so that the draw is uniform"""


def _within_float32(temperature: float) -> float:
    if temperature != 0 and not COLDEST <= temperature <= HOTTEST:
        raise ValueError(
            f"expected 0, for the most probable token, or a number from {COLDEST:g} to {HOTTEST:g} (float32 has too "
            f"few digits for others), found {temperature:g}"
        )
    return temperature


Steps = Annotated[int, bounded(gt=0, le=MOST_STEPS)]
Draws = Annotated[int, bounded(gt=0, le=MOST_DRAWS)]
Candidates = Annotated[int, bounded(gt=0, le=MOST_CANDIDATES)]
Rounds = Annotated[int, bounded(ge=0, le=MOST_CANDIDATES)]
Guidance = Annotated[float, bounded(ge=0, le=MOST_GUIDANCE)]
Temperature = Annotated[float, checked(_within_float32)]
TopP = Annotated[float, bounded(gt=0, le=1)]
Length = Literal["argmax", "sample"] | Rows
"""Length of a text: argmax or sample (of the length distribution), or a number of tokens"""
