"""Duo: uniform diffusion that begins with a curriculum of Gaussian latents (arXiv:2506.10892).

Uniform noise is the argmax of Gaussian noise (`duality.py`). During the curriculum the model reads the latents w
themselves, by softmax(w/τ) as weights of the token embeddings, and the loss is uniform diffusion's at argmax w.
Afterwards, and in every evaluation, it is uniform diffusion (`uniform.py`), whose time the model receives throughout:
the t at which a token is kept with the probability T(γ).

B examples, L positions, N words, V vocabulary, M scored positions.
"""

import dataclasses
from typing import Annotated, Any

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, NonNegativeFloat, bounded, config, refuse_if
from mm_ldlm.diffusion.process import TEXT_PROCESSES
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.uniform.duality import add_noise, gamma_of, keep_probability
from mm_ldlm.families.uniform.uniform import Uniform, UniformConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig
from mm_ldlm.objectives.text_loss import NoisyTexts, sum_tokens, text_times

Kept = Annotated[float, bounded(gt=0, lt=1)]


@config
class GaussianTextConfig(TextDiffusionConfig):
    """Uniform diffusion of texts trained on the argmax of Gaussian latents.

    Attributes:
        kept_first, kept_last: α between which the time of the latents runs, evenly in γ.
    """

    process: Annotated[Any, TEXT_PROCESSES] = dataclasses.field(default_factory=UniformConfig)
    kept_first: Kept = 0.95
    kept_last: Kept = 0.05

    def __post_init__(self) -> None:
        refuse_if(
            not isinstance(self.process, UniformConfig),
            f"process must be 'uniform', the argmax of Gaussian noise, found '{self.process.kind}'",
            "process.kind",
        )
        schedule = self.process.schedule.build()
        last, first = (float(schedule.alpha(torch.tensor(t, dtype=torch.float64))) for t in (1.0, 0.0))
        refuse_if(
            not last <= self.kept_last < self.kept_first <= first,
            f"kept_last must be below kept_first, and both among the α of process.schedule, {last:g} to {first:g}; "
            f"found {self.kept_last} and {self.kept_first}",
            "kept_last",
            "kept_first",
            "process.schedule.kind",
        )


@config
class DuoConfig(GaussianTextConfig):
    """Kind `duo`: uniform diffusion of texts with a Gaussian curriculum.

    Attributes:
        curriculum: fraction of the training's steps that belong to the curriculum.
        temperature: τ; at 0 the model reads the argmax, and only the times and weights of the curriculum are left.
    """

    kind: str = "duo"
    curriculum: Fraction = 0.5
    temperature: NonNegativeFloat = 1e-3

    def build(self, shape: DataShape, **stores: Tensor) -> "Duo":
        return Duo(self, shape)


class GaussianText(TextDiffusion):
    """Base of the objectives with Gaussian latents."""

    process: Uniform

    def __init__(self, config: Any, shape: DataShape) -> None:
        super().__init__(config, shape)
        words = self.process.num_words
        self.gamma_first, self.gamma_last = (gamma_of(kept, words) for kept in (config.kept_first, config.kept_last))
        self.training_steps: int | None = None

    def set_training_length(self, steps: int) -> None:
        self.training_steps = steps

    def gamma(self, t_B: Tensor) -> Tensor:
        """Map times in [0, 1] to γ, float64."""
        return self.gamma_first + t_B.double() * (self.gamma_last - self.gamma_first)

    def latents(self, batch: Batch, gammas: tuple[Tensor, ...], generator: RowGenerator) -> list[Tensor]:
        """Draw the latents w (B, L, N) of a batch for each γ_B, with the same ε."""
        words_N = self.process.word_ids_N
        own_BL = torch.searchsorted(words_N, batch.tokens_BL.contiguous()).clamp_max(len(words_N) - 1)
        noise_BLN = generator.fork("text_noise").normal(batch.tokens_BL.shape[1], len(words_N))
        return [add_noise(own_BL, noise_BLN, gamma_B) for gamma_B in gammas]

    def noisy_texts(self, latents_BLN: Tensor, gamma_B: Tensor, batch: Batch) -> tuple[NoisyTexts, Tensor]:
        """Take the argmax of latents; return it with the time of uniform noise, float64, and α'_γ/α'_t (B,)."""
        schedule, (alpha_B, slope_B) = self.process.schedule, keep_probability(gamma_B, self.process.num_words)
        t_B = schedule.inverse(alpha_B)
        words_BL = self.process.word_ids_N[latents_BLN.argmax(dim=2)]
        noisy_BL = torch.where(batch.valid_BL, words_BL, batch.tokens_BL)
        return NoisyTexts(noisy_BL, t_B, batch.valid_BL), slope_B / schedule.alpha_prime(t_B)


class Duo(GaussianText):
    """See the module."""

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        """See `objectives.base.Objective`; in evaluation mode there is no curriculum."""
        if not self.training or step >= self.config.curriculum * (self.training_steps or 0):
            return super().forward(model, batch, generator, kind=kind, step=step)
        gamma_B = self.gamma(text_times(self.process, batch, generator))
        (latents_BLN,) = self.latents(batch, (gamma_B,), generator)
        noisy, slope_B = self.noisy_texts(latents_BLN, gamma_B, batch)
        inputs = self.mixtures(latents_BLN) if self.config.temperature > 0 else noisy.tokens_BL
        tokens, losses = self.predict(lambda _, **given: model(inputs, **given), batch, noisy, generator)
        # the integral over t of the NELBO as a mean over times that are uniform in γ
        weight_BL = (slope_B * (self.gamma_last - self.gamma_first))[:, None].expand_as(noisy.scored_BL)
        weight_M = weight_BL.flatten() if len(tokens.t) == weight_BL.numel() else weight_BL[noisy.scored_BL]
        weighted = tokens.found._replace(weighted_M=tokens.found.weighted_M * weight_M.float())
        return sum_tokens(tokens._replace(found=weighted), batch, z_loss=self.config.z_loss > 0) | losses

    def mixtures(self, latents_BLN: Tensor) -> Tensor:
        """Compute the weights (B, L, I) of the token embeddings: softmax(w/τ) over the words; no model reads pads."""
        weights_BLI = latents_BLN.new_zeros(*latents_BLN.shape[:2], self.shape.first_noise_id)
        return weights_BLI.index_copy_(
            2, self.process.word_ids_N, (latents_BLN / self.config.temperature).softmax(dim=2)
        )
