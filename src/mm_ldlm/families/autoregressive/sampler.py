"""Autoregressive sampling: each token is drawn given the tokens before it, until the end token.

A texts that have not ended, B texts, L positions of the canvas, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core.config import Fraction, InvalidValue, NonNegativeFloat, PositiveInt, config, parse, to_dict
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.distributions import normalise_
from mm_ldlm.diffusion.process import ProcessTraits, TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.limits import refuse_temperature
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens

_NEEDS_NEXT_TOKEN = (
    "sampler 'autoregressive' needs a model that predicts the next token, but this model denoises whole texts. "
    "Choose the sampler 'confidence' or 'ancestral'."
)


@runtime_checkable
class Decoder(Protocol):
    """Model that predicts the next token, such as `models.causal.CausalTransformer`.

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
class AutoregressiveSampler:
    """Text sampler `autoregressive`: draws tokens from left to right.

    Attributes:
        temperature: 0 takes the most probable token (greedy decoding).
        top_k: draw from the k most probable tokens only, which can include the end token.
        top_p: draw from the smallest set of tokens whose probability reaches p (nucleus sampling, arXiv:1904.09751).
    """

    kind: str = "autoregressive"
    temperature: NonNegativeFloat = 1.0
    top_k: PositiveInt | None = None
    top_p: Fraction | None = None

    exceeds_window: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.top_p == 0:
            raise InvalidValue("top_p must be above 0, found 0: no token could be drawn", "top_p")
        refuse_temperature(self.temperature)

    def override(self, *, steps: int | None = None, temperature: float | None = None) -> Self:
        """Copy the sampler, replacing the settings that are not None.

        Raises:
            ConfigurationError: `steps` is given; the sampler takes one step for each token.
        """
        given = {key: value for key, value in (("steps", steps), ("temperature", temperature)) if value is not None}
        return parse(type(self), {**to_dict(self), **given}, at="sampler")

    def refusal(self, process: ProcessTraits | None) -> str | None:
        """See `sampling.base.TextSampler.refusal`. No diffusion model fits."""
        return None if process is None else _NEEDS_NEXT_TOKEN

    def sample(
        self,
        denoise: Any,
        tokens_BL: Tensor,
        *,
        process: TextProcess | None,
        generator: RowGenerator,
        window: int | None = None,
        open_BL: Tensor | None = None,
    ) -> TextSample:
        """Write texts of at most L tokens; `denoise` is a `Decoder`. See `sampling.base.TextSampler.sample`.

        Raises:
            SamplingError: the model is not autoregressive, or the canvas contains given tokens.
        """
        if not isinstance(denoise, Decoder):
            raise SamplingError(_NEEDS_NEXT_TOKEN)
        if open_BL is not None and not bool(open_BL.all()):
            raise SamplingError(
                f"sampler 'autoregressive' writes whole texts, found {int((~open_BL).sum())} given tokens. Choose a "
                "run that can infill."
            )
        draw = Draw(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return autoregressive(denoise, max_length=tokens_BL.shape[1], generator=generator, draw=draw)


def autoregressive(model: Decoder, *, max_length: int, generator: RowGenerator, draw: Draw) -> TextSample:
    """Draw a text for each row of `generator`, token by token; a text that has ended leaves the batch.

    A text that reaches `max_length` tokens stops there without an end token. The numbers drawn for a text depend only
    on its row of `generator` and on the position.

    Returns:
        Tokens (B, max_length), padded. `steps` is the position of each token, and −1 at pads. `calls_per_row` counts
        the model calls in which the text took part, including that of its end token.
    """
    B, device = len(generator), generator.device
    rows_A = torch.arange(B, device=device)
    token_A = torch.full((B,), model.begin_id, device=device)
    cache = model.start()
    tokens: list[Tensor] = []
    log_probs: list[Tensor] = []
    calls_B = torch.zeros(B, dtype=torch.long, device=device)
    calls = 0
    for position in range(max_length):
        log_probs_AV = normalise_(model.step(cache, token_A).float())
        calls, calls_B = calls + 1, calls_B.index_add(0, rows_A, torch.ones_like(rows_A))
        u_A = generator.fork(position).uniform(dtype=torch.float64)[rows_A]
        token_A = draw_tokens(log_probs_AV, u_A, draw)
        log_prob_A = log_probs_AV.gather(1, token_A[:, None])[:, 0]
        growing_A = token_A != model.end_id
        if not bool(growing_A.all()):
            cache.keep(growing_A)
            rows_A, token_A, log_prob_A = rows_A[growing_A], token_A[growing_A], log_prob_A[growing_A]
            if rows_A.numel() == 0:
                break
        tokens.append(torch.full((B,), model.pad_id, device=device).index_copy(0, rows_A, token_A))
        log_probs.append(torch.zeros(B, device=device).index_copy(0, rows_A, log_prob_A))
    rest = max_length - len(tokens)
    tokens_BL = F.pad(_columns(tokens, B, device, torch.long), (0, rest), value=model.pad_id)
    log_probs_BL = F.pad(_columns(log_probs, B, device, torch.float32), (0, rest))
    steps_BL = torch.where(tokens_BL == model.pad_id, -1, torch.arange(max_length, device=device))
    return TextSample(tokens_BL, log_probs_BL, steps_BL, calls_B, calls)


def _columns(columns: list[Tensor], rows: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.stack(columns, dim=1) if columns else torch.empty(rows, 0, dtype=dtype, device=device)
