"""Cycle consistency of the multimodal objective: text → latent → text and latent → text → latent, each in two passes.

text → latent → text: the latent is the estimate of x_0 from the clean text and a latent of pure noise (t = 1), in one
pass. The second pass predicts the noised text given this estimate, in the place of the encoder's latent. Gradients
reach both passes; nothing is sampled.

latent → text → latent: the first pass predicts every token from the latent and a text of noise alone (t = 1). The
second pass reads the expected embedding of each position under these distributions, and estimates x_0 from pure noise.
Gradients reach both passes. The expected embedding is a relaxation: the model never reads it in sampling, and the
distributions of the positions are independent, because a single pass predicts them.

The length of the text is given in both. B examples, L positions, V vocabulary, d latent dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.config import NonNegativeFloat, NonNegativeInt, config
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, Unit

CYCLE_UNITS: dict[str, Unit] = {"cycle_text_loss": "tokens", "cycle_latent_loss": "examples"}


@config
class CycleConfig:
    """Cycle losses, which a weight of 0 switches off.

    Attributes:
        text_weight: factor of text → latent → text, which steps of the mode l2t add.
        latent_weight: factor of latent → text → latent, which steps of the mode t2l add.
        ramp_steps: number of steps in which both factors grow linearly from 0; 0 for none.
    """

    text_weight: NonNegativeFloat = 0.0
    latent_weight: NonNegativeFloat = 0.0
    ramp_steps: NonNegativeInt = 0

    @property
    def weights(self) -> dict[str, float]:
        """Factor of each cycle loss that is on."""
        found = {"cycle_text_loss": self.text_weight, "cycle_latent_loss": self.latent_weight}
        return {name: weight for name, weight in found.items() if weight > 0}

    def ramp(self, step: int) -> float:
        """Compute the fraction of the factors at a step, which counts from 0."""
        return 1.0 if self.ramp_steps == 0 else min(step / self.ramp_steps, 1.0)


def ramped(name: str, total: Tensor, count: Tensor, *, ramp: float) -> Losses:
    """Return the trained loss `name_loss`, times the ramp, and the statistic `name` without it."""
    return {f"{name}_loss": (ramp * total, count), name: (total.detach(), count)}


def estimate_latent(
    model: nn.Module,
    batch: Batch,
    generator: RowGenerator,
    *,
    schedule: GaussianSchedule,
    parameterisation: gaussian.Parameterisation,
    tokens_BL: Tensor,
    token_probs_BLV: Tensor | None = None,
) -> Tensor:
    """Estimate x_0 of the latent (B, d) from a given text and pure noise, in one pass with gradients."""
    noise_Bd = generator.normal(batch.fields["latents"].shape[1], dtype=torch.float32)
    ones_B = torch.ones(len(noise_Bd), device=noise_Bd.device)
    given: dict[str, Any] = {} if token_probs_BLV is None else {"token_probs_BLV": token_probs_BLV}
    out = model(
        tokens_BL, valid_BL=batch.valid_BL, t_text_B=torch.zeros_like(ones_B), latents_Bd=noise_Bd, t_latent_B=ones_B,
        heads=("latent",), **given,
    )  # fmt: skip
    signal_B, scale_B = schedule.signal(ones_B), schedule.noise(ones_B)
    return gaussian.to_x0(
        out.latent_Bd.float(), parameterisation, x_t_Bd=noise_Bd, signal_B=signal_B, noise_scale_B=scale_B
    )


def latent_cycle(
    model: nn.Module,
    batch: Batch,
    generator: RowGenerator,
    *,
    process: TextProcess,
    schedule: GaussianSchedule,
    parameterisation: gaussian.Parameterisation,
    shape: DataShape,
) -> tuple[Tensor, Tensor]:
    """Compute the sum over examples of the mean squared error of latent → text → latent, and their number."""
    x0_Bd, valid_BL = batch.fields["latents"], batch.valid_BL
    ones_B = torch.ones(len(x0_Bd), device=x0_Bd.device)
    # The noise replaces every token, so that the distributions depend on the latent and the length alone.
    noisy_BL = process.prior(batch.tokens_BL, valid_BL, generator.fork("prior"))
    logits_BLV = model(
        noisy_BL, valid_BL=valid_BL, t_text_B=ones_B, latents_Bd=x0_Bd, t_latent_B=torch.zeros_like(ones_B),
        heads=("text",),
    ).logits_BLV  # fmt: skip
    words_V = torch.zeros(shape.vocab_size, dtype=torch.bool, device=x0_Bd.device)
    words_V[shape.word_ids] = True
    probs_BLV = logits_BLV[..., : shape.vocab_size].float().masked_fill(~words_V, -torch.inf).softmax(-1)
    tokens_BL = torch.where(valid_BL, shape.word_ids[0], shape.pad_id)
    found_Bd = estimate_latent(
        model, batch, generator.fork("latent"), schedule=schedule, parameterisation=parameterisation,
        tokens_BL=tokens_BL, token_probs_BLV=probs_BLV,
    )  # fmt: skip
    error_B = torch.where(batch.real_B, (found_Bd - x0_Bd).square().mean(1), 0.0)
    return error_B.sum(), batch.real_B.sum()
