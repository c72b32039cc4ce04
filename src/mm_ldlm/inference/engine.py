"""Engine: the parts of a loaded model that all requests share, and the steps that they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.inference import inputs, memory
from mm_ldlm.inference.choices import text_config
from mm_ldlm.inference.edge import Edge, Encoder
from mm_ldlm.inference.latents import LatentWriter
from mm_ldlm.inference.own_words import Template
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.writing import Writer, Written
from mm_ldlm.objectives.capabilities import Capabilities, Use
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.sampling.lengths import Length, how_many_lengths, refuse_long


class Engine:
    """Model, tokenizer and converters of one loaded run; the functions of this room receive it.

    Args:
        batch_tokens: number of tokens of one batch, including pads.
    """

    def __init__(
        self,
        model: GenerativeModel,
        capabilities: Capabilities,
        tokenizer: TextTokenizer,
        normaliser: Any | None,
        *,
        encoder: Encoder | None,
        load_encoder: Callable[[], Encoder] | None,
        no_encoder: str | None = None,
        batch_tokens: int,
    ) -> None:
        self.model, self.capabilities, self.tokenizer = model, capabilities, tokenizer
        self.shape, self.batch_tokens = model.shape, batch_tokens
        self.writer = Writer(model, batch_tokens=batch_tokens)
        self.latents = LatentWriter(model, batch_tokens=batch_tokens)
        self.edge = Edge(
            model.shape, model.device, tokenizer, normaliser, encoder=encoder, load_encoder=load_encoder,
            no_encoder=no_encoder,
        )  # fmt: skip

    def text_sampler(self, sampler: Any, steps: int | None, *, conditional: bool = True) -> Any:
        """Return the configuration of a text sampler; None is the default of the model."""
        return text_config(sampler, steps, default=self.model.default_sampler(conditional=conditional))

    def length(self, length: Length, use: Use, *, sampler: Any, order: str | None = None) -> Length:
        """Check a length before texts are made for it: the run can choose it, or the sampler can write it.

        A text that is written together with a latent, or that the latent is drawn from, fits the model's window.
        """
        length = inputs.check_length(length)
        if (several := how_many_lengths(length)) > self.shape.max_length:
            raise SamplingError(
                f"length: expected at most 'top-{self.shape.max_length}', the number of lengths that this run has "
                f"learned, found 'top-{several}'."
            )
        reason = self.capabilities.refuse_length(length, use, order=order or "")
        longest = self.shape.max_length
        reason = reason or refuse_long(length, max_length=longest, sampler=sampler, process=self.capabilities.process)
        if reason is None and order is not None and (order != "latent_first" or self.model.latents_need_lengths):
            reason = refuse_long(length, max_length=longest, sampler=None, process=None)
        if reason is not None:
            raise SamplingError(reason)
        return length

    def refuse_size(self, count: int, *, length: Length = "argmax", draws: int = 1, what: str) -> None:
        """Raise SamplingError if the results of a request of `count` texts do not fit the memory."""
        tokens = length if isinstance(length, int) else self.shape.max_length
        memory.refuse_texts(count, tokens=tokens, numbers=self.model.dim * (draws + 3), what=what)

    def masks(self, lengths: Sequence[int]) -> list[list[int]]:
        """Make a canvas of masks for each length."""
        return [[self.shape.mask_id] * length for length in lengths]

    def texts(
        self,
        written: Written,
        sources: Sequence[str | None],
        raw_nd: npt.NDArray[np.float32] | None,
        *,
        reembed: bool,
        templates: Sequence[Template] | None = None,
    ) -> Texts:
        """Make the result of texts that were written; `reembed` adds their cosines to the latents `raw_nd`.

        `templates` have what stays of each text as its author wrote it; without them all tokens are decoded.
        """
        if templates is None:
            texts = self.tokenizer.decode_batch(written.tokens)
        else:
            pairs = zip(templates, written.tokens, strict=True)
            texts = [template.filled(row, self.tokenizer) for template, row in pairs]
        cosines, encoder_calls = written.cosines, written.encoder_calls
        if reembed and cosines is None and raw_nd is not None:
            cosines = self.edge.cosines_of(texts, raw_nd)
            encoder_calls = encoder_calls + 1
        return Texts(
            texts=tuple(texts),
            tokens=written.tokens,
            log_probs=written.log_probs,
            model_calls=written.model_calls,
            encoder_calls=encoder_calls,
            sources=tuple(sources),
            cosines=cosines,
            latents=raw_nd,
            latent_norms=None if raw_nd is None else self.edge.norms(raw_nd),
            unknown=self.edge.unknown(sources),
        )
