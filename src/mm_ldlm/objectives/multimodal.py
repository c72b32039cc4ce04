"""Multimodal objective: diffusion of a text and of its sentence latent, in the modes of docs/modes.md.

B examples, L positions, d latent dimension.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from mm_ldlm.core import (
    ConfigurationError,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    config,
    refuse_if,
)
from mm_ldlm.diffusion.masked import AbsorbingConfig
from mm_ldlm.diffusion.process import TEXT_PROCESSES
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GAUSSIAN_SCHEDULES, CosineLatents
from mm_ldlm.models.base import DataShape, TextAndLatentModel
from mm_ldlm.objectives.base import require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.text_and_modality import ModalityObjective, ModalityOptions, Roles, positive_weights

_GUIDED = ("l2t", "unconditional", "infill_given_latent", "edit", "interpolate")
"""Uses whose texts can be guided, where the null latent is learned and a latent is given"""


@config
class ModeWeights:
    """Relative frequencies at which `mixed` draws the modes; `sequential` skips modes of weight 0."""

    l2t: NonNegativeFloat = 1.0
    t2l: NonNegativeFloat = 1.0
    unconditional: NonNegativeFloat = 1.0


@config
class MultimodalConfig(ModalityOptions):
    """Kind `multimodal`: text and latent with separate timesteps, in the modes l2t, t2l and unconditional.

    Attributes:
        mode: what is noised and predicted (docs/modes.md).
        loss_type_weights: relative frequencies of the modes, for `mixed` and `sequential`.
        sequential_steps: number of consecutive steps that `sequential` trains one mode.
        process: text process, with its own schedule and smallest timestep.
        latent_schedule: Gaussian noise schedule of the latents.
        latent_loss: weight of the latent loss as a function of the SNR.
        self_condition: give the model its own previous x_0 estimate in half of the steps.
        latent_weight, z_loss: factors of the losses in the total.
    """

    modality: ClassVar[str] = "latent"
    field: ClassVar[str] = "latents"
    roles: ClassVar[Roles] = Roles(text="l2t", value="t2l", both="unconditional")
    freezes_inputs: ClassVar[bool] = True
    RETIRED: ClassVar[dict[str, Any]] = {"cycle": {"text_weight": 0.0, "latent_weight": 0.0, "ramp_steps": 0}}

    kind: str = "multimodal"
    mode: Literal["unconditional", "l2t", "t2l", "mixed", "sequential"] = "mixed"
    loss_type_weights: ModeWeights = dataclasses.field(default_factory=ModeWeights)
    sequential_steps: PositiveInt = 1
    process: Annotated[Any, TEXT_PROCESSES] = dataclasses.field(default_factory=AbsorbingConfig)
    latent_schedule: Annotated[Any, GAUSSIAN_SCHEDULES] = dataclasses.field(default_factory=CosineLatents)
    latent_loss: Literal["min_snr", "uniform"] = "min_snr"
    self_condition: bool = False  # type: ignore[misc]
    latent_weight: PositiveFloat = 0.1
    z_loss: NonNegativeFloat = 0.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            not self.frequencies,
            "expected at least one mode of weight above 0, found none",
            "loss_type_weights",
        )

    @property
    def frequencies(self) -> dict[str, float]:
        return positive_weights(self.loss_type_weights) if self.mode in ("mixed", "sequential") else {self.mode: 1.0}

    @property
    def single_mode(self) -> str | None:
        return self.mode if self.mode in self.roles else None

    @property
    def length_in_every_step(self) -> bool:  # type: ignore[override]
        """`mixed` trains the length head in every step, only `t2l` freezes it."""
        return self.mode == "mixed"

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "process": self.process.kind}

    def noise_ids(self, shape: DataShape, **stores: Tensor) -> int:
        return int(self.process.build(shape).noise_ids)

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextAndLatentModel)
        require_no_stores(self)
        if model.self_condition != self.self_condition:
            raise ConfigurationError(
                f"parameter 'objective.self_condition' is {self.self_condition}, but 'model.self_condition' is "
                f"{model.self_condition}. Set both to the same value: a model can read its previous estimate only if "
                "the objective trains it to."
            )
        # A mode whose condition is always dropped is never trained with it.
        given = set(self.modes) if self.condition_dropout < 1 else set(self.modes) & {"unconditional"}
        both = "unconditional" in self.modes
        unknown_latent, unknown_text = both or self.trains_null_value, both or self.trains_null_text
        orders = {
            "together": both,
            "latent_first": unknown_text and bool(given & {"l2t", "unconditional"}),
            "text_first": unknown_latent and bool(given & {"t2l", "unconditional"}),
        }
        no_lengths, no_lengths_given = (untrained_lengths(self, given=latents) for latents in (False, True))
        uses = {
            **dict.fromkeys(("l2t", "infill_given_latent", "edit", "interpolate", "search"), "l2t" in given),
            "t2l": bool(given & {"t2l", "unconditional"}),
            "unconditional": any(orders.values()),
            "infill": unknown_latent,
            "score": unknown_latent and no_lengths is None,
            "score_given_latent": "l2t" in given and no_lengths_given is None,
        }
        return Capabilities(
            uses=frozenset(use for use, able in uses.items() if able),
            fields=self.fields,
            likelihood="bound",
            untrained_lengths={
                **dict.fromkeys(("l2t", "interpolate"), no_lengths_given),
                **dict.fromkeys(("together", "text_first"), no_lengths),
                # A learned null text needs no length, which is then drawn given the latent.
                "latent_first": no_lengths_given if self.trains_null_text else no_lengths,
            },
            joint_orders=tuple(name for name, able in orders.items() if able),
            process=self.process,
            guided=frozenset(_GUIDED if self.trains_null_value else ()),
            trained_as=f"objective multimodal, modes {', '.join(self.modes)}",
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "MultimodalObjective":
        return MultimodalObjective(self, shape, process=self.process.build(shape))


def require_no_stores(objective: Any) -> None:
    """Raise ConfigurationError if the text process is made from stores, which this objective does not have."""
    if objective.process.stores:
        raise ConfigurationError(
            f"parameter 'objective.process.kind' is {objective.process.kind!r}, which is made from the stores "
            f"{', '.join(objective.process.stores)}; the objective {objective.kind!r} has processes without stores "
            "only, such as 'absorbing'. Choose one of them, or the objective 'text_diffusion'."
        )


class MultimodalObjective(ModalityObjective):
    """Losses of text, latent and length for one mode per step."""

    config: MultimodalConfig

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Choose the mode of a step, the same on all ranks and in all micro-batches."""
        if self.config.mode == "sequential":
            return self.kinds[(step // self.config.sequential_steps) % len(self.kinds)]
        return super().kind(generator, step=step)
