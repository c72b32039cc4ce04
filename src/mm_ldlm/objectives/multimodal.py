"""Multimodal objective: diffusion of a text and of its sentence latent, in the modes of docs/modes.md.

Its cycle consistency compares text → latent → text and latent → text → latent, each in two passes.

text → latent → text: the latent is the estimate of x_0 from the clean text and a latent of pure noise (t = 1), in one
pass. The second pass predicts the noised text given this estimate, in the place of the encoder's latent. Gradients
reach both passes; nothing is sampled.

latent → text → latent: the first pass predicts every token from the latent and a text that is pure noise (t = 1). The
second pass reads the expected embedding of each position under these distributions, and estimates x_0 from pure noise.
Gradients reach both passes. The expected embedding is a relaxation: the model never reads it in sampling, and the
distributions of the positions are independent, because a single pass predicts them.

The length of the text is given in both. B examples, L positions, V vocabulary, d latent dimension.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from mm_ldlm.core import (
    ConfigurationError,
    NonNegativeFloat,
    NonNegativeInt,
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
from mm_ldlm.objectives.base import Batch, Losses, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.text_and_modality import ModalityObjective, ModalityOptions, Roles, positive_weights
from mm_ldlm.objectives.text_loss import NoisyTexts, score_tokens

# -- cycle consistency -------------------------------------------------------------------------------------------------


@config
class CycleConfig:
    """Cycle losses, which a weight of 0 switches off.

    Attributes:
        text_weight: factor of text → latent → text, which steps of the mode l2t add.
        latent_weight: factor of latent → text → latent, which steps of the mode t2l add.
        ramp_steps: number of steps in which both factors grow linearly from 0; 0 for none.
    """

    text_weight: NonNegativeFloat = 0.0
    latent_weight: NonNegativeFloat = 0.0
    ramp_steps: NonNegativeInt = 0

    @property
    def weights(self) -> dict[str, float]:
        """Factor of each cycle loss that is on."""
        found = {"cycle_text_loss": self.text_weight, "cycle_latent_loss": self.latent_weight}
        return {name: weight for name, weight in found.items() if weight > 0}

    def ramp(self, step: int) -> float:
        """Compute the fraction of the factors at a step, which counts from 0."""
        return 1.0 if self.ramp_steps == 0 else min(step / self.ramp_steps, 1.0)


def text_cycle(
    objective: ModalityObjective, model: Any, batch: Batch, noisy: NoisyTexts, inputs: dict[str, Any],
    generator: RowGenerator,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the text loss of a step given the model's own estimate of the latent from the clean text.

    Args:
        inputs: arguments of the model in the first pass of the step.

    Returns:
        The sum over tokens, and their number.
    """
    latents_Bd = _estimate(objective, model, batch, generator, batch.tokens_BL)
    out = model(noisy.tokens_BL, **{**inputs, "latents_Bd": latents_Bd, "null_latent_B": None, "heads": ("text",)})
    tokens = score_tokens(objective.process, out.logits, batch, noisy)
    return torch.where(tokens.scored, tokens.found.weighted_M, 0.0).sum(), batch.valid_BL.sum()


def latent_cycle(
    objective: ModalityObjective, model: Any, batch: Batch, generator: RowGenerator
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the mean squared error of latent → text → latent: its sum over examples, and their number."""
    x0_Bd, valid_BL, shape = batch.fields[objective.modality.field], batch.valid_BL, objective.shape
    ones_B = torch.ones(len(x0_Bd), device=x0_Bd.device)
    # The noise replaces every token, so that the distributions depend only on the latent and the length.
    noisy_BL = objective.process.prior(batch.tokens_BL, valid_BL, generator.fork("prior"))
    logits_BLV = model(
        noisy_BL, valid_BL=valid_BL, t_text_B=ones_B, latents_Bd=x0_Bd, t_latent_B=torch.zeros_like(ones_B),
        heads=("text",),
    ).logits  # fmt: skip
    words_V = torch.zeros(shape.vocab_size, dtype=torch.bool, device=x0_Bd.device)
    words_V[shape.word_ids] = True
    probs_BLV = logits_BLV[..., : shape.vocab_size].float().masked_fill(~words_V, -torch.inf).softmax(-1)
    tokens_BL = torch.where(valid_BL, objective.process.any_word, shape.pad_id)
    found_Bd = _estimate(objective, model, batch, generator.fork("latent"), tokens_BL, token_probs_BLV=probs_BLV)
    error_B = torch.where(batch.real_B, (found_Bd - x0_Bd).square().mean(1), 0.0)
    return error_B.sum(), batch.real_B.sum()


def _estimate(
    objective: ModalityObjective, model: Any, batch: Batch, generator: RowGenerator, tokens_BL: Tensor, **text: Tensor
) -> Tensor:
    """Estimate x_0 of the latent (B, d) from a given text and pure noise, in one pass with gradients."""
    noise_Bd = generator.normal(batch.fields[objective.modality.field].shape[1], dtype=torch.float32)
    ones_B = torch.ones(len(noise_Bd), device=noise_Bd.device)
    out = model(
        tokens_BL, valid_BL=batch.valid_BL, t_text_B=torch.zeros_like(ones_B), latents_Bd=noise_Bd, t_latent_B=ones_B,
        heads=("latent",), **text,
    )  # fmt: skip
    return objective.modality.x0(out.latent_Bd, noise_Bd, ones_B)


# -- modes and losses --------------------------------------------------------------------------------------------------


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
        cycle: cycle losses, text → latent → text and latent → text → latent (docs/modes.md).
    """

    modality: ClassVar[str] = "latent"
    field: ClassVar[str] = "latents"
    roles: ClassVar[Roles] = Roles(text="l2t", value="t2l", both="unconditional")
    freezes_inputs: ClassVar[bool] = True

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
    cycle: CycleConfig = dataclasses.field(default_factory=CycleConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            not self.frequencies,
            "loss_type_weights: expected at least one mode of weight above 0, found none",
            "loss_type_weights",
        )
        refuse_if(
            self.cycle.weights and not {"l2t", "t2l"} <= set(self.modes),
            f"cycle losses need the modes l2t and t2l, found {', '.join(self.modes)}; choose mode 'mixed' or "
            "'sequential' with both, or set cycle.text_weight and cycle.latent_weight to 0",
            "cycle",
            "mode",
        )
        refuse_if(
            self.cycle.weights and self.parameterisation == "eps",
            "cycle losses need an estimate of the latent from pure noise, which parameterisation 'eps' does not "
            "give; choose x0, v or flow",
            "cycle",
            "parameterisation",
        )
        refuse_if(
            self.cycle.latent_weight > 0 and self.process.predicts_scores,
            "the cycle needs a process whose model predicts the tokens, found "
            f"{self.process.kind!r}, whose model predicts scores; set it to 0, or choose 'absorbing'",
            "cycle.latent_weight",
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
    """Losses of text, latent and length for one mode per step, and of the cycles."""

    config: MultimodalConfig

    def __init__(self, config: MultimodalConfig, shape: DataShape, *, process: Any) -> None:
        super().__init__(config, shape, process=process)
        self.weights |= config.cycle.weights
        self.units |= {"cycle_text_loss": "tokens", "cycle_latent_loss": "examples"}

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Choose the mode of a step, the same on all ranks and in all micro-batches."""
        if self.config.mode == "sequential":
            return self.kinds[(step // self.config.sequential_steps) % len(self.kinds)]
        return super().kind(generator, step=step)

    def further_losses(
        self, model: Any, batch: Batch, noisy: NoisyTexts | None, inputs: dict[str, Any], generator: RowGenerator, *,
        kind: str, step: int,
    ) -> Losses:  # fmt: skip
        """Compute the cycle losses of steps of l2t and t2l, times the ramp, and the same numbers without it.

        In evaluation mode there is no ramp, so that validation losses of different steps can be compared.
        """
        cycle, losses = self.config.cycle, Losses()
        ramp = cycle.ramp(step) if self.training else 1.0
        if ramp > 0 and cycle.text_weight > 0 and kind == "l2t":
            assert noisy is not None
            total, count = text_cycle(self, model, batch, noisy, inputs, generator.fork("text_cycle"))
            losses |= {"cycle_text_loss": (ramp * total, count), "cycle_text": (total.detach(), count)}
        if ramp > 0 and cycle.latent_weight > 0 and kind == "t2l":
            total, count = latent_cycle(self, model, batch, generator.fork("latent_cycle"))
            losses |= {"cycle_latent_loss": (ramp * total, count), "cycle_latent": (total.detach(), count)}
        return losses
