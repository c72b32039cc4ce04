"""Joint sampler of CCDD: a text and the continuous states of its tokens are denoised together (arXiv:2510.03206).

The tokens take ancestral steps and the states DDIM steps, at the same times and with one model call per step. Guidance
compares the prediction given the states with the one whose states are dropped.

B texts, L positions, M positions whose logits are needed, d state dimension.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mm_ldlm.core.config import Fraction, config
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.base import DiffusionSampler, refuse_without_field, require_process
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample, open_positions
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.guidance import guide_prediction, refuse_without_condition
from mm_ldlm.sampling.joint import JointDenoiser, together


@config
class JointStatesConfig(DiffusionSampler):
    """Joint sampler of tokens and their states, for runs of the objective `ccdd`.

    Given tokens do not change; the states of all positions start from noise.

    Attributes:
        eta: of the DDIM steps of the states; 0 is deterministic, 1 has DDPM's variance.
    """

    kind: str = "joint_states"
    eta: Fraction = 0.0

    denoises: ClassVar[str] = "token_states"

    def sample(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        process: TextProcess | None,
        generator: RowGenerator,
        window: int | None = None,
        open_BL: Tensor | None = None,
    ) -> TextSample:
        """See `TextSampler.sample`.

        Raises:
            SamplingError: the model has no states, or guidance is requested and training never dropped them.
        """
        process = require_process(self, process)
        states = denoise.states
        if states is None:
            raise SamplingError(refuse_without_field(self.kind, self.denoises))
        if self.guidance != 1.0 and not states.dropped:
            raise refuse_without_condition(self.guidance)
        B, L = tokens_BL.shape

        def predict(
            canvas_BL: Tensor, t_B: Tensor, z_Bn: Tensor, t_state_B: Tensor, scored_BL: Tensor, previous: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            logits_MV, found_BLd = states.predict(canvas_BL, t_B, z_Bn.view(B, L, states.dim), t_state_B, scored_BL)
            if self.guidance != 1.0:
                every_B = torch.arange(B, device=canvas_BL.device)
                dropped_MV = denoise.logits(canvas_BL, t_B, every_B, scored_BL)
                # γ·log p_cond + (1−γ)·log p_uncond up to a constant, because the process normalises over the tokens
                # that are possible. Scores are guided in the same way, and have no constant to leave out.
                logits_MV = guide_prediction(logits_MV.float(), dropped_MV.float(), scale=self.guidance)
            return logits_MV, found_BLd.flatten(1)

        joint = JointDenoiser(
            predict=predict, process=process, latent_schedule=states.schedule, parameterisation="x0"
        )  # fmt: skip
        # The numbers of the counter-based generator at one position do not depend on L, so that the states of a text do
        # not depend on the padding of its batch.
        text = together(
            joint, tokens_BL, dim=L * states.dim, draw=self.draw, latent=DdimConfig(steps=self.steps, eta=self.eta),
            generator=generator, open_BL=open_positions(denoise, tokens_BL, open_BL),
        ).text  # fmt: skip
        if self.guidance == 1.0:
            return text
        return TextSample(text.tokens, text.log_probs, text.steps, 2 * text.calls_per_row, 2 * text.model_calls)
