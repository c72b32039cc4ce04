"""`self_correction`: ancestral sampling, then single tokens that the model finds implausible are drawn again.

GIDD (arXiv:2503.04482), self-correction step. It needs a process whose noise includes words, because only its model has
learned to judge the tokens that a text already has.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from mm_ldlm.core.config import InvalidValue, NonNegativeFloat, PositiveFloat, Repeats, config
from mm_ldlm.diffusion.process import ProcessTraits, TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.ancestral import chosen_log_probs, log_x0_at, reverse_process
from mm_ldlm.sampling.base import DiffusionSampler, require_process
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample, open_positions
from mm_ldlm.sampling.limits import Steps, refuse_temperature
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens


@config
class SelfCorrectionConfig(DiffusionSampler):
    """The reverse process of `ancestral`, followed by corrections.

    A correction draws a token for every position from x_θ at a low temperature, and writes that one which differs from
    the text's own and is the most probable. A text is finished when no drawn token differs from its own, or when the
    number of its tokens that x_θ finds most probable has not risen for `patience` corrections.

    Attributes:
        corrections: number of corrections, at most; each is a model call.
        correction_temperature: of the draw of a correction; 0 takes the most probable token.
        correction_time: the time that the model receives, near 0: the text has hardly any noise.
        patience: see above.
    """

    kind: str = "self_correction"
    corrections: Steps = 32
    correction_temperature: NonNegativeFloat = 0.1
    correction_time: PositiveFloat = 0.01
    patience: Repeats = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_temperature(self.correction_temperature, name="correction_temperature")
        if not self.correction_time <= 1:
            raise InvalidValue(f"correction_time must be at most 1, found {self.correction_time}", "correction_time")

    def refusal(self, process: ProcessTraits | None) -> str | None:
        """See `TextSampler.refusal`. Only processes whose noise includes words fit."""
        if process is None or process.revises:
            return super().refusal(process)
        return (
            f"sampler 'self_correction' needs a process whose noise includes words, such as 'uniform' or 'gidd' with "
            f"p_uniform above 0; this model was trained with '{process.kind}', where a written token is final. "
            "Choose the sampler 'ancestral', or 'remdm_conf' if the only noise is [MASK]."
        )

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
            SamplingError: written tokens are final under the process.
        """
        process = require_process(self, process)
        open_BL = open_positions(denoise, tokens_BL, open_BL)
        sample = reverse_process(
            denoise, tokens_BL, process=process, steps=self.steps, generator=generator, draw=self.draw, open_BL=open_BL
        )
        return self._correct(denoise, sample, process=process, open_BL=open_BL, generator=generator.fork("correct"))

    def _correct(
        self,
        denoise: TextDenoiser,
        sample: TextSample,
        *,
        process: TextProcess,
        open_BL: Tensor,
        generator: RowGenerator,
    ) -> TextSample:
        draw = dataclasses.replace(self.draw, temperature=self.correction_temperature)
        price = 2 if draw.guidance != 1.0 else 1
        canvas_BL, log_probs_BL, steps_BL = sample.tokens, sample.log_probs, sample.steps
        calls_B, calls = sample.calls_per_row, sample.model_calls
        active_B = open_BL.any(dim=1)
        best_B, waited_B = torch.zeros_like(calls_B), torch.zeros_like(calls_B)
        t_B = torch.full(calls_B.shape, self.correction_time, dtype=torch.float64, device=calls_B.device)
        for number in range(self.corrections):
            rows_A = active_B.nonzero().squeeze(1)
            if not rows_A.numel():
                break
            asked_BL = open_BL & active_B[:, None]
            log_x0_MV, _ = log_x0_at(denoise, process, canvas_BL, t_B, rows_A, asked_BL, guidance=draw.guidance)
            uniform_BL = generator.fork(number).uniform(canvas_BL.shape[1])
            write_BL, drawn_BL, log_prob_BL = _proposal(log_x0_MV, canvas_BL, asked_BL, uniform_BL, draw)
            canvas_BL = torch.where(write_BL, drawn_BL, canvas_BL)
            log_probs_BL = torch.where(write_BL, log_prob_BL, log_probs_BL)
            steps_BL = steps_BL.masked_fill(write_BL, self.steps + number)
            calls_B, calls = calls_B.index_add(0, rows_A, torch.full_like(rows_A, price)), calls + price

            likely_BL = torch.zeros_like(asked_BL).masked_scatter(asked_BL, log_x0_MV.argmax(1) == canvas_BL[asked_BL])
            score_B = likely_BL.sum(dim=1)
            waited_B = torch.where(score_B > best_B, 0, waited_B + 1)
            best_B = torch.maximum(best_B, score_B)
            active_B = active_B & write_BL.any(dim=1) & (waited_B < self.patience)
        return TextSample(canvas_BL, log_probs_BL, steps_BL, calls_B, calls)


def _proposal(
    log_x0_MV: Tensor, canvas_BL: Tensor, asked_BL: Tensor, uniform_BL: Tensor, draw: Draw
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token for each asked position, and select that which differs from the text's own and is most probable.

    Returns the position to write (B, L), at most one a text; the drawn tokens (B, L); and their log x_θ (B, L).
    """
    drawn_M = draw_tokens(log_x0_MV, uniform_BL[asked_BL], draw)
    drawn_BL = canvas_BL.masked_scatter(asked_BL, drawn_M)
    nothing_BL = torch.full(canvas_BL.shape, -torch.inf, dtype=torch.float32, device=canvas_BL.device)
    log_prob_BL = nothing_BL.masked_scatter(asked_BL, chosen_log_probs(log_x0_MV, drawn_M))
    score_BL = torch.where(drawn_BL != canvas_BL, log_prob_BL, nothing_BL)
    best_B1 = score_BL.argmax(dim=1, keepdim=True)
    write_BL = torch.zeros_like(asked_BL).scatter(1, best_B1, score_BL.gather(1, best_B1) > -torch.inf)
    return write_BL, drawn_BL, log_prob_BL
