"""Generative model: the interface through which inference samples and scores with a trained model.

B examples, L length of the canvas, d latent dimension, K draws, N longest text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.defaults import plain_defaults
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.gaussian import LatentSample
from mm_ldlm.sampling.joint import JointSample


@dataclass(frozen=True)
class Likelihood:
    """Draws of the negative log-likelihood of B texts, float64; a single draw if it is exact.

    The four other fields are statistics of a diffusion NELBO; they are None if the likelihood is exact.
    """

    nll_KB: Tensor
    """nats; each is an unbiased draw of the NELBO, or the exact value"""
    mask_ratio_KB: Tensor | None = None
    """noise level in (0, 1]: the expected fraction of masked tokens where the noise is [MASK] (see `NelboDraws`)"""
    masked_KB: Tensor | None = None
    """number of scored tokens: the masked ones where the noise is [MASK]"""
    correct_KB: Tensor | None = None
    """number of scored positions at which the model's most probable token is correct"""
    cross_entropy_KB: Tensor | None = None
    """nats: sum of the cross-entropy of the scored tokens, without the weight of the NELBO"""


class GenerativeModel:
    """Trained model with the sampling and scoring conventions of its objective.

    Subclasses implement the methods that the run's capabilities promise. A canvas contains token ids and pads;
    `open_BL` marks the positions to be written. Latents are standardised.
    """

    has_length = True
    """Whether the length of a text is drawn before its tokens; otherwise the model ends texts by itself."""

    process: TextProcess | None = None
    """The text process that the model was trained with; None if it is not a diffusion model."""

    def __init__(self, model: nn.Module, shape: DataShape) -> None:
        self.model: Any = model
        self.shape = shape

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dim(self) -> int:
        """Dimension d of what is drawn beside a text: of a latent, or of an image; 0 for a model of texts alone."""
        return int(self.shape.latent_dim or 0)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode without gradients; the previous mode is restored at the end."""
        was_training = self.model.training
        self.model.eval()
        try:
            with plain_defaults(), torch.inference_mode():
                yield
        finally:
            self.model.train(was_training)

    # -- texts ------------------------------------------------------------------------------------------------------

    def default_sampler(self, *, conditional: bool) -> Any:
        """Return the configuration of the default text sampler, for conditional or unconditional generation."""
        raise self._missing("texts")

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        """Write the open positions of each canvas, given latents or unconditionally."""
        raise self._missing("texts")

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Compute −log p(tokens) of each text, given its length if `has_length`, and given its latent if any."""
        raise self._missing("likelihoods")

    def length_log_probs(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        """Compute log-probabilities (B, N) float32 of the lengths 1..N, given latents or marginal."""
        raise self._missing("a distribution over lengths")

    def token_log_probs(self, tokens_BL: Tensor, *, latents_Bd: Tensor, generator: RowGenerator) -> tuple[Tensor, int]:
        """Compute the log-probability (B, L) of each token given other tokens of its text and a latent.

        Also returns the number of model calls.
        """
        raise self._missing("log-probabilities of single tokens given a latent")

    # -- latents ------------------------------------------------------------------------------------------------------

    def latents_given_texts(self, tokens_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        """Draw a latent for each text."""
        raise self._missing("latents")

    def latents_given_lengths(self, canvas_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        """Draw latents of unknown texts of the canvases' lengths."""
        raise self._missing("latents")

    latents_need_lengths = False
    """Whether `latents_given_lengths` uses the lengths of the canvases."""

    def both(self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator) -> JointSample:
        """Draw texts and latents together, both from noise."""
        raise self._missing("latents")

    def _missing(self, what: str) -> SamplingError:
        return SamplingError(f"{type(self).__name__} does not provide {what}. Check `capabilities` before the call.")
