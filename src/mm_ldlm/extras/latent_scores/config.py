"""Parameters under `evaluation.latents`."""

from typing import Annotated

from mm_ldlm.core import Rows, RowsOrNone, bounded, config

SeveralDraws = Annotated[int, bounded(ge=2, le=1000)]
"""Samples whose spread is measured"""


@config
class LatentsConfig:
    """Parameters of the latents suite.

    Attributes:
        candidates: number of latents among which each generated latent retrieves its target.
        neighbourhood_sentences: number of texts whose neighbourhoods are compared.
        calibration_sentences: number of texts for the calibration; 0 omits it.
        calibration_samples: number K of samples per text.
    """

    candidates: Rows = 10_000
    neighbourhood_sentences: Rows = 500
    calibration_sentences: RowsOrNone = 64
    calibration_samples: SeveralDraws = 6


@config
class LatentsKeys:
    """The key that the suite adds to the section `evaluation`."""

    latents: LatentsConfig = LatentsConfig()
