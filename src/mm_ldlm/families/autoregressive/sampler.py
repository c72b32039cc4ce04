"""Autoregressive sampling: each token is drawn given the tokens before it, until the end token.

A texts that have not ended, B texts, L positions of the canvas, V vocabulary.
"""

import dataclasses
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from mm_ldlm.core import PositiveInt, SamplingError, config
from mm_ldlm.diffusion.distributions import normalise_
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.base import Overridable, TopP, require_fit, unfit
from mm_ldlm.sampling.denoising import Canvas, TextSample
from mm_ldlm.sampling.limits import Temperature
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens


@runtime_checkable
class Decoder(Protocol):
    """Model that predicts the next token, such as `CausalTransformer`.

    Attributes:
        begin_id: the input that precedes the first token.
        end_id: the column of the logits that ends a text.
        pad_id: fills the canvas after the end of a text.
    """

    begin_id: int
    end_id: int
    pad_id: int

    def start(self) -> Any:
        """Make an empty cache. Its method `keep(mask_B)` drops texts from the batch."""

    def step(self, cache: Any, token_B: Tensor) -> Tensor:
        """Compute logits (B, V + 1) of the next token, as a new tensor in each call: the sampler writes into it."""


@config
class AutoregressiveSampler(Overridable):
    """Text sampler `autoregressive`: draws tokens from left to right, one step for each token.

    Attributes:
        temperature: 0 takes the most probable token (greedy decoding).
        top_k: draw from the k most probable tokens only, which can include the end token.
        top_p: draw from the smallest set of tokens whose probability reaches p (nucleus sampling, arXiv:1904.09751).
    """

    kind: str = "autoregressive"
    temperature: Temperature = 1.0
    top_k: PositiveInt | None = None
    top_p: TopP | None = None

    exceeds_window: ClassVar[bool] = False

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `sampling.base.TextSampler.refusal`. No diffusion model fits."""
        needs = "a model that predicts the next token"
        return None if process is None else unfit(self.kind, needs, process, instead="'confidence' or 'ancestral'")

    def sample(self, canvas: Canvas) -> TextSample:
        """Write texts of at most L tokens; `canvas.denoise` is a `Decoder`. See `sampling.base.TextSampler.sample`.

        Raises:
            SamplingError: the model is not autoregressive, or the canvas contains given tokens.
        """
        require_fit(self, canvas)
        if not isinstance(canvas.denoise, Decoder):
            raise SamplingError(unfit(self.kind, "a model that predicts the next token", None))
        if canvas.open is not None and not bool(canvas.open.all()):
            raise SamplingError(
                f"sampler 'autoregressive' writes whole texts, found {int((~canvas.open).sum())} given tokens. Choose "
                "a run that can infill."
            )
        draw = Draw(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return autoregressive(canvas.denoise, canvas.tokens, generator=canvas.generator, draw=draw)


def autoregressive(model: Decoder, canvas_BL: Tensor, *, generator: RowGenerator, draw: Draw) -> TextSample:
    """Draw a text for each row of `generator`, token by token; a text that has ended leaves the batch.

    A text that reaches the L positions of the canvas stops there without an end token. The numbers drawn for a text
    depend only on its row of `generator` and on the position.

    Returns:
        Tokens (B, L), padded. `steps` is the position of each token, and −1 at pads. `calls_per_row` counts the model
        calls in which the text took part, including that of its end token.
    """
    sample = TextSample.start(torch.full_like(canvas_BL, model.pad_id))
    rows_A = torch.arange(len(generator), device=generator.device)
    token_A, cache = torch.full_like(rows_A, model.begin_id), model.start()
    for position in range(canvas_BL.shape[1]):
        log_probs_AV = normalise_(model.step(cache, token_A).float())
        sample = sample.called(rows_A)
        u_A = generator.fork(position).uniform(dtype=torch.float64)[rows_A]
        token_A = draw_tokens(log_probs_AV, u_A, draw)
        log_prob_A = log_probs_AV.gather(1, token_A[:, None])[:, 0]
        growing_A = token_A != model.end_id
        if not bool(growing_A.all()):
            cache.keep(growing_A)
            rows_A, token_A, log_prob_A = rows_A[growing_A], token_A[growing_A], log_prob_A[growing_A]
            if rows_A.numel() == 0:
                break
        at = (rows_A, torch.full_like(rows_A, position))
        sample = dataclasses.replace(
            sample,
            tokens=sample.tokens.index_put(at, token_A),
            log_probs=sample.log_probs.index_put(at, log_prob_A),
            steps=sample.steps.index_put(at, at[1]),
        )
    return sample
