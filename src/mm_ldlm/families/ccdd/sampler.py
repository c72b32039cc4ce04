"""Joint sampler of CCDD: a text and the continuous states of its tokens are denoised together (arXiv:2510.03206).

The tokens take ancestral steps and the states DDIM steps, at the same times and with one model call per step. Guidance
compares the prediction given the states with the one whose states are dropped.

B texts, L positions, M positions whose logits are needed, d state dimension.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, SamplingError, config
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.base import DiffusionSampler, unfit
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser, TextSample
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.guidance import guide_prediction, no_condition
from mm_ldlm.sampling.joint import JointDenoiser, together


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatesDenoiser(TextDenoiser):
    """Denoiser of texts and of one continuous state per token, of `dim` dimensions."""

    predict: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(tokens_BL, t_text_B, states_BLd, t_state_B, scored_BL) → (logits_MV, clean states (B, L, d))."""
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
            noisy_BL: Tensor, t_B: Tensor, z_Bn: Tensor, t_state_B: Tensor, scored_BL: Tensor, previous: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            logits_MV, found_BLd = denoise.predict(noisy_BL, t_B, z_Bn.view(B, L, denoise.dim), t_state_B, scored_BL)
            if self.guidance != 1.0:
                every_B = torch.arange(B, device=noisy_BL.device)
                dropped_MV = denoise.logits(noisy_BL, t_B, every_B, scored_BL)
                # γ·log p_cond + (1−γ)·log p_uncond up to a constant, because the process normalises over the tokens
                # that are possible. Scores are guided in the same way, and have no constant to leave out.
                logits_MV = guide_prediction(logits_MV.float(), dropped_MV.float(), scale=self.guidance)
            return logits_MV, found_BLd.flatten(1)

        joint = JointDenoiser(predict=predict, latent_schedule=denoise.schedule, parameterisation="x0")
        # The numbers of the counter-based generator at one position do not depend on L, so that the states of a text do
        # not depend on the padding of its batch.
        text, _ = together(
            dataclasses.replace(canvas, denoise=joint), dim=L * denoise.dim, draw=self.draw,
            latent=DdimConfig(steps=self.steps, eta=self.eta),
        )  # fmt: skip
        price = 1 if self.guidance == 1.0 else 2
        return dataclasses.replace(
            text, calls_per_row=price * text.calls_per_row, model_calls=price * text.model_calls
        )  # fmt: skip
