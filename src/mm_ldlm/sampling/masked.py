"""Samplers that follow the reverse process: what a step reveals is drawn from the schedule, not from the network.

Equations: mathematics §1, "reverse step" (MDLM, arXiv:2406.07524).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.errors import SamplingError
from mm_ldlm.sampling.clocks import choose_clock, make_grid
from mm_ldlm.sampling.config import Clock
from mm_ldlm.sampling.draws import Draw
from mm_ldlm.sampling.walk import Ask, State, TextDenoiser, TextSample, walk


def ancestral(
    denoise: TextDenoiser,
    tokens_BL: Tensor,
    *,
    steps: int,
    schedule: MaskSchedule,
    generator: RowGenerator,
    draw: Draw = Draw(),  # noqa: B008 - frozen
    open_BL: Tensor | None = None,
    clock: Clock | None = None,
    skip_idle: bool = False,
) -> TextSample:
    """The reverse process: each mask is revealed with probability `(α_s − α_t)/(1 − α_t)`, and then stays as it is.

    Which masks a step reveals does not depend on the network, so `skip_idle` draws that first and evaluates only the
    rows
    in which something is revealed: token for token the same sample, at no more calls than tokens.
    """
    grid = make_grid(denoise, tokens_BL, schedule=schedule, steps=steps, open_BL=open_BL)

    def ask(state: State) -> Ask:
        revealed_BL = state.masked & (state.uniform("reveal") < grid.reveal_share(state.step).unsqueeze(1))
        return Ask.where_needed(revealed_BL) if skip_idle else Ask(revealed_BL, state.masked.any(dim=1))

    return walk(
        denoise,
        tokens_BL,
        steps=steps,
        generator=generator,
        draw=draw,
        time=choose_clock(clock or "schedule", denoise, grid),
        ask=ask,
        open_BL=open_BL,
    )


def ddpm_cache(
    denoise: TextDenoiser,
    tokens_BL: Tensor,
    *,
    steps: int,
    schedule: MaskSchedule,
    generator: RowGenerator,
    draw: Draw = Draw(),  # noqa: B008 - frozen
    open_BL: Tensor | None = None,
    clock: Clock | None = None,
) -> TextSample:
    """The reverse process with `x_θ` reused while no token changed (arXiv:2406.07524).

    That is valid only if the network's answer is a function of the tokens alone. With `clock="share"` it is so by
    construction (the time told is that of the tokens' own share of masks); otherwise the network is evaluated at two
    times and refused when its answers differ. Given that, an answer computed when it is needed equals the one a cache
    would have kept since the last change, so nothing of the vocabulary's size is stored.

    Raises:
        SamplingError: the network is not blind to the time; the message says what to use instead.
    """
    checked = 0
    if clock != "share":
        refuse_time_dependence(denoise, tokens_BL)
        checked = 2
    sample = ancestral(
        denoise,
        tokens_BL,
        steps=steps,
        schedule=schedule,
        generator=generator,
        draw=draw,
        open_BL=open_BL,
        clock=clock,
        skip_idle=True,
    )
    return TextSample(
        sample.tokens,
        sample.log_probs,
        sample.steps,
        sample.calls_per_row + checked,
        sample.network_calls + checked,
    )


def refuse_time_dependence(denoise: TextDenoiser, tokens_BL: Tensor) -> None:
    """Evaluate the network at t = 0.9 and t = 0.1 on the same tokens, and raise SamplingError if the answers differ."""
    rows_B = torch.arange(tokens_BL.shape[0], device=tokens_BL.device)
    asked_BL = tokens_BL == denoise.mask_id
    early_MV, late_MV = (
        denoise.logits(tokens_BL, torch.full(rows_B.shape, t, device=tokens_BL.device), rows_B, asked_BL)
        for t in (0.9, 0.1)
    )
    gap = float((early_MV - late_MV).abs().max()) if early_MV.numel() else 0.0
    if not gap <= 1e-5:
        raise SamplingError(
            f"sampler 'ddpm_cache' reuses the network's answer between times, but this network is not "
            f"blind to the time: its logits at t=0.9 and t=0.1 differ by up to {gap:.3g}. Set clock to 'share', which "
            f"tells it the time of its own share of masks, or use 'ancestral' with skip_idle."
        )
