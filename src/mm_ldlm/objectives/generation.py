"""Generative models: the interface through which inference samples and scores, and its part for diffusion of texts.

B examples, L length of the canvas, M positions whose logits are needed, V vocabulary, d latent dimension, K draws,
N longest text.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core import SamplingError
from mm_ldlm.diffusion.nelbo import Likelihood
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.defaults import plain_defaults
from mm_ldlm.objectives.capabilities import untrained_lengths
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser, TextSample
from mm_ldlm.sampling.registry import default_text_sampler

HALVINGS = 2
"""Random splits of a text into two halves; each half is predicted given the other, in 2·HALVINGS model calls."""

METHODS = {
    "default_sampler": "texts", "write": "texts", "likelihood": "likelihoods",
    "length_log_probs": "a distribution over lengths",
    "token_log_probs": "log-probabilities of single tokens given a latent", "latents_given_texts": "latents",
    "latents_given_lengths": "latents", "both": "latents",
}  # fmt: skip
"""Methods of a generative model → what it provides by them"""


class GenerativeModel:
    """Trained model with the sampling and scoring conventions of its objective.

    Subclasses implement the methods that the run's capabilities promise; families add methods for their own uses. A
    canvas contains token ids and pads; `open_BL` marks the positions to be written. A latent is a standardised value of
    the Gaussian modality of the model.

    * `default_sampler(*, conditional)`: the configuration of the default text sampler.
    * `write(canvas_BL, open_BL, *, latents_Bd, sampler, generator) -> TextSample`: write the open positions of each
      canvas, given latents or unconditionally.
    * `likelihood(tokens_BL, *, latents_Bd, draws, generator) -> Likelihood`: −log p(tokens) of each text, given its
      length if `has_length`, and given its latent if any.
    * `length_log_probs(latents_Bd, *, rows) -> Tensor`: log-probabilities (B, N) float32 of the lengths 1..N, given
      latents or marginal.
    * `token_log_probs(tokens_BL, *, latents_Bd, generator) -> (Tensor, int)`: log-probability (B, L) of each token
      given other tokens of its text and a latent, and the number of model calls.
    * `latents_given_texts(tokens_BL, *, sampler, generator) -> LatentSample`: a latent for each text.
    * `latents_given_lengths(canvas_BL, *, sampler, generator) -> LatentSample`: latents of unknown texts.
    * `both(canvas_BL, *, text, latent, generator) -> (TextSample, LatentSample)`: texts and latents together, both from
      noise; each counts all model calls.
    """

    has_length = True
    """Whether the length of a text is drawn before its tokens; otherwise the model ends texts by itself."""
    process: TextProcess | None = None
    """The text process that the model was trained with; None if it is not a diffusion model."""
    field: str = "latents"
    """Field of the Gaussian modality that is drawn with a text"""

    def __init__(self, model: nn.Module, shape: DataShape) -> None:
        self.model: Any = model
        self.shape = shape

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dim(self) -> int:
        """Dimension d of what is drawn with a text; 0 for a model of texts only."""
        return self.shape.dim(self.field)

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

    latents_need_lengths = False
    """Whether `latents_given_lengths` uses the lengths of the canvases."""

    def __getattr__(self, name: str) -> Any:
        """Refuse a method that the subclass does not have.

        Raises:
            SamplingError: it is one of `METHODS`.
        """
        if name in METHODS:
            raise self._missing(METHODS[name])
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _missing(self, what: str) -> SamplingError:
        return SamplingError(f"{type(self).__name__} does not provide {what}. Check `capabilities` before the call.")


class DenoiserGeneration(GenerativeModel, ABC):
    """Sampling, lengths and likelihoods of texts under a text process, with the denoiser that a subclass makes.

    Args:
        process: the process that the model was trained with, the same object as in training.
        config: configuration of the objective.
    """

    process: TextProcess
    lengths_given_latents = False
    """Whether the distribution over lengths depends on the latent, or on whether it is dropped"""
    divide: Any = None
    """Writes a canvas part by part where the model does so; see `Canvas.divide`"""

    def __init__(self, model: nn.Module, shape: DataShape, process: TextProcess, config: Any) -> None:
        super().__init__(model, shape)
        self.process, self.config = process, config

    @abstractmethod
    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make the denoiser of texts given latents (B, d), or without latents."""

    def length_logits(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        """Compute unnormalised log-probabilities (N,) or (B, N) of the lengths; by default the model's own, (N,)."""
        return self.model.length_logits()

    def default_sampler(self, *, conditional: bool) -> Any:
        return default_text_sampler(self.process, conditional=conditional)

    def length_log_probs(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        """See `GenerativeModel.length_log_probs`.

        Raises:
            SamplingError: the distribution was not trained.
        """
        given = latents_Bd is not None if self.lengths_given_latents else None
        if (reason := untrained_lengths(self.config, given=given)) is not None:
            raise SamplingError(reason)
        return torch.log_softmax(self.length_logits(latents_Bd, rows=rows), dim=-1).expand(rows, -1)

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        canvas = Canvas(
            denoise=self.text_denoiser(latents_Bd, generator), process=self.process, tokens=canvas_BL, open=open_BL,
            generator=generator, window=self.shape.max_length, divide=self.divide,
        )  # fmt: skip
        sample = sampler.sample(canvas)
        found = []
        if isinstance(sample, TextSample):
            found = [sample.tokens, sample.log_probs, sample.steps, sample.calls_per_row]
        if [each.shape for each in found] != [canvas_BL.shape] * 3 + [canvas_BL.shape[:1]]:
            raise SamplingError(
                f"sampler '{sampler.kind}': expected a TextSample with tokens, log_probs and steps of the shape "
                f"{tuple(canvas_BL.shape)} of its canvas, and calls_per_row {tuple(canvas_BL.shape[:1])}, found "
                f"{[tuple(each.shape) for each in found]} in "
                f"{type(sample).__name__}. Correct what its method `write` returns."
            )
        return sample

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        logits = self.text_denoiser(latents_Bd, generator).logits
        rows_B = torch.arange(len(tokens_BL), device=tokens_BL.device)

        def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
            return logits(noisy_BL, t_B, rows_B, scored_BL)

        valid_BL = tokens_BL != self.shape.pad_id
        return self.process.nelbo(predict, tokens_BL, valid_BL, draws=draws, generator=generator)

    def token_log_probs(self, tokens_BL: Tensor, *, latents_Bd: Tensor, generator: RowGenerator) -> tuple[Tensor, int]:
        """Average the log-probability of each token given its latent and random halves of the other tokens."""
        logits = self.text_denoiser(latents_Bd, generator).logits
        valid_BL = tokens_BL != self.shape.pad_id
        rows_B = torch.arange(len(tokens_BL), device=tokens_BL.device)
        t_B = torch.full(rows_B.shape, 0.5, device=tokens_BL.device)
        if (schedule := self.process.mask_schedule) is not None:
            t_B = schedule.time_of_mask_ratio(t_B).float()
        lowest = math.log(torch.finfo(torch.float32).tiny)  # of words that approximate scores exclude
        sum_BL = torch.zeros(tokens_BL.shape, dtype=torch.float64, device=tokens_BL.device)
        for number in range(HALVINGS):
            stream = generator.fork(number)
            first_BL = stream.uniform(tokens_BL.shape[1]) < 0.5
            for half_BL in (first_BL & valid_BL, ~first_BL & valid_BL):
                noisy_BL = self.process.prior(tokens_BL, half_BL, stream.fork("prior"))
                noisy_M = noisy_BL[half_BL]
                t_M = t_B[half_BL.nonzero()[:, 0]]
                output_MV = logits(noisy_BL, t_B, rows_B, half_BL)
                log_x0_MV = self.process.log_x0(self.process.x0_logits(output_MV, noisy_M, t_M), noisy_M)
                found_M = log_x0_MV.gather(1, tokens_BL[half_BL].unsqueeze(1)).squeeze(1)
                sum_BL = sum_BL.masked_scatter(half_BL, sum_BL[half_BL] + found_M.double().clamp_min(lowest))
        return sum_BL / HALVINGS, 2 * HALVINGS
