"""Joint sampling: a text and its latent are denoised together from noise, along one grid of times.

The orders `text_first` and `latent_first` sample one modality unconditionally and then the other given the first
(UniDiffuser, arXiv:2303.06555); they need no sampler of their own and are in `mm_ldlm.inference`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from mm_ldlm.diffusion.gaussian import Parameterisation
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.ancestral import chosen_log_probs, step_tokens
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.gaussian import DdimConfig, LatentSample, ddim_step, estimate_at, start_noise
from mm_ldlm.sampling.logit_filters import Draw

PredictBoth = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(tokens_BL, t_text_B, z_Bd, t_latent_B, scored_BL, previous x0 or None) → (logits_MV, latent prediction (B, d))."""


@dataclass(frozen=True, kw_only=True)
class JointDenoiser:
    """Interface of a model for the joint sampler: both predictions, the text process and the latent schedule."""

    predict: PredictBoth
    process: TextProcess
    latent_schedule: GaussianSchedule
    parameterisation: Parameterisation
    self_condition: bool = False


@dataclass(frozen=True)
class JointSample:
    """Jointly sampled texts and latents, and their cost."""

    text: TextSample
    latent: LatentSample
    model_calls: int
    """Number of model calls; each call predicts both"""


def together(
    denoise: JointDenoiser,
    tokens_BL: Tensor,
    *,
    dim: int,
    draw: Draw,
    latent: DdimConfig,
    generator: RowGenerator,
    open_BL: Tensor | None = None,
) -> JointSample:
    """Take ancestral steps in the text and DDIM steps in the latent at the same times, with one model call per step.

    The text is written where `tokens_BL` is [MASK], or only at those of these positions that are in `open_BL`. Guidance
    does not apply, because there is no condition to drop.
    """
    process = denoise.process
    points = latent.points(denoise.latent_schedule)
    z_Bd = start_noise(points[0], generator.fork("latent"), dim)
    masked_BL = tokens_BL == process.mask_id
    open_BL = masked_BL if open_BL is None else open_BL & masked_BL
    canvas_BL = process.prior(tokens_BL, open_BL, generator.fork("prior"))
    log_probs_BL = torch.zeros(tokens_BL.shape, device=tokens_BL.device)
    steps_BL = torch.full_like(tokens_BL, -1)
    previous_Bd: Tensor | None = None
    for step, (now, then) in enumerate(pairwise(points)):
        stream = generator.fork(step)
        t_B, s_B = (
            torch.full((len(z_Bd),), 1 - at / latent.steps, dtype=torch.float64, device=z_Bd.device)
            for at in (step, step + 1)
        )
        scored_BL = process.scored(canvas_BL, open_BL)
        t_latent_B = torch.full_like(t_B, now.t, dtype=torch.float32)
        logits_MV, prediction_Bd = denoise.predict(canvas_BL, t_B.float(), z_Bd, t_latent_B, scored_BL, previous_Bd)

        noisy_M = canvas_BL[scored_BL]
        t_M = t_B[scored_BL.nonzero()[:, 0]]
        log_x0_MV = process.log_x0(process.x0_logits(logits_MV, noisy_M, t_M), noisy_M)
        drawn_M = step_tokens(
            process, log_x0_MV, canvas_BL, scored_BL, t_B=t_B, s_B=s_B, stream=stream, draw=draw, output_MV=logits_MV
        )
        canvas_BL = canvas_BL.masked_scatter(scored_BL, drawn_M)
        log_probs_BL = log_probs_BL.masked_scatter(scored_BL, chosen_log_probs(log_x0_MV, drawn_M))
        steps_BL = steps_BL.masked_scatter(scored_BL, torch.where(drawn_M != noisy_M, step, steps_BL[scored_BL]))

        x0_Bd, eps_Bd = estimate_at(now, prediction_Bd, denoise.parameterisation, x_t_Bd=z_Bd)
        previous_Bd = x0_Bd if denoise.self_condition else None
        z_Bd = ddim_step(x0_Bd, eps_Bd, now, then, eta=latent.eta, fresh=partial(stream.fork("noise").normal, dim))
    calls_B = torch.full((len(z_Bd),), latent.steps, dtype=torch.long, device=z_Bd.device)
    text = TextSample(canvas_BL, log_probs_BL, steps_BL, calls_B, latent.steps)
    return JointSample(text, LatentSample(z_Bd, z_Bd.unsqueeze(0), latent.steps), latent.steps)
