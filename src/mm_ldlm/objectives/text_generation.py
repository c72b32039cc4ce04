"""Sampling and scoring with a denoiser of texts under any text process: the shared part, and text-only denoisers.

B examples, L positions of the canvas, M positions whose logits are needed, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.generation import GenerativeModel, Likelihood
from mm_ldlm.sampling.defaults import default_text_sampler
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample

HALVINGS = 2
"""Random splits of a text into two halves; each half is predicted given the other, in 2·HALVINGS model calls."""


def untrained_lengths(objective: Any, *, given_latents: bool, conditioned: bool = True) -> str | None:
    """Explain why the distribution of lengths, given latents or without them, was not trained; None if it was.

    `objective` is a configuration with `length_weight`, and with `condition_dropout` if it has a condition;
    `conditioned` is whether its lengths depend on that condition.
    """
    options = {"length_weight": 0.0}
    if conditioned and hasattr(objective, "condition_dropout"):
        options["condition_dropout"] = 1.0 if given_latents else 0.0
    for name, untrained in options.items():
        if getattr(objective, name) == untrained:
            given = "" if name == "length_weight" else " given a latent" if given_latents else " without a latent"
            return (
                f"this run has not learned the distribution of lengths{given}: it was trained with "
                f"objective.{name} {untrained:g}. Give the length as a number of tokens."
            )
    return None


def refuse_untrained_lengths(objective: Any, *, given_latents: bool, conditioned: bool = True) -> None:
    """Raise SamplingError with `untrained_lengths` if that distribution of lengths was not trained."""
    if (reason := untrained_lengths(objective, given_latents=given_latents, conditioned=conditioned)) is not None:
        raise SamplingError(reason)


def by_use(reasons: Mapping[str, str | None]) -> dict[str, str]:
    """Make `Capabilities.untrained_lengths`: keep the uses and orders that have a reason."""
    return {use: reason for use, reason in reasons.items() if reason is not None}


class DenoiserGeneration(GenerativeModel):
    """Sampling and likelihoods of texts under a text process, with the denoiser that a subclass makes."""

    process: TextProcess

    def __init__(self, model: nn.Module, shape: DataShape, process: TextProcess) -> None:
        super().__init__(model, shape)
        self.process = process

    @abstractmethod
    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make the denoiser of texts given latents (B, d), or without latents."""

    def default_sampler(self, *, conditional: bool) -> Any:
        return default_text_sampler(self.process, conditional=conditional)

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        sample: TextSample = sampler.sample(
            self.text_denoiser(latents_Bd, generator), canvas_BL, process=self.process, open_BL=open_BL,
            generator=generator, window=self.shape.max_length,
        )  # fmt: skip
        return sample

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        logits = self.text_denoiser(latents_Bd, generator).logits
        rows_B = torch.arange(len(tokens_BL), device=tokens_BL.device)

        def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
            return logits(noisy_BL, t_B, rows_B, scored_BL)

        valid_BL = tokens_BL != self.shape.pad_id
        found = self.process.nelbo(predict, tokens_BL, valid_BL, draws=draws, generator=generator)
        return Likelihood(found.nll_KB, found.noise_KB, found.scored_KB, found.correct_KB, found.cross_entropy_KB)

    def token_log_probs(self, tokens_BL: Tensor, *, latents_Bd: Tensor, generator: RowGenerator) -> tuple[Tensor, int]:
        """Average the log-probability of each token given its latent and random halves of the other tokens."""
        logits = self.text_denoiser(latents_Bd, generator).logits
        valid_BL = tokens_BL != self.shape.pad_id
        rows_B = torch.arange(len(tokens_BL), device=tokens_BL.device)
        t_B = torch.full(rows_B.shape, 0.5, device=tokens_BL.device)
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
                sum_BL = sum_BL.masked_scatter(half_BL, sum_BL[half_BL] + found_M.double())
        return sum_BL / HALVINGS, 2 * HALVINGS


class TextGeneration(DenoiserGeneration):
    """Sampling and likelihoods of texts with a text-only denoiser.

    Args:
        config: configuration of the objective, which determines whether lengths were trained.
    """

    def __init__(self, model: nn.Module, shape: DataShape, process: TextProcess, config: Any) -> None:
        super().__init__(model, shape, process)
        self.config = config

    def length_log_probs(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        """See `GenerativeModel.length_log_probs`.

        Raises:
            SamplingError: the distribution was not trained.
        """
        refuse_untrained_lengths(self.config, given_latents=False)
        return torch.log_softmax(self.model.length_logits(), dim=-1).expand(rows, -1)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        if latents_Bd is not None:
            raise self._missing("texts given latents")

        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            found: Tensor = self.model(
                tokens_AL, valid_BL=tokens_AL != self.shape.pad_id, t_B=t_A, logits_at=asked_AL
            ).logits  # fmt: skip
            return found

        return TextDenoiser(
            logits=logits, mask_id=self.shape.mask_id, pad_id=self.shape.pad_id, vocab_size=self.shape.vocab_size
        )  # fmt: skip
