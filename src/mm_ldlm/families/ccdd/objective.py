"""CCDD: diffusion of a text and of one continuous state per token, jointly (arXiv:2510.03206).

The tokens follow a text process and the states a Gaussian one: q(x_t, z_t given x_0, z_0) = q(x_t given x_0)
q(z_t given z_0). The model predicts the tokens and the clean states from both. In a fraction of the texts a learned
vector replaces every state, so that the model is also a text-only diffusion model: for guidance, and for a likelihood
bound of the text only (`CcddGeneration.text_denoiser`).

The joint sampler takes ancestral steps in the tokens and DDIM steps in the states, at the same times and with one model
call per step. Guidance compares the prediction given the states with the one whose states are dropped.

B examples, L positions, M scored positions, V vocabulary, d state dimension.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import Fraction, PositiveFloat, SamplingError, bounded, config
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GAUSSIAN_SCHEDULES, CosineLatents, GaussianSchedule, Scales
from mm_ldlm.families.ccdd.model import TextAndStatesModel
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.condition_dropout import CONDITION_DROPOUT, dropped
from mm_ldlm.objectives.generation import DenoiserGeneration
from mm_ldlm.objectives.text_and_modality import value_times
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig
from mm_ldlm.objectives.text_loss import by_time, corrupt, length_loss, text_losses
from mm_ldlm.sampling.base import DiffusionSampler, unfit
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser, TextSample
from mm_ldlm.sampling.gaussian import DdimConfig, LatentDenoiser
from mm_ldlm.sampling.guidance import guide_prediction, no_condition
from mm_ldlm.sampling.joint import together
from mm_ldlm.sampling.registry import text_sampler


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatesDenoiser(TextDenoiser):
    """Denoiser of texts and of one continuous state per token, of `dim` dimensions."""

    predict: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(tokens_BL, states_BLd, t_B of both, scored_BL) → (logits_MV, clean states (B, L, d))."""
    dim: int
    schedule: GaussianSchedule
    dropped: bool
    """Whether `logits`, which are those with dropped states, were trained, as guidance needs"""


