"""Draws of timesteps for the global batch, consistent across ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.timesteps import antithetic
from mm_ldlm.objectives.base import Batch


def text_times(process: TextProcess, batch: Batch, generator: RowGenerator) -> Tensor:
    """Draw timesteps (B,) of the texts, low-discrepancy over the global batch."""
    return process.times(generator.shared_uniform(1), batch.position_B, batch.global_size)


def latent_times(batch: Batch, generator: RowGenerator, *, t_min: float) -> Tensor:
    """Draw timesteps (B,) of the latents, low-discrepancy over the global batch and independent of the texts' order."""
    u = generator.shared_uniform(1)
    everyone = torch.arange(batch.global_size, device=batch.position_B.device)
    order = torch.argsort(RowGenerator(generator.seed, everyone).fork("comb").uniform())
    return antithetic(u, order[batch.position_B.clamp(max=batch.global_size - 1)], batch.global_size, t_min)


def shared_draw(generator: RowGenerator, name: str) -> float:
    """Draw one uniform number that is the same on all ranks, on the host, which avoids a wait for the device."""
    no_rows = torch.empty(0, dtype=torch.int64, device="cpu")
    return float(RowGenerator(generator.seed, no_rows).fork(name).shared_uniform(1))
