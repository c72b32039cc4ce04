"""`ddpm_cache`: ancestral sampling that reuses x_θ while no token has changed (MDLM, arXiv:2406.07524)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from mm_ldlm.core.config import config
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.ancestral import unmask_by_schedule
from mm_ldlm.sampling.base import UnmaskingSampler
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.time_grid import TimestepSource


@config
class DdpmCacheConfig(UnmaskingSampler):
    """Ancestral sampling for models whose output depends only on the tokens.

    With `timestep: mask_ratio` every model qualifies, because the time is then a function of the tokens. With
    `schedule` the model is first evaluated at two times and refused if its outputs differ. The output is computed only
    in the steps that unmask a token; there it equals the output that a cache would contain, so none is stored.
    """

    kind: str = "ddpm_cache"
    timestep: TimestepSource = "schedule"

    def unmask(
        self,
        denoise: TextDenoiser,
        tokens_BL: Tensor,
        *,
        schedule: MaskSchedule,
        generator: RowGenerator,
        open_BL: Tensor | None,
    ) -> TextSample:
        """See `UnmaskingSampler.unmask`.

        Raises:
            SamplingError: the model's output depends on the time.
        """
        checked = 0
        if self.timestep != "mask_ratio":
            refuse_time_dependence(denoise, tokens_BL)
            checked = 2
        sample = unmask_by_schedule(
            denoise, tokens_BL, steps=self.steps, schedule=schedule, generator=generator, draw=self.draw,
            open_BL=open_BL, timestep=self.timestep, skip_idle=True,
        )  # fmt: skip
        return dataclasses.replace(
            sample, calls_per_row=sample.calls_per_row + checked, model_calls=sample.model_calls + checked
        )


def refuse_time_dependence(denoise: TextDenoiser, tokens_BL: Tensor) -> None:
    """Evaluate the model at t = 0.9 and t = 0.1 on the same tokens, and raise SamplingError if its outputs differ."""
    rows_B = torch.arange(tokens_BL.shape[0], device=tokens_BL.device)
    masked_BL = tokens_BL == denoise.mask_id
    early_MV, late_MV = (
        denoise.logits(tokens_BL, torch.full(rows_B.shape, t, device=tokens_BL.device), rows_B, masked_BL)
        for t in (0.9, 0.1)
    )
    gap = float((early_MV - late_MV).abs().max()) if early_MV.numel() else 0.0
    if not gap <= 1e-5:
        raise SamplingError(
            "sampler 'ddpm_cache' reuses the model's output between timesteps, but the output of this model depends "
            f"on the time: its logits at t=0.9 and t=0.1 differ by up to {gap:.3g}. Set timestep to 'mask_ratio', or "
            "use 'ancestral' with skip_idle."
        )
