"""The model of a run as all requests use it: its parts, its loading, and the results that they share."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference.arguments import text_sampler_of
from mm_ldlm.inference.conversion import Converter, Encoder, Floats
from mm_ldlm.inference.loading import Parts, load_run
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.verbatim import Template
from mm_ldlm.inference.writing import Writer, Written
from mm_ldlm.objectives.capabilities import USES


class LoadedModel:
    """Model of a run and what all requests to it share.

    Attributes:
        parts: the parts of the run.
        shape: vocabulary size, maximum text length, and the shapes of the other data.
        max_length: number of tokens of the longest text that the model reads at once.
        normaliser: normaliser of the latents; None for a run without latents.
        batch_tokens: number of tokens of one batch, including pads.

    Args:
        encoder: the encoder that made the latents; None loads that of the run when it is first needed.
        batch_tokens: None chooses it by the device and the size of the vocabulary. A CPU computes a batch on each core
            (docs/configuration.md, OMP_NUM_THREADS).
    """

    def __init__(self, parts: Parts, encoder: Encoder | None = None, *, batch_tokens: int | None = None) -> None:
        self.parts, self.model, self.capabilities = parts, parts.model, parts.capabilities
        self.tokenizer, self.normalisers = parts.tokenizer, parts.normalisers
        self.writer = Writer(parts.model, batch_tokens=batch_tokens)
        self.converter = Converter(parts, encoder)
        self.shape, self.max_length = parts.model.shape, parts.model.shape.max_length
        self.normaliser, self.batch_tokens = self.converter.normaliser, self.writer.batch_tokens

    @classmethod
    def from_run(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        checkpoint: str | int = "latest",
        use_ema: bool = True,
        device: str | torch.device | None = None,
        batch_tokens: int | None = None,
    ) -> Self:
        """Load a trained model from a run folder.

        Args:
            path: a run folder, one of its checkpoints, or a folder of runs, of which the newest is used.
            encoder: the encoder; None loads the encoder named in the run's config.json when it is first needed.
            checkpoint: "latest", "best", a step, or the name of a checkpoint folder ("step-00001000").
            use_ema: use the averaged weights (EMA) instead of the last ones.
            device: the device; None is the first GPU if there is one, otherwise the CPU.

        Raises:
            CheckpointError: the folder has no complete checkpoint, or files that a model needs are missing.
        """
        parts = load_run(path, checkpoint=checkpoint, use_ema=use_ema, device=device)
        return cls(parts, encoder, batch_tokens=batch_tokens)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the weights; the tokenizer, the normalisers and the encoder, which do not change, are shared."""
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        made.model = copy.deepcopy(self.model, memo)
        made.writer = Writer(made.model, batch_tokens=self.batch_tokens)
        return made

    def __copy__(self) -> Self:
        """Copy the model; a copy that shared its weights would be the same object."""
        return copy.deepcopy(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse pickling, which runs code when it is read and does not contain the encoder."""
        raise SamplingError(
            "MMLDLM is not pickled. Give the other process the path of the run folder and load it there by "
            "MMLDLM.from_run(path)."
        )

    def __repr__(self) -> str:
        """Name the run, the step, the number of parameters and the uses in one line."""
        found = self.parts.checkpoint
        run = f"{found.parent.parent.name}, step {self.parts.step:,}, " if found else ""
        count = sum(parameter.numel() for parameter in self.model.model.parameters())
        uses = ", ".join(use for use in USES if use in self.capabilities)
        return f"MMLDLM({run}{count:,} parameters, {self.capabilities.trained_as}; can {uses or 'nothing'})"

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dim(self) -> int:
        """Dimension d of a latent.

        Raises:
            SamplingError: the run has no latents.
        """
        return self.converter.dim

    @property
    def encoder(self) -> Encoder:
        """Encoder that made the latents.

        Raises:
            SamplingError: there is no encoder, or the dimension of its vectors differs from that of the latents.
        """
        return self.converter.encoder

    @property
    def no_encoder(self) -> str | None:
        """Reason why the encoder cannot embed texts here; None if it can. Search, re-embedding and texts as targets
        need it."""
        return self.converter.no_encoder

    def text_sampler(self, sampler: Any, steps: int | None, *, conditional: bool = True) -> Any:
        """Return the configuration of a text sampler; None is the default of the model."""
        return text_sampler_of(sampler, steps, default=self.model.default_sampler(conditional=conditional))

    def texts(
        self,
        written: Written,
        sources: Sequence[str | None],
        raw_nd: Floats | None,
        *,
        reembed: bool = False,
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
            cosines, encoder_calls = self.converter.cosines(texts, raw_nd), encoder_calls + 1
        known = [source for source in sources if source is not None]
        return Texts(
            texts=tuple(texts),
            tokens=written.tokens,
            log_probs=written.log_probs,
            model_calls=written.model_calls,
            encoder_calls=encoder_calls,
            sources=tuple(sources),
            cosines=cosines,
            latents=raw_nd,
            latent_norms=None if raw_nd is None else self.converter.norms(raw_nd),
            unknown=self.converter.unknown(self.tokenizer.encode(known)) if known else None,
        )
