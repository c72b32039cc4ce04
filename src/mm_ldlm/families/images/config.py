"""Section `images` of the parameters: the stored images, the sampling tasks on them, and their evaluation."""

from typing import Annotated, Any, Literal

from mm_ldlm.core import Kinds, Rows, RowsOrNone, Size, config, refuse_if
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.sampling.base import Overridable
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.limits import Length, Steps
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS

CAPTION_SAMPLERS = Kinds(
    what="caption sampler", core={**TEXT_SAMPLERS.known, **LATENT_SAMPLERS.known}, group="text_samplers",
    interface=Overridable,
)  # fmt: skip
"""Samplers of captions: of tokens, or of vectors of tokens under Gaussian noise."""


@config
class ImageTasksConfig:
    """Parameters of the tasks on images; `sampling.rows` examples of the split are drawn and captioned."""

    image: Annotated[Any, LATENT_SAMPLERS] = DdimConfig()
    """Sampler of images given captions"""
    caption: Annotated[Any, CAPTION_SAMPLERS] | None = None
    """Sampler of captions given images: a text sampler, or a latent sampler if captions are noised as vectors; None:
    the default of the model"""
    length: Length = "argmax"
    """Length of the captions: argmax | sample | a number of tokens"""
    joint_count: Rows = 64
    """Number of images that are drawn together with their captions"""
    joint_steps: Steps = 50

    def __post_init__(self) -> None:
        for name, sampler in (("image", self.image), ("caption", self.caption)):
            draws = getattr(sampler, "draws", 1)
            refuse_if(
                draws > 1,
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


@config
class ImagesConfig:
    """Section `images`.

    Attributes:
        height, width: pixels of the stored images; others are cropped around their centre and resized.
        channels: 1 (grey) or 3 (RGB).
        normaliser: with one scale for all pixels, because those that hardly vary would be scaled up to noise.
        sampling: the tasks of the sampling pipeline on images.
        evaluation: the suite that scores them.
    """

    height: Size = 32
    width: Size = 32
    channels: Literal[1, 3] = 3
    normaliser: NormaliserConfig = NormaliserConfig(kind="one_scale")
    sampling: ImageTasksConfig = ImageTasksConfig()
    evaluation: ImagesSuiteConfig = ImagesSuiteConfig()

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels
