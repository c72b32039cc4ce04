"""Diffusion of a text and of one Gaussian modality: a continuous value of each example, such as a latent or an image.

The text follows a discrete process, the modality a Gaussian one, each at its own timestep; a timestep of 0 means that a
modality is given (UniDiffuser, arXiv:2303.06555). An objective of a modality states its name, its field and its modes.

B examples, L positions, M scored positions, V vocabulary, d dimensions.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import Fraction, NonNegativeFloat, PositiveFloat, config, refuse_if
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule, Scales, SmallestTime
from mm_ldlm.diffusion.times import antithetic
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import (
    Batch,
    Losses,
    Objective,
    ObjectiveConfig,
    Unit,
)
from mm_ldlm.objectives.condition_dropout import CONDITION_DROPOUT, dropped
from mm_ldlm.objectives.gaussian_generation import ModalityGeneration
from mm_ldlm.objectives.self_conditioning import first_estimate
from mm_ldlm.objectives.text_loss import NoisyTexts, by_time, corrupt, length_loss, text_losses


class NoisyValues(NamedTuple):
    """Values of the examples, noised at their timesteps."""

    x0_Bd: Tensor
    x_t_Bd: Tensor
    noise_Bd: Tensor
    t_B: Tensor
    scales: Scales


class GaussianModality(nn.Module):
    """Noise and loss of a modality; it holds the schedule, whose parameters are trained, if it has any."""

    schedule: GaussianSchedule

    def __init__(self, config: "ModalityOptions") -> None:
        super().__init__()
        self.config, self.name, self.field = config, config.modality, config.field
        self.parameterisation = config.parameterisation
        self.schedule = getattr(config, f"{self.name}_schedule").build()

    def corrupt(self, batch: Batch, generator: RowGenerator) -> NoisyValues:
        """Noise the values of a batch, each at its own timestep."""
        x0_Bd = batch.fields[self.field]
        t_B = value_times(batch, generator.fork(f"{self.name}_time"), t_min=self.config.t_min)
        noise_Bd = generator.fork(f"{self.name}_noise").normal(x0_Bd.shape[1], dtype=torch.float32)
        scales = self.schedule.scales(t_B)
        return NoisyValues(x0_Bd, gaussian.add_noise(x0_Bd, noise_Bd, scales), noise_Bd, t_B, scales)

    def x0(self, prediction_Bd: Tensor, x_t_Bd: Tensor, t_B: Tensor) -> Tensor:
        """Estimate x_0 (B, d) from a prediction at the times `t_B`."""
        at = self.schedule.scales(t_B)
        return gaussian.to_x0_and_eps(prediction_Bd.float(), self.parameterisation, x_t_Bd, at)[0]

    def losses(self, prediction_Bd: Tensor, noisy: NoisyValues, real_B: Tensor) -> Losses:
        """Sum over examples w(SNR) · the mean over d of the squared error in the parameterisation: `{name}_loss`.

        The statistics are the cosine of the estimated x_0 to the true one, the noise level, and the error by time.
        """
        kind, scales, name = self.parameterisation, noisy.scales, self.name
        want_Bd = gaussian.target(kind, noisy.x0_Bd, noisy.noise_Bd, scales)
        w_B = gaussian.loss_weight(
            getattr(self.config, f"{name}_loss"), scales.snr_B, parameterisation=kind, gamma=self.config.min_snr_gamma
        )
        error_B = torch.where(real_B, (prediction_Bd.float() - want_Bd).square().mean(1), 0.0)
        count = real_B.sum()
        losses: Losses = {f"{name}_loss": ((w_B * error_B).sum(), count)}
        with torch.no_grad():
            x0_hat_Bd, _ = gaussian.to_x0_and_eps(prediction_Bd.float(), kind, noisy.x_t_Bd, scales)
            cosine_B = torch.where(real_B, F.cosine_similarity(x0_hat_Bd, noisy.x0_Bd, dim=1), 0.0)
            losses[f"{name}_cosine"] = (cosine_B.sum(), count)
            losses["noise_level"] = (torch.where(real_B, scales.noise_B, 0.0).sum(), count)
            losses |= by_time(f"{name}_error", error_B.detach(), noisy.t_B, real_B.float())
        return losses


def value_times(batch: Batch, generator: RowGenerator, *, t_min: float) -> Tensor:
    """Draw timesteps (B,), low-discrepancy over the global batch and independent of the texts' order."""
    everyone = torch.arange(batch.global_size, device=batch.position_B.device)
    order = torch.argsort(RowGenerator(generator.seed, everyone).fork("comb").uniform())
    index_B = order[batch.position_B.clamp(max=batch.global_size - 1)]
    return antithetic(generator.shared_uniform(), index_B, batch.global_size, t_min)


# -- options -----------------------------------------------------------------------------------------------------------


class Roles(NamedTuple):
    """Names of the modes of an objective, by what is noised."""

    text: str
    """the text; the modality is given"""
    value: str
    """the modality; the text is given"""
    both: str
    """both, each at its own timestep"""


@config
class ModalityOptions(ObjectiveConfig):
    """Options of the objectives of a text and a Gaussian modality; subclasses name the modality and its modes.

    Attributes:
        parameterisation: what the model predicts of the modality.
        min_snr_gamma: γ of the weight `min_snr`.
        condition_dropout: fraction of examples whose condition is dropped, for classifier-free guidance. At 1 no
            condition is ever given.
        text_weight, length_weight: factors of the losses in the total.
        t_min: smallest timestep drawn for the modality.
    """

    modality: ClassVar[str]
    """Name of the modality, the prefix of its parts, losses and statistics"""
    field: ClassVar[str]
    """Field of a batch with its values"""
    roles: ClassVar[Roles]
    freezes_inputs: ClassVar[bool] = False
    """Whether a run of a single mode freezes the input layers of the given modality, if its weights are trained"""
    length_in_every_step: ClassVar[bool] = False
    """Whether steps that give the text train the distribution over lengths too"""
    self_condition: ClassVar[bool] = False
    z_loss: ClassVar[float] = 0.0

    kind: str
    parameterisation: Literal["eps", "x0", "v", "flow"] = "v"
    min_snr_gamma: PositiveFloat = 5.0
    condition_dropout: Fraction = CONDITION_DROPOUT
    text_weight: PositiveFloat = 1.0
    length_weight: NonNegativeFloat = 0.1
    t_min: SmallestTime = 1e-3

    def __post_init__(self) -> None:
        key = f"{self.modality}_schedule"
        schedule = getattr(self, key)
        refuse_if(
            self.parameterisation == "v" and not schedule.variance_preserving,
            f"parameterisation 'v' needs a variance-preserving {key}, found {schedule.kind!r}; set "
            "parameterisation to 'flow' or choose another schedule",
            "parameterisation",
            f"{key}.kind",
        )

    @property
    @abstractmethod
    def frequencies(self) -> Mapping[str, float]:
        """Relative frequency of each mode that training uses."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes that training uses."""
        return tuple(self.frequencies)

    @property
    def single_mode(self) -> str | None:
        """The only mode of a run, whose idle parts are frozen; None if there are several."""
        return self.modes[0] if len(self.modes) == 1 else None

    @property
    def trains_null_value(self) -> bool:
        """Whether training learns a null value for unknown values of the modality."""
        return self.roles.text in self.modes and self.condition_dropout > 0

    @property
    def trains_null_text(self) -> bool:
        """Whether training learns a null text for unknown texts."""
        return self.roles.value in self.modes and self.condition_dropout > 0

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    @property
    def identity(self) -> dict[str, Any]:
        key = f"{self.modality}_schedule"
        return {"parameterisation": self.parameterisation, key: getattr(self, key).kind}


def positive_weights(weights: Any) -> dict[str, float]:
    """Return the modes of a configuration of weights that have a weight above 0, in its order."""
    found = {field.name: float(getattr(weights, field.name)) for field in dataclasses.fields(weights)}
    return {name: weight for name, weight in found.items() if weight > 0}


# -- objective ---------------------------------------------------------------------------------------------------------


