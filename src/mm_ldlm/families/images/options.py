"""Options of the objectives of captions and images: modes, noise of the images, loss weights."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from mm_ldlm.core.config import Fraction, InvalidValue, NonNegativeFloat, PositiveFloat, config
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.objectives.capabilities import Use
from mm_ldlm.objectives.condition_dropout import CONDITION_DROPOUT
from mm_ldlm.objectives.text_generation import by_use, untrained_lengths

ImageMode = Literal["caption_to_image", "image_to_caption", "joint"]
IMAGE_MODES: tuple[ImageMode, ...] = ("caption_to_image", "image_to_caption", "joint")


@config
class ImageModeWeights:
    """Relative frequencies at which training draws the modes; a mode of weight 0 is not trained."""

    caption_to_image: NonNegativeFloat = 1.0
    image_to_caption: NonNegativeFloat = 1.0
    joint: NonNegativeFloat = 1.0


@config
class ImageTextOptions:
    """Modes, noise of the images and loss weights.

    Attributes:
        mode_weights: relative frequencies of the modes. In `caption_to_image` the caption is clean and the image is
            noised, in `image_to_caption` the reverse; in `joint` both are noised, each at its own timestep.
        image_schedule: Gaussian noise schedule of the images.
        parameterisation: what the image head predicts.
        image_loss: weight of the image loss as a function of the SNR; `min_snr_gamma` is γ of `min_snr`.
        condition_dropout: fraction of examples whose condition is dropped, for classifier-free guidance. At 1 no
            condition is ever given, and therefore the run draws no images of captions and writes no captions of images.
        text_weight, image_weight, length_weight: factors of the losses in the total.
        t_min: smallest timestep drawn for images.
    """

    mode_weights: ImageModeWeights = dataclasses.field(default_factory=ImageModeWeights)
    image_schedule: GaussianSchedule = dataclasses.field(default_factory=GaussianSchedule)
    parameterisation: Literal["eps", "x0", "v", "flow"] = "v"
    image_loss: Literal["min_snr", "uniform"] = "min_snr"
    min_snr_gamma: PositiveFloat = 5.0
    condition_dropout: Fraction = CONDITION_DROPOUT
    text_weight: PositiveFloat = 1.0
    image_weight: PositiveFloat = 1.0
    length_weight: NonNegativeFloat = 0.1
    t_min: PositiveFloat = 1e-3

    def __post_init__(self) -> None:
        if not self.t_min < 1:
            raise InvalidValue(f"t_min must be below 1, found {self.t_min}", "t_min")
        if not self.modes:
            raise InvalidValue("mode_weights: expected at least one mode of weight above 0, found none", "mode_weights")
        if self.parameterisation == "v" and not self.image_schedule.variance_preserving:
            raise InvalidValue(
                "parameterisation 'v' needs a variance-preserving image_schedule, found "
                f"{self.image_schedule.name!r}; set parameterisation to 'flow' or choose another schedule",
                "parameterisation",
                "image_schedule.name",
            )

    @property
    def modes(self) -> tuple[ImageMode, ...]:
        """Modes that training uses."""
        return tuple(name for name in IMAGE_MODES if getattr(self.mode_weights, name) > 0)

    @property
    def trains_null_image(self) -> bool:
        """Whether training learns a null image for unknown images."""
        return "image_to_caption" in self.modes and self.condition_dropout > 0

    @property
    def trains_null_text(self) -> bool:
        """Whether training learns a null caption for unknown captions."""
        return "caption_to_image" in self.modes and self.condition_dropout > 0

    @property
    def fields(self) -> tuple[str, ...]:
        return ("images",)

    @property
    def stores(self) -> tuple[str, ...]:
        return ()

    @property
    def identity(self) -> dict[str, Any]:
        return {"parameterisation": self.parameterisation, "image_schedule": self.image_schedule.name}

    @property
    def untrained_lengths(self) -> dict[str, str]:
        """Uses in which the run cannot choose the length of a caption (`Capabilities.untrained_lengths`)."""
        return by_use(
            {
                "image_to_caption": untrained_lengths(self, given_latents=True),
                "image_text": untrained_lengths(self, given_latents=False),
            }
        )

    @property
    def image_uses(self) -> frozenset[Use]:
        """Uses of a run that follow from its modes."""
        given = self.condition_dropout < 1  # a mode whose condition is always dropped is never trained with it
        uses: dict[Use, bool] = {
            "caption_to_image": given and "caption_to_image" in self.modes,
            "image_to_caption": given and "image_to_caption" in self.modes,
            "image_text": "joint" in self.modes,
        }
        return frozenset(use for use, able in uses.items() if able)
