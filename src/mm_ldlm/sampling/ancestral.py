"""Ancestral sampling: the reverse process of any text process.

The process draws which tokens a step changes; the model's confidence does not choose them (MDLM, arXiv:2406.07524,
eq. 7).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mm_ldlm.core.config import config
from mm_ldlm.diffusion.process import ProcessTraits, TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.base import DiffusionSampler, require_process
from mm_ldlm.sampling.denoising import (
    Logits,
    Query,
    State,
    TextDenoiser,
    TextSample,
    denoising_loop,
    guided,
    open_positions,
)
from mm_ldlm.sampling.guidance import guide_prediction, refuse_without_condition
from mm_ldlm.sampling.logit_filters import Draw, sharpen
from mm_ldlm.sampling.time_grid import TimestepSource, choose_timestep, make_grid


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

    def refusal(self, process: ProcessTraits | None) -> str | None:
        """See `TextSampler.refusal`. Every process fits, but not with every option."""
        default = self.timestep == "schedule" and not self.skip_idle
        if process is None or default or (process.only_masks and not process.predicts_scores):
            return super().refusal(process)
        return (
            "sampler 'ancestral': timestep 'mask_ratio' and skip_idle need a process whose only noise is [MASK] "
            f"and whose model predicts x_0, and this model was trained with '{process.kind}'. Set timestep to "
            "'schedule' and skip_idle to false."
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
        """See `TextSampler.sample`."""
        process = require_process(self, process)
        if process.mask_schedule is not None and not process.traits.predicts_scores:
            return unmask_by_schedule(
                denoise, tokens_BL, steps=self.steps, schedule=process.mask_schedule, generator=generator,
                draw=self.draw, open_BL=open_BL, timestep=self.timestep, skip_idle=self.skip_idle,
            )  # fmt: skip
        return reverse_process(
            denoise, tokens_BL, process=process, steps=self.steps, generator=generator, draw=self.draw, open_BL=open_BL
        )


def reverse_process(
    denoise: TextDenoiser,
    tokens_BL: Tensor,
    *,
    process: TextProcess,
    steps: int,
    generator: RowGenerator,
    draw: Draw,
    open_BL: Tensor | None = None,
) -> TextSample:
    """Draw x_1 from the prior and take `steps` reverse steps to t = 0; a step may change any open token again.

    Temperature, top-k and top-p apply to x_θ. If none of them is set, a process whose model predicts scores draws its
    step from the scores themselves (`TextProcess.score_step`). `log_probs` are the log-probabilities of the final
    tokens under the x_θ of the last step that evaluated them.
    """
    open_BL = open_positions(denoise, tokens_BL, open_BL)
    canvas_BL = process.prior(tokens_BL, open_BL, generator.fork("prior"))
    log_probs_BL = torch.zeros(tokens_BL.shape, dtype=torch.float32, device=tokens_BL.device)
    steps_BL = torch.full_like(tokens_BL, -1)
    calls_B = torch.zeros(tokens_BL.shape[0], dtype=torch.long, device=tokens_BL.device)
    calls, price = 0, 2 if draw.guidance != 1.0 else 1

    for step in range(steps):
        scored_BL = process.scored(canvas_BL, open_BL)
        rows_A = scored_BL.any(dim=1).nonzero().squeeze(1)
        if not rows_A.numel():
            break
        stream = generator.fork(step)
        t, s = (torch.full(calls_B.shape, 1 - at / steps, dtype=torch.float64, device=calls_B.device)
                for at in (step, step + 1))  # fmt: skip
        log_x0_MV, output_MV = log_x0_at(denoise, process, canvas_BL, t, rows_A, scored_BL, guidance=draw.guidance)
        drawn_M = step_tokens(
            process, log_x0_MV, canvas_BL, scored_BL, t_B=t, s_B=s, stream=stream, draw=draw, output_MV=output_MV
        )
        changed_BL = torch.zeros_like(scored_BL).masked_scatter(scored_BL, drawn_M != canvas_BL[scored_BL])
        canvas_BL = canvas_BL.masked_scatter(scored_BL, drawn_M)
        log_probs_BL = log_probs_BL.masked_scatter(scored_BL, chosen_log_probs(log_x0_MV, drawn_M))
        steps_BL = steps_BL.masked_fill(changed_BL, step)
        calls_B = calls_B.index_add(0, rows_A, torch.full_like(rows_A, price))
        calls += price
    return TextSample(canvas_BL, log_probs_BL, steps_BL, calls_B, calls)


def step_tokens(
    process: TextProcess,
    log_x0_MV: Tensor,
    canvas_BL: Tensor,
    scored_BL: Tensor,
    *,
    t_B: Tensor,
    s_B: Tensor,
    stream: RowGenerator,
    draw: Draw,
    output_MV: Tensor,
) -> Tensor:
    """Draw x_s (M,) at the scored positions by one reverse step; `stream` is the generator of the step.

    `output_MV` is the model's output. It is read only if it is scores and `draw` leaves x_θ as it is.
    """
    row_M = scored_BL.nonzero()[:, 0]
    uniform_BL2 = torch.stack([stream.fork(name).uniform(canvas_BL.shape[1]) for name in ("unmask", "token")], dim=-1)
    noisy_M, t_M, s_M, uniform_M2 = canvas_BL[scored_BL], t_B[row_M], s_B[row_M], uniform_BL2[scored_BL]
    if process.traits.predicts_scores and draw == Draw():
        return process.score_step(output_MV, noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)
    return process.reverse_step(sharpen(log_x0_MV, draw), noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)


def chosen_log_probs(log_x0_MV: Tensor, token_M: Tensor) -> Tensor:
    """Return log x_θ (M,) of the drawn tokens; 0 for noise outside the vocabulary, such as [MASK]."""
    word_M = token_M < log_x0_MV.shape[1]
    found_M = log_x0_MV.gather(1, torch.where(word_M, token_M, 0)[:, None])[:, 0]
    return torch.where(word_M, found_M, 0.0).float()


def log_x0_at(
    denoise: TextDenoiser,
    process: TextProcess,
    canvas_BL: Tensor,
    t_B: Tensor,
    rows_A: Tensor,
    scored_BL: Tensor,
    *,
    guidance: float,
) -> tuple[Tensor, Tensor]:
    """Compute log x_θ (M, V) under guidance, and return the model's output (M, V) with it.

    Scores are guided themselves, s = s_cond^γ·s_uncond^(1−γ), as the rates of arXiv:2406.01572: an x_θ that is made
    from approximate scores may exclude words (`sedd.UniformSedd`), and then the quotient of two x_θ has no value.
    """
    tokens_AL, scored_AL, row_M = canvas_BL[rows_A], scored_BL[rows_A], scored_BL.nonzero()[:, 0]
    noisy_M = tokens_AL[scored_AL]
    outputs: list[Tensor] = []

    def output(logits: Logits) -> Tensor:
        return logits(tokens_AL, t_B[rows_A].float(), rows_A, scored_AL)

    def distribution(logits: Logits) -> Tensor:
        outputs.append(output(logits))
        return process.log_x0(process.x0_logits(outputs[-1], noisy_M, t_B[row_M]), noisy_M)

    if process.traits.predicts_scores and guidance != 1.0:
        if denoise.unconditional is None:
            raise refuse_without_condition(guidance)
        scores_MV = guide_prediction(output(denoise.logits), output(denoise.unconditional), scale=guidance)
        return process.log_x0(process.x0_logits(scores_MV, noisy_M, t_B[row_M]), noisy_M), scores_MV
    return guided(denoise, distribution, guidance=guidance), outputs[0]


def unmask_by_schedule(
    denoise: TextDenoiser,
    tokens_BL: Tensor,
    *,
    steps: int,
    schedule: MaskSchedule,
    generator: RowGenerator,
    draw: Draw,
    timestep: TimestepSource,
    skip_idle: bool,
    open_BL: Tensor | None = None,
) -> TextSample:
    """Unmask each mask with probability `(α_s − α_t)/(1 − α_t)` per step: the reverse process of absorbing diffusion.

    Which masks a step unmasks does not depend on the model. `skip_idle` therefore draws them first and evaluates only
    the texts in which the step unmasks a token. The sample is the same, with at most as many calls as tokens.
    """
    grid = make_grid(denoise, tokens_BL, schedule=schedule, steps=steps, open_BL=open_BL)

    def query(state: State) -> Query:
        unmasked_BL = state.masked & (state.uniform("unmask") < grid.unmask_fraction(state.step).unsqueeze(1))
        return Query.where_needed(unmasked_BL) if skip_idle else Query(unmasked_BL, state.masked.any(dim=1))

    return denoising_loop(
        denoise,
        tokens_BL,
        steps=steps,
        generator=generator,
        draw=draw,
        timestep=choose_timestep(timestep, denoise, grid),
        query=query,
        open_BL=open_BL,
    )