class ModalityObjective(Objective):
    """Losses of text, modality and length for one mode per step.

    Args:
        process: built text process, or None if a subclass noises texts in another way.
    """

    config: Any

    def __init__(self, config: Any, shape: DataShape, *, process: Any) -> None:
        super().__init__(config, shape)
        name = config.modality
        self.process = process
        self.modality = GaussianModality(config)
        self.weights: dict[str, float] = {
            "text_loss": config.text_weight, f"{name}_loss": getattr(config, f"{name}_weight"),
            "length_loss": config.length_weight, "z_loss": config.z_loss,
        }  # fmt: skip
        self.units: dict[str, Unit] = {
            "text_loss": "tokens", f"{name}_loss": "examples", "length_loss": "examples", "z_loss": "tokens",
        }  # fmt: skip
        self.kinds = config.modes
        self.idle_parts = frozenset({"length_head"} if config.length_weight == 0 else ())

    # -- queries of the training loop ---------------------------------------------------------------------------------

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Draw the mode of a step, the same on all ranks and in all micro-batches."""
        if len(self.kinds) == 1:
            return self.kinds[0]
        drawn, weights = generator.fork("mode").shared_uniform(), list(self.config.frequencies.values())
        edges = [sum(weights[: i + 1]) / sum(weights) for i in range(len(weights))]
        return next((name for name, edge in zip(self.kinds, edges, strict=True) if drawn < edge), self.kinds[-1])

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        """Return the parts that a run of a single mode does not train (docs/modes.md)."""
        name, roles, mode = self.modality.name, self.config.roles, self.config.single_mode
        if mode not in (roles.text, roles.value):
            return frozenset()
        if mode == roles.text:
            idle, given = {f"{name}_head", "null_text"}, {f"{name}_encoder"}
        else:
            idle, given = {"text_head", "length_head", f"null_{name}"}, {"text_embedding"}
        return frozenset(idle | given if trained and self.config.freezes_inputs else idle)

    def generative_model(self, model: nn.Module) -> ModalityGeneration:
        return ModalityGeneration(model, self.shape, self.process, self.config, modality=self.modality)

    # -- the losses of a micro-batch ----------------------------------------------------------------------------------

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        config, roles = self.config, self.config.roles
        dropped_B = dropped(generator, config.condition_dropout)
        zeros_B = torch.zeros(len(batch.examples_B), device=batch.examples_B.device)

        # A modality that is not noised is given, or replaced by its learned null where the condition is dropped.
        noisy, inputs = None, dict[str, Any]()
        if kind != roles.value:
            noisy, inputs = self.corrupt_texts(model, batch, generator)
        values = None if kind == roles.text else self.modality.corrupt(batch, generator)
        x0_Bd = batch.fields[config.field]
        tokens_BL = batch.tokens_BL if noisy is None else noisy.tokens_BL
        inputs |= {
            "valid_BL": batch.valid_BL,
            "t_text_B": zeros_B if noisy is None else noisy.t_B,
            "latents_Bd": x0_Bd if values is None else values.x_t_Bd,
            "t_latent_B": zeros_B if values is None else values.t_B,
        }
        if kind == roles.text:
            inputs["null_latent_B"] = dropped_B
        elif kind == roles.value:
            inputs["null_text_B"] = dropped_B
        # The length head reads the clean value, whatever the trunk reads. Where the condition is dropped, the head
        # learns the marginal distribution of lengths.
        inputs["length_latents_Bd"], inputs["null_length_B"] = x0_Bd, dropped_B
        if config.self_condition and values is not None:
            inputs["self_condition_Bd"] = first_estimate(model, tokens_BL, inputs, generator, x0=self.modality.x0)
        want_length = config.length_weight > 0 and (noisy is not None or config.length_in_every_step)
        wanted = {"text": noisy is not None, "latent": values is not None, "length": want_length}
        inputs["heads"] = tuple(name for name, here in wanted.items() if here)
        if noisy is not None:
            inputs["logits_at"] = noisy.logits_at(fixed_shapes=self.fixed_shapes)
        out = model(tokens_BL, **inputs)

        losses: Losses = {}
        if noisy is not None:
            losses |= self.text_losses(out.logits, batch, noisy)
        if values is not None:
            losses |= self.modality.losses(out.latent_Bd, values, batch.real_B)
        if want_length:
            losses |= length_loss(out.length_logits, batch)
        return losses

    def corrupt_texts(
        self, model: Any, batch: Batch, generator: RowGenerator
    ) -> tuple[NoisyTexts, dict[str, Any]]:  # fmt: skip
        """Corrupt the texts, each at its own timestep; return further arguments of the model with them."""
        return corrupt(self.process, batch, generator), {}

    def text_losses(self, logits: Tensor, batch: Batch, noisy: NoisyTexts) -> Losses:
        """Compute `text_loss` and its statistics."""
        return text_losses(self.process, logits, batch, noisy, z_loss=self.config.z_loss > 0)
