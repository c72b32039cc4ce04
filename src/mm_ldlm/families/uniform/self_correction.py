"""`self_correction`: ancestral sampling, then single tokens that the model finds implausible are drawn again.

GIDD (arXiv:2503.04482), self-correction step. It needs a process whose noise includes words, because only its model has
learned to judge the tokens that a text already has.
"""

from typing import Annotated

import torch
from torch import Tensor

from mm_ldlm.core import Repeats, bounded, config
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.sampling.ancestral import chosen_log_probs, reverse_process
from mm_ldlm.sampling.base import DiffusionSampler, unfit
from mm_ldlm.sampling.denoising import Canvas, TextSample
from mm_ldlm.sampling.limits import Steps, Temperature
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
    correction_temperature: Temperature = 0.1
    correction_time: Annotated[float, bounded(gt=0, le=1)] = 0.01
    patience: Repeats = 32

    def most_calls(self, length: int) -> int:
        """See `TextSampler.most_calls`: each correction is a further step."""
        return (self.steps + self.corrections) * (1 if self.guidance == 1.0 else 2)

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`. Only processes whose noise includes words fit."""
        if process is not None and process.revises:
            return None
        needs = "a process whose noise includes words, such as 'uniform' or 'gidd' with p_uniform above 0"
        return unfit(self.kind, needs, process)

    def write(self, canvas: Canvas) -> TextSample:
        sample, open_BL = reverse_process(canvas, self), canvas.writable_BL
        draw = self.override(temperature=self.correction_temperature)
        generator = canvas.generator.fork("correct")
        active_B = open_BL.any(dim=1)
        best_B, waited_B = (torch.zeros_like(sample.calls_per_row) for _ in range(2))
        t_B = torch.full(active_B.shape, self.correction_time, dtype=torch.float64, device=active_B.device)
        for number in range(self.corrections):
            rows_A = active_B.nonzero().squeeze(1)
            if not rows_A.numel():
                break
            asked_BL = open_BL & active_B[:, None]
            log_x0_MV, _ = canvas.guided_log_x0(sample.tokens, t_B, rows_A, asked_BL, guidance=draw.guidance)
            uniform_BL = generator.fork(number).uniform(open_BL.shape[1])
            write_BL, drawn_BL, log_prob_BL = _proposal(log_x0_MV, sample.tokens, asked_BL, uniform_BL, draw)
            sample = sample.written(write_BL, drawn_BL, log_prob_BL, self.steps + number)
            sample = sample.called(rows_A, guidance=draw.guidance)
            likely_M = log_x0_MV.argmax(1) == sample.tokens[asked_BL]
            score_B = torch.zeros_like(asked_BL).masked_scatter(asked_BL, likely_M).sum(dim=1)
            waited_B = torch.where(score_B > best_B, 0, waited_B + 1)
            best_B = torch.maximum(best_B, score_B)
            active_B = active_B & write_BL.any(dim=1) & (waited_B < self.patience)
        return sample


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