@config
class JointStatesConfig(DiffusionSampler):
    """Joint sampler of tokens and their states, for runs of the objective `ccdd`.

    Given tokens do not change; the states of all positions start from noise.

    Attributes:
        eta: of the DDIM steps of the states; 0 is deterministic, 1 has DDPM's variance.
    """

    kind: str = "joint_states"
    eta: Fraction = 0.0

    denoises: ClassVar[str | None] = "token_states"

    def write(self, canvas: Canvas) -> TextSample:
        """Write a canvas.

        Raises:
            SamplingError: the model has no states, or guidance is requested and training never dropped them.
        """
        denoise = canvas.denoise
        if not isinstance(denoise, StatesDenoiser):
            raise SamplingError(unfit(self.kind, f"a model of the field '{self.denoises}'", canvas.diffusion.traits))
        if self.guidance != 1.0 and not denoise.dropped:
            raise no_condition(self.guidance)
        B, L = canvas.tokens.shape

        def predict(
            noisy_BL: Tensor, z_Bn: Tensor, t_B: Tensor, scored_BL: Tensor, previous: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            logits_MV, found_BLd = denoise.predict(noisy_BL, z_Bn.view(B, L, denoise.dim), t_B, scored_BL)
            if self.guidance != 1.0:
                every_B = torch.arange(B, device=noisy_BL.device)
                dropped_MV = denoise.logits(noisy_BL, t_B, every_B, scored_BL)
                # γ·log p_cond + (1−γ)·log p_uncond up to a constant, because the process normalises over the tokens
                # that are possible. Scores are guided in the same way, and have no constant to leave out.
                logits_MV = guide_prediction(logits_MV.float(), dropped_MV.float(), scale=self.guidance)
            return logits_MV, found_BLd.flatten(1)

        joint = LatentDenoiser(predict=predict, schedule=denoise.schedule, parameterisation="x0")
        # The numbers of the counter-based generator at one position do not depend on L, so that the states of a text do
        # not depend on the padding of its batch.
        text, _ = together(
            dataclasses.replace(canvas, denoise=joint), dim=L * denoise.dim, draw=self,
            latent=DdimConfig(steps=self.steps, eta=self.eta),
        )  # fmt: skip
        price = 1 if self.guidance == 1.0 else 2
        return dataclasses.replace(
            text, calls_per_row=price * text.calls_per_row, model_calls=price * text.model_calls
        )  # fmt: skip


# -- objective ---------------------------------------------------------------------------------------------------------


@config
class Power(GaussianSchedule):
    """Kind `power`: signal² = (1 − t)^exponent; with 1 it is α_t of masking at a constant rate."""

    kind: str = "power"
    exponent: PositiveFloat = 1.0

    def scales(self, t: Tensor) -> Scales:
        log_signal2 = self.exponent * torch.log1p(-t)
        return Scales(torch.exp(log_signal2 / 2), torch.sqrt(-torch.expm1(log_signal2)))


T_MIN = 1e-3
"""Smallest timestep of states with a separate timestep."""


@config
class CcddObjectiveConfig(TextDiffusionConfig):
    """Kind `ccdd`: a text process and a Gaussian process of the token states.

    Attributes:
        timesteps: "shared" (one timestep for the tokens and the states of a text, as in the paper) or "separate" (one
            draw for each).
        state_schedule: Gaussian noise schedule of the states.
        state_loss: weight of the squared error of the clean states: 1, or min(SNR, 5).
        state_weight: factor of the state loss in the total.
        condition_dropout: fraction of texts whose states are dropped. At 0 there is no text without states, and
            therefore no likelihood, no infilling, no guidance, and no sampler but `joint_states`. It is below 1,
            because nothing would learn the states.
    """

    kind: str = "ccdd"
    timesteps: Literal["shared", "separate"] = "shared"
    state_schedule: Annotated[Any, GAUSSIAN_SCHEDULES] = dataclasses.field(default_factory=CosineLatents)
    state_loss: Literal["uniform", "min_snr"] = "uniform"
    state_weight: PositiveFloat = 1.0
    condition_dropout: Annotated[float, bounded(ge=0, lt=1)] = CONDITION_DROPOUT

    @property
    def fields(self) -> tuple[str, ...]:
        return ("token_states",)

    @property
    def identity(self) -> dict[str, Any]:
        return {"process": self.process.kind, "state_schedule": self.state_schedule.kind}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextAndStatesModel)
        no_lengths, drops = untrained_lengths(self, given=None), self.condition_dropout > 0
        uses = {"unconditional": True, "infill": drops, "score": drops}
        return Capabilities(
            uses=frozenset(use for use, able in uses.items() if able),
            fields=self.fields,
            likelihood="bound" if no_lengths is None else "given_length",
            untrained_lengths={"unconditional": no_lengths},
            process=self.process,
            guided=frozenset({"unconditional"} if drops else ()),
            only_sampler=None if drops else "joint_states",
            trained_as=f"objective {self.kind}, process {self.process.kind}, "
            f"condition_dropout {self.condition_dropout}",
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "CcddObjective":
        return CcddObjective(self, shape, **stores)


class CcddObjective(TextDiffusion):
    """Losses of the text, of the states and of the length."""

    config: CcddObjectiveConfig
    schedule: GaussianSchedule

    def __init__(self, config: CcddObjectiveConfig, shape: DataShape, **stores: Tensor) -> None:
        super().__init__(config, shape, **stores)
        self.schedule = config.state_schedule.build()
        self.weights["state_loss"] = config.state_weight
        self.units["state_loss"] = "tokens"

    def generative_model(self, model: nn.Module) -> "CcddGeneration":
        return CcddGeneration(model, self.shape, self.process, self.config, schedule=self.schedule)

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        noisy = corrupt(self.process, batch, generator)
        dropped_B = dropped(generator, self.config.condition_dropout)
        t_state_B = noisy.t_B.float()
        if self.config.timesteps == "separate":
            t_state_B = value_times(batch, generator.fork("state_time"), t_min=T_MIN)
        # The states of a batch are padded to its own longest text; the tokens may be padded further.
        z0_BLd = batch.fields["token_states"].float()
        z0_BLd = F.pad(z0_BLd, (0, 0, 0, noisy.tokens_BL.shape[1] - z0_BLd.shape[1]))
        scales = self.schedule.scales(t_state_B)
        noise_BLd = generator.fork("state_noise").normal(*z0_BLd.shape[1:])
        out = model(
            noisy.tokens_BL, valid_BL=batch.valid_BL, t_text_B=noisy.t_B,
            states_BLd=gaussian.add_noise(z0_BLd, noise_BLd, scales),
            t_state_B=torch.where(dropped_B, 1.0, t_state_B), null_state_B=dropped_B,
            logits_at=noisy.logits_at(fixed_shapes=self.fixed_shapes),
        )  # fmt: skip
        losses = text_losses(self.process, out.logits, batch, noisy, z_loss=self.config.z_loss > 0)
        losses |= self._state_loss(out.states_BLd, z0_BLd, scales, t_state_B, batch, dropped_B)
        if self.config.length_weight > 0:
            losses |= length_loss(out.length_logits, batch)
        return losses

    def _state_loss(
        self, found_BLd: Tensor, z0_BLd: Tensor, scales: Scales, t_B: Tensor, batch: Batch, dropped_B: Tensor
    ) -> Losses:
        """Sum over tokens w(SNR) · the mean over d of the squared error; texts whose states are dropped have none."""
        w_B = gaussian.loss_weight(self.config.state_loss, scales.snr_B.float(), parameterisation="x0")
        chosen_BL = batch.valid_BL & ~dropped_B[:, None]
        error_BL = torch.where(chosen_BL, (found_BLd - z0_BLd).square().mean(2), 0.0)
        losses: Losses = {"state_loss": ((w_B[:, None] * error_BL).sum(), batch.valid_BL.sum())}
        with torch.no_grad():
            count_B = chosen_BL.sum(1).float()
            losses["state_error"] = (error_BL.detach().sum(), count_B.sum())
            losses |= by_time("state_error", error_BL.detach().sum(1), t_B, count_B)
        return losses


class CcddGeneration(DenoiserGeneration):
    """Joint samples of texts and states; samples and NELBO of the text only, with dropped states."""

    field = "token_states"

    def __init__(self, *args: Any, schedule: GaussianSchedule) -> None:
        super().__init__(*args)
        self.schedule = schedule

    def default_sampler(self, *, conditional: bool) -> Any:
        """The joint sampler; given part of a text, the default of the text process, with dropped states."""
        if conditional and self.config.condition_dropout > 0:
            return super().default_sampler(conditional=True)
        return text_sampler("joint_states", steps=32)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> StatesDenoiser:
        """Make the denoiser of the text only, whose states are dropped; `predict` is the joint prediction.

        With dropped states the model is a diffusion model of the text, so that the NELBO of the process bounds
        −log p(text). The text loss of training, given noised states, is not a bound for the text only, because the
        noised states contain information about the tokens (docs/families/ccdd.md).
        """
        if latents_Bd is not None:
            raise self._missing("texts given latents")
        return StatesDenoiser(
            logits=self._without_states, predict=self._joint, dim=self.dim, schedule=self.schedule,
            dropped=self.config.condition_dropout > 0,
        )  # fmt: skip

    def _joint(self, tokens_BL: Tensor, states_BLd: Tensor, t_B: Tensor, asked_BL: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model(
            tokens_BL, valid_BL=tokens_BL != self.shape.pad_id, t_text_B=t_B, states_BLd=states_BLd,
            t_state_B=t_B, logits_at=asked_BL,
        )  # fmt: skip
        return out.logits, out.states_BLd

    def _without_states(self, tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        if self.config.condition_dropout == 0:
            raise SamplingError(
                "expected a run that can write texts without token states, found one that was trained with "
                "objective.condition_dropout 0. Choose the sampler 'joint_states'."
            )
        zeros_ALd = torch.zeros((*tokens_AL.shape, self.dim), device=tokens_AL.device)
        return self.model(
            tokens_AL, valid_BL=tokens_AL != self.shape.pad_id, t_text_B=t_A, states_BLd=zeros_ALd,
            t_state_B=torch.ones_like(t_A), null_state_B=torch.ones_like(rows_A, dtype=torch.bool),
            logits_at=asked_AL, heads=("text",),
        ).logits  # fmt: skip
