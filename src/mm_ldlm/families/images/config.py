"""Parameters of the sampling tasks on images, and of their evaluation."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from mm_ldlm.core.config import InvalidValue, Rows, RowsOrNone, config
from mm_ldlm.families.images.requests import CAPTION_SAMPLERS
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.lengths import DrawnLength
from mm_ldlm.sampling.limits import Steps
from mm_ldlm.sampling.registry import LATENT_SAMPLERS


@config
class ImageTasksConfig:
    """Parameters of the tasks on images; `sampling.rows` examples of the split are drawn and captioned."""

    image: Annotated[Any, LATENT_SAMPLERS] = field(default_factory=DdimConfig)
    """Sampler of images given captions"""
    caption: Annotated[Any, CAPTION_SAMPLERS] | None = None
    """Sampler of captions given images: a text sampler, or a latent sampler if captions are noised as vectors; None:
    the default of the model"""
    length: DrawnLength = "argmax"
    """Length of the captions: argmax | sample | a number of tokens"""
    joint_count: Rows = 64
    """Number of images that are drawn together with their captions"""
    joint_steps: Steps = 50

    def __post_init__(self) -> None:
        for name, sampler in (("image", self.image), ("caption", self.caption)):
            if (draws := getattr(sampler, "draws", 1)) > 1:
                raise InvalidValue(
                    f"{name}.draws is {draws}, but the mean of several draws is not a sample: set it to 1",
                    f"{name}.draws",
                )


@config
class ImagesSuiteConfig:
    """Parameters of the suite.

    Attributes:
        classifier_rows: maximum number of training images of the independent classifier.
        pictures: number of images of each task in the report.
    """

    classifier_rows: Rows = 5000
    pictures: RowsOrNone = 40
