"""Ancestral sampling (`ancestral`, `ddpm_cache`): the reverse process of any text process.

The process draws which tokens a step changes; the model's confidence does not choose them (MDLM, arXiv:2406.07524,
eq. 7).
"""

import torch
from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.process import TextProcess, TextProcessConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.base import DiffusionSampler, UnmaskingSampler, unfit
from mm_ldlm.sampling.denoising import (
    Canvas,
    State,
    TextSample,
    TimestepSource,
    denoising_loop,
)
from mm_ldlm.sampling.logit_filters import Draw, sharpen


@config
class AncestralConfig(DiffusionSampler):
    """Ancestral sampler (the reverse process), for every text process.

    Attributes:
        timestep: the timestep that the model receives (only if the noise is [MASK] and the model
            predicts x_0; other processes use the schedule).
        skip_idle: draw first which tokens a step unmasks, and call the model only for texts in which it unmasks one.
            The sample is the same with fewer calls (only for processes that read `timestep`).
    """

    kind: str = "ancestral"
    timestep: TimestepSource = "schedule"
    skip_idle: bool = False

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`. Every process fits, but not with every option."""
        default = self.timestep == "schedule" and not self.skip_idle
        if process is None or default or _unmasks_by_schedule(process):
            return super().refusal(process)
        needs = (
            "for timestep 'mask_ratio' and skip_idle a process whose only noise is [MASK] and a model that predicts x_0"
        )
        return unfit(self.kind, needs, process, instead="without these two options")

    def write(self, canvas: Canvas) -> TextSample:
        if _unmasks_by_schedule(canvas.diffusion.traits):
            return unmask_by_schedule(canvas, self, timestep=self.timestep, skip_idle=self.skip_idle)
        return reverse_process(canvas, self)


@config
class DdpmCacheConfig(UnmaskingSampler):
    """Ancestral sampling that calls the model only in the steps that unmask a token (MDLM, arXiv:2406.07524).

    MDLM keeps the output between these steps, for models whose output depends only on the tokens. Here the model is
    called with the time of its step, so that every model fits, and no output is kept.
    """

    kind: str = "ddpm_cache"
    timestep: TimestepSource = "schedule"

    def write(self, canvas: Canvas) -> TextSample:
        return unmask_by_schedule(canvas, self, timestep=self.timestep, skip_idle=True)


def unmask_by_schedule(
    canvas: Canvas, sampler: DiffusionSampler, *, timestep: TimestepSource, skip_idle: bool
) -> TextSample:
    """Unmask each mask with probability `(α_s − α_t)/(1 − α_t)` per step: the reverse process of absorbing diffusion.

    Which masks a step unmasks does not depend on the model. `skip_idle` therefore draws them first and evaluates only
    the texts in which the step unmasks a token. The sample is the same, with at most as many calls as tokens.
    """

    def query(state: State) -> Tensor:
        return state.masked & (state.uniform("unmask") < state.grid.unmask_fraction(state.step).unsqueeze(1))

    return denoising_loop(canvas, sampler, timestep=timestep, query=query, skip_idle=skip_idle)


def reverse_process(canvas: Canvas, sampler: DiffusionSampler) -> TextSample:
    """Draw x_1 from the prior and take the reverse steps to t = 0; a step may change any open token again.

    Temperature, top-k and top-p apply to x_θ. If none of them is set, a process whose model predicts scores draws its
    step from the scores themselves (`TextProcess.score_step`). `log_probs` are the log-probabilities of the final
    tokens under the x_θ of the last step that evaluated them.
    """
    process, steps = canvas.diffusion, sampler.steps
    noise_BL = process.prior(canvas.tokens, canvas.writable_BL, canvas.generator.fork("prior"))
    sample = TextSample.start(noise_BL)
    for step in range(steps):
        scored_BL = process.scored(sample.tokens, canvas.writable_BL)
        rows_A = scored_BL.any(dim=1).nonzero().squeeze(1)
        if not rows_A.numel():
            break
        t_B, s_B = (time_of(at, steps, canvas.tokens) for at in (step, step + 1))
        found = canvas.guided_log_x0(sample.tokens, t_B, rows_A, scored_BL, guidance=sampler.guidance)
        sample = reverse_step(
            process, sample, scored_BL, *found, step=step, t_B=t_B, s_B=s_B, generator=canvas.generator, draw=sampler
        )
        sample = sample.called(rows_A, guidance=sampler.guidance)
    return sample


def reverse_step(
    process: TextProcess,
    sample: TextSample,
    scored_BL: Tensor,
    log_x0_MV: Tensor,
    output_MV: Tensor,
    *,
    step: int,
    t_B: Tensor,
    s_B: Tensor,
    generator: RowGenerator,
    draw: Draw,
) -> TextSample:
    """Write x_s at the scored positions by one reverse step from t to s; all steps share `generator`.

    `output_MV` is the model's output. It is read only if it is scores and `draw` leaves x_θ as it is.
    """
    canvas_BL, row_M, stream = sample.tokens, scored_BL.nonzero()[:, 0], generator.fork(step)
    uniform_BL2 = torch.stack([stream.fork(name).uniform(canvas_BL.shape[1]) for name in ("unmask", "token")], dim=-1)
    t_M, s_M, noisy_M, uniform_M2 = t_B[row_M], s_B[row_M], canvas_BL[scored_BL], uniform_BL2[scored_BL]
    if process.traits.predicts_scores and draw.changes_nothing:
        drawn_M = process.score_step(output_MV, noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)
    else:
        drawn_M = process.reverse_step(sharpen(log_x0_MV, draw), noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)
    log_probs_BL = sample.log_probs.masked_scatter(scored_BL, chosen_log_probs(log_x0_MV, drawn_M))
    return sample.written(scored_BL, canvas_BL.masked_scatter(scored_BL, drawn_M), log_probs_BL, step)


def chosen_log_probs(log_x0_MV: Tensor, token_M: Tensor) -> Tensor:
    """Return log x_θ (M,) of the drawn tokens; 0 for noise outside the vocabulary, such as [MASK]."""
    word_M = token_M < log_x0_MV.shape[1]
    found_M = log_x0_MV.gather(1, torch.where(word_M, token_M, 0)[:, None])[:, 0]
    return torch.where(word_M, found_M, 0.0).float()


def time_of(step: int, steps: int, tokens_BL: Tensor) -> Tensor:
    """Return the time (B,) before a step of an even grid from 1 to 0, float64."""
    return torch.full(tokens_BL.shape[:1], 1 - step / steps, dtype=torch.float64, device=tokens_BL.device)


def _unmasks_by_schedule(process: TextProcessConfig) -> bool:
    return process.only_masks and not process.predicts_scores
