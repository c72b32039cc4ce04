"""Trained classifier as a `GenerativeModel`: it only assigns texts, latents or pairs of texts to classes.

B examples, L positions, d latent dimension, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.generation import GenerativeModel, Likelihood
from mm_ldlm.sampling.denoising import TextSample


class Classifier(GenerativeModel):
    """Classes by the head of an objective."""

    def __init__(self, model: nn.Module, shape: DataShape, objective: Any) -> None:
        super().__init__(model, shape)
        self.objective = objective
        self.classes = objective.classes

    @property
    def device(self) -> torch.device:
        """Device of the head; a model without blocks has no parameters."""
        return next(self.objective.head.parameters()).device

    def class_logits(
        self, tokens_BL: Tensor | None = None, *, second_BL: Tensor | None = None, latents_Bd: Tensor | None = None
    ) -> Tensor:
        logits_BK: Tensor = self.objective.logits(self.model, tokens_BL, second_BL=second_BL, latents_Bd=latents_Bd)
        return logits_BK

    def default_sampler(self, *, conditional: bool) -> Any:
        raise self._missing("texts")

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        raise self._missing("texts")

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        raise self._missing("likelihoods")
