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

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mm_ldlm.core.config import NonNegativeFloat, NonNegativeInt, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.text_loss import NoisyTexts, score_tokens

if TYPE_CHECKING:
    from mm_ldlm.objectives.modality import ModalityObjective


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


def text_cycle(
    objective: ModalityObjective, model: Any, batch: Batch, noisy: NoisyTexts, inputs: dict[str, Any],
    generator: RowGenerator,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the text loss of a step given the model's own estimate of the latent from the clean text.

    Args:
        inputs: arguments of the model in the first pass of the step.

    Returns:
        The sum over tokens, and their number.
    """
    latents_Bd = _estimate(objective, model, batch, generator, batch.tokens_BL)
    out = model(noisy.tokens_BL, **{**inputs, "latents_Bd": latents_Bd, "null_latent_B": None, "heads": ("text",)})
    tokens = score_tokens(objective.process, out.logits, batch, noisy)
    return torch.where(tokens.scored, tokens.found.weighted_M, 0.0).sum(), batch.valid_BL.sum()


def latent_cycle(
    objective: ModalityObjective, model: Any, batch: Batch, generator: RowGenerator
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the mean squared error of latent → text → latent: its sum over examples, and their number."""
    x0_Bd, valid_BL, shape = batch.fields[objective.modality.field], batch.valid_BL, objective.shape
    ones_B = torch.ones(len(x0_Bd), device=x0_Bd.device)
    # The noise replaces every token, so that the distributions depend on the latent and the length alone.
    noisy_BL = objective.process.prior(batch.tokens_BL, valid_BL, generator.fork("prior"))
    logits_BLV = model(
        noisy_BL, valid_BL=valid_BL, t_text_B=ones_B, latents_Bd=x0_Bd, t_latent_B=torch.zeros_like(ones_B),
        heads=("text",),
    ).logits  # fmt: skip
    words_V = torch.zeros(shape.vocab_size, dtype=torch.bool, device=x0_Bd.device)
    words_V[shape.word_ids] = True
    probs_BLV = logits_BLV[..., : shape.vocab_size].float().masked_fill(~words_V, -torch.inf).softmax(-1)
    tokens_BL = torch.where(valid_BL, objective.process.any_word, shape.pad_id)
    found_Bd = _estimate(objective, model, batch, generator.fork("latent"), tokens_BL, token_probs_BLV=probs_BLV)
    error_B = torch.where(batch.real_B, (found_Bd - x0_Bd).square().mean(1), 0.0)
    return error_B.sum(), batch.real_B.sum()


def _estimate(
    objective: ModalityObjective, model: Any, batch: Batch, generator: RowGenerator, tokens_BL: Tensor, **text: Tensor
) -> Tensor:
    """Estimate x_0 of the latent (B, d) from a given text and pure noise, in one pass with gradients."""
    noise_Bd = generator.normal(batch.fields[objective.modality.field].shape[1], dtype=torch.float32)
    ones_B = torch.ones(len(noise_Bd), device=noise_Bd.device)
    out = model(
        tokens_BL, valid_BL=batch.valid_BL, t_text_B=torch.zeros_like(ones_B), latents_Bd=noise_Bd, t_latent_B=ones_B,
        heads=("latent",), **text,
    )  # fmt: skip
    return objective.modality.x0(out.latent_Bd, noise_Bd, ones_B)
