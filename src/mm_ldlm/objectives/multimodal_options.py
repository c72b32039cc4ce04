"""Options of the multimodal objective: modes, schedules and loss weights."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from mm_ldlm.core.config import Fraction, InvalidValue, NonNegativeFloat, PositiveFloat, PositiveInt, config
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.objectives.condition_dropout import CONDITION_DROPOUT
from mm_ldlm.objectives.cycle import CycleConfig

Mode = Literal["unconditional", "l2t", "t2l", "mixed", "sequential"]
SINGLE_MODES: tuple[Mode, ...] = ("l2t", "t2l", "unconditional")


@config
class ModeWeights:
    """Relative frequencies at which `mixed` draws the modes; `sequential` skips modes of weight 0."""

    l2t: NonNegativeFloat = 1.0
    t2l: NonNegativeFloat = 1.0
    unconditional: NonNegativeFloat = 1.0


@config
class MultimodalOptions:
    """Mode, noise and loss weights of the multimodal objective.

    Attributes:
        mode: what is noised and predicted (docs/modes.md).
        loss_type_weights: relative frequencies of the modes, for `mixed` and `sequential`.
        sequential_steps: number of consecutive steps that `sequential` trains one mode.
        process: text process, with its own schedule and smallest timestep.
        latent_schedule: Gaussian noise schedule of the latents.
        parameterisation: what the latent head predicts.
        latent_loss: weight of the latent loss as a function of the SNR; `min_snr_gamma` is γ of `min_snr`.
        condition_dropout: fraction of examples whose condition is dropped, for classifier-free guidance.
        self_condition: give the model its own previous x_0 estimate in half of the steps.
        text_weight, latent_weight, length_weight, z_loss: factors of the losses in the total.
        t_min: smallest timestep drawn for latents.
        cycle: cycle losses, text → latent → text and latent → text → latent (docs/modes.md).
    """

    kind: str = "multimodal"
    mode: Mode = "mixed"
    loss_type_weights: ModeWeights = dataclasses.field(default_factory=ModeWeights)
    sequential_steps: PositiveInt = 1
    process: Annotated[Any, TEXT_PROCESSES] = dataclasses.field(default_factory=AbsorbingConfig)
    latent_schedule: GaussianSchedule = dataclasses.field(default_factory=GaussianSchedule)
    parameterisation: Literal["eps", "x0", "v", "flow"] = "v"
    latent_loss: Literal["min_snr", "uniform"] = "min_snr"
    min_snr_gamma: PositiveFloat = 5.0
    condition_dropout: Fraction = CONDITION_DROPOUT
    self_condition: bool = False
    text_weight: PositiveFloat = 1.0
    latent_weight: PositiveFloat = 0.1
    length_weight: NonNegativeFloat = 0.1
    z_loss: NonNegativeFloat = 0.0
    t_min: PositiveFloat = 1e-3
    cycle: CycleConfig = dataclasses.field(default_factory=CycleConfig)

    def __post_init__(self) -> None:
        if not self.t_min < 1:
            raise InvalidValue(f"t_min must be below 1, found {self.t_min}", "t_min")
        if self.mode in ("mixed", "sequential") and not any(
            getattr(self.loss_type_weights, name) > 0 for name in SINGLE_MODES
        ):
            raise InvalidValue(
                "loss_type_weights: expected at least one mode of weight above 0, found none", "loss_type_weights"
            )
        if self.parameterisation == "v" and not self.latent_schedule.variance_preserving:
            raise InvalidValue(
                "parameterisation 'v' needs a variance-preserving latent_schedule, found "
                f"{self.latent_schedule.name!r}; set parameterisation to 'flow' or choose another schedule",
                "parameterisation",
                "latent_schedule.name",
            )

        if self.cycle.weights and not {"l2t", "t2l"} <= set(self.modes):
            raise InvalidValue(
                f"cycle losses need the modes l2t and t2l, found {', '.join(self.modes)}; choose mode 'mixed' or "
                "'sequential' with both, or set cycle.text_weight and cycle.latent_weight to 0",
                "cycle",
                "mode",
            )
        if self.cycle.weights and self.parameterisation == "eps":
            raise InvalidValue(
                "cycle losses need an estimate of the latent from pure noise, which parameterisation 'eps' does not "
                "give; choose x0, v or flow",
                "cycle",
                "parameterisation",
            )

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Single modes that training uses."""
        if self.mode in SINGLE_MODES:
            return (self.mode,)
        return tuple(name for name in SINGLE_MODES if getattr(self.loss_type_weights, name) > 0)

    @property
    def trains_null_latent(self) -> bool:
        """Whether training learns a null latent for unknown latents; otherwise pure noise at t = 1 represents them."""
        return "l2t" in self.modes and self.condition_dropout > 0

    @property
    def trains_null_text(self) -> bool:
        """Whether training learns a null text for unknown texts; otherwise the prior at t = 1 represents them."""
        return "t2l" in self.modes and self.condition_dropout > 0
