"""Diffusion of texts given their sentence latents: text diffusion whose denoiser also reads the clean latent.

In a fraction of the examples a learned null latent replaces the latent (classifier-free guidance, arXiv:2207.12598), so
that one model gives p(text given latent) and p(text). It has no distribution over latents.

B examples, L positions of the canvas, A examples of one model call, M positions whose logits are needed, d latent
dimension.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core import Fraction, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.latent_dit.model import TextGivenLatentModel
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.condition_dropout import CONDITION_DROPOUT, dropped
from mm_ldlm.objectives.generation import DenoiserGeneration
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig
from mm_ldlm.sampling.denoising import Logits, TextDenoiser

_GUIDED = ("l2t", "infill_given_latent", "edit", "interpolate")
_GIVEN = (*_GUIDED, "search")
"""Uses that need a model trained with latents"""


@config
class LatentConditionedConfig(TextDiffusionConfig):
    """Kind `latent_conditioned`: a text process whose denoiser is given the clean, standardised latent.

    Attributes:
        condition_dropout: fraction of examples whose latent is dropped. At 0 there is no null latent, and therefore no
            text and no score without a latent, and no guidance. At 1 no latent is ever given, and therefore the model
            writes and scores no text given one.
    """

    kind: str = "latent_conditioned"
    condition_dropout: Fraction = CONDITION_DROPOUT

    @property
    def fields(self) -> tuple[str, ...]:
        return ("latents",)

    @property
    def trains_null_latent(self) -> bool:
        """Whether a learned vector stands for an unknown latent."""
        return self.condition_dropout > 0

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextGivenLatentModel)
        no_lengths, no_lengths_given = (untrained_lengths(self, given=given) for given in (False, True))
        sees, null = self.condition_dropout < 1, self.trains_null_latent
        uses = {
            **dict.fromkeys(_GIVEN, sees),
            "score_given_latent": sees,
            "unconditional": null,
            "infill": null,
            "score": null,
        }
        return Capabilities(
            uses=frozenset(use for use, able in uses.items() if able),
            fields=self.fields,
            likelihood="given_length" if self.length_weight == 0 else "bound",
            untrained_lengths={
                "l2t": no_lengths_given,
                "interpolate": no_lengths_given,
                "unconditional": no_lengths,
            },
            process=self.process,
            guided=frozenset(_GUIDED if null else ()),
            trained_as=f"objective {self.kind}, process {self.process.kind}",
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "LatentConditioned":
        return LatentConditioned(self, shape, **stores)


class LatentConditioned(TextDiffusion):
    """See the module. The length, too, is predicted given the latent, or given none where it is dropped."""

    config: LatentConditionedConfig

    def condition(self, batch: Batch, generator: RowGenerator) -> dict[str, Tensor]:
        """Select the latents, and the examples whose latent is dropped."""
        dropped_B = dropped(generator, self.config.condition_dropout)
        return {"latents_Bd": batch.fields["latents"], "null_latent_B": dropped_B}

    def generative_model(self, model: nn.Module) -> "LatentConditionedGeneration":
        return LatentConditionedGeneration(model, self.shape, self.process, self.config)


class LatentConditionedGeneration(DenoiserGeneration):
    """Sampling, lengths and likelihoods of texts given latents, or with the null latent."""

    lengths_given_latents = True

    def length_logits(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        latents_Bd, null_B = self._given(latents_Bd, torch.arange(rows, device=self.device))
        return self.model.length_logits(latents_Bd, null_B)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make the denoiser of texts given latents (B, d), or without latents; guidance needs a null latent."""
        null = self._logits(None) if latents_Bd is not None and self.config.trains_null_latent else None
        return TextDenoiser(logits=self._logits(latents_Bd), unconditional=null)

    def _logits(self, latents_Bd: Tensor | None) -> Logits:
        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            given_Ad, null_A = self._given(latents_Bd, rows_A)
            return self.model(
                tokens_AL, valid_BL=tokens_AL != self.shape.pad_id, t_B=t_A, latents_Bd=given_Ad, null_latent_B=null_A,
                logits_at=asked_AL,
            ).logits  # fmt: skip

        return logits

    def _given(self, latents_Bd: Tensor | None, rows_A: Tensor) -> tuple[Tensor, Tensor | None]:
        """Select the latents of these rows (A, d); without latents, mark every row for the null latent."""
        if latents_Bd is not None:
            return latents_Bd[rows_A], None
        if not self.config.trains_null_latent:
            raise self._missing("a null latent, because objective.condition_dropout was 0")
        zeros_Ad = torch.zeros(len(rows_A), self.dim, device=rows_A.device)
        return zeros_Ad, torch.ones_like(rows_A, dtype=torch.bool)
