"""The model of a run as all requests use it: its parts, conversion to and from the model, and results.

Texts and raw latents (the encoder's vectors) are converted to token ids and standardised latents, and back.
"""

import collections
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core import SamplingError, check, parse_kind, show
from mm_ldlm.data.latents.normaliser import norms
from mm_ldlm.data.latents.recognition import Signature, Verdict, cosines_of, known_encoders, recognise, unit
from mm_ldlm.inference.arguments import (
    MODEL,
    Floats,
    array_of,
    check_lengths,
    is_column,
    listed,
    texts_of,
    vectors_of,
)
from mm_ldlm.inference.files import read_array
from mm_ldlm.inference.loading import Parts
from mm_ldlm.inference.precision import in_precision
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.traces import traces_of
from mm_ldlm.inference.writer import Reembed, Writer, Written
from mm_ldlm.models.defaults import plain_defaults
from mm_ldlm.objectives.capabilities import USES
from mm_ldlm.sampling.limits import Steps, Temperature
from mm_ldlm.sampling.registry import TEXT_SAMPLERS
from mm_ldlm.training.checkpoints.reference import split_path

log = logging.getLogger(__name__)

Latents = npt.ArrayLike
"""(n, d) raw, or one (d,)"""
TooLong = Literal["refuse", "truncate"]
"""Treatment of a text of more tokens than the model, or the encoder, reads"""
HARMFUL = 0.05
"""Length of noise, or of rounding errors, relative to the latents, from which on a warning states it"""
FARTHEST = 1e6
"""Largest standardised coordinate of a latent; training data have a standard deviation of about 1"""

Request = TypeVar("Request", bound=Callable[..., Any])
READ = "it reads them as [UNK]"
"""Treatment of words outside the vocabulary: the model reads them."""
ENCODED = "the encoder reads them, but the model cannot write them"
"""The same for texts whose latents are the targets."""


def by_row(request: Request) -> Request:
    """Mark a request that answers each row by that row, its number and the options only.

    The rows of several such requests can be computed together, with their own numbers (`Writer.numbers`).
    """
    request.__dict__["by_row"] = True
    return request


@functools.lru_cache(256)
def _warn(message: str) -> None:
    """Log a warning about latents, once in a process: several tasks of a run read the same ones."""
    log.warning("%s", message)


class Encoder(Protocol):
    """Interface of a sentence encoder."""

    @property
    def dim(self) -> int:
        """Dimension d of the vectors"""

    def encode(self, sentences: Sequence[str]) -> Floats:
        """Embed sentences: raw vectors (n, d) float32."""


class LoadedModel:
    """Model of a run and what all requests to it share.

    Attributes:
        parts: the parts of the run.
        shape: vocabulary size, maximum text length, and the shapes of the other data.
        max_length: number of tokens of the longest text that the model reads at once.
        normaliser: normaliser of the latents; None for a run without latents.
        batch_tokens: number of tokens of one batch, including pads.
        strict: whether latents that are not the encoder's (`recognise`) are refused, and unusual ones cause warnings;
            False for an audit of altered vectors.

    Args:
        encoder: the encoder that made the latents; None loads the run's when it is first needed.
        batch_tokens: None chooses it by the device and the size of the vocabulary. A CPU computes a batch on each core.
    """

    strict = True

    def __init__(self, parts: Parts, encoder: Encoder | None = None, *, batch_tokens: int | None = None) -> None:
        if encoder is not None and not (hasattr(encoder, "encode") and hasattr(encoder, "dim")):
            raise SamplingError(f"encoder: expected an encoder (dim, encode), found {show(encoder, 60)}.")
        self.parts, self.model, self.capabilities = parts, parts.model, parts.capabilities
        self.tokenizer, self.normalisers = parts.tokenizer, parts.normalisers
        self.normaliser: Any = parts.normalisers.get("normaliser")
        self.shape, self.max_length = parts.model.shape, parts.model.shape.max_length
        self.writer = Writer(in_precision(parts.model, parts.precision), batch_tokens=batch_tokens)
        self.batch_tokens, self._encoder = self.writer.batch_tokens, encoder
        # Batches are searched side by side, and an encoder need not be thread-safe. The lock of another thread would
        # stay locked in a forked process, so that each process has one.
        self._one_at_a_time: dict[int, threading.Lock] = collections.defaultdict(threading.Lock)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse pickling, which runs code when it is read and does not contain the encoder, and copying."""
        raise SamplingError(
            "MMLDLM is neither pickled nor copied. Load it again by MMLDLM.from_run(path), in another process too."
        )

    def traced(self) -> Self:
        """Return this model so that every text that it writes is returned with its trace (`Texts.traces`).

        The texts are the same. With `search` or `reembed`, the text of each step is compared with the target, at one
        encoder call each, which `encoder_calls` does not count.
        """
        made = type(self).__new__(type(self))
        writer = Writer(self.writer.model, batch_tokens=self.batch_tokens, traced=True)
        made.__dict__ = {**self.__dict__, "writer": writer}
        return made

    def __repr__(self) -> str:
        """Name the run, the step, the number of parameters and the uses in one line."""
        found = self.parts.checkpoint
        run = f"{split_path(found)[0].name}, step {self.parts.step:,}, " if found else ""
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
        if "latents" not in self.shape.fields:
            raise SamplingError(
                "this run has no latents: its objective reads none. Choose a run whose objective reads latents "
                "(docs/models.md), such as one of base."
            )
        return self.shape.dim("latents") if self.normaliser is None else int(self.normaliser.dim)

    @property
    def no_encoder(self) -> str | None:
        """Reason why the encoder cannot embed texts here; None if it can. Search, re-embedding and texts as targets
        need it."""
        return self.parts.no_encoder if self._encoder is self.parts.load_encoder is None else None

    @property
    def encoder(self) -> Encoder:
        """Encoder that made the latents.

        Raises:
            SamplingError: there is no encoder.
        """
        if self._encoder is None and self.parts.load_encoder is not None:
            with plain_defaults():
                self._encoder = self.parts.load_encoder()
        if self._encoder is None:
            raise SamplingError(
                f"expected the encoder that made the latents, but {self.no_encoder} For a trained run "
                "name it by --encoder NAME, in Python by encoder=load_encoder(...), or give latents instead of texts."
            )
        return self._encoder

    # --- to the model -------------------------------------------------------------------------------------------------

    def targets(
        self, value: Any, *, name: str, written: bool = True, too_long: TooLong = "refuse"
    ) -> tuple[list[str | None], Floats]:
        """Convert texts, a `.npy` path or vectors, the argument `name`, to (source texts or None, raw latents).

        `written` is whether texts are written from the latents; words that the model cannot write then cause a warning.
        """
        if isinstance(value, Path) or (isinstance(value, str) and value.endswith(".npy")):
            value = vectors_of(read_array(value), dim=self.dim, name=str(value))
        if not isinstance(value, (str, torch.Tensor)) and is_column(value):
            value = listed(value, name=name)  # an iterator ends
        if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], str)):
            texts = texts_of(value, name=name)
            if written:
                self.warn_of_unknown(self.tokenizer.encode(texts), texts, effect=ENCODED)
            return list(texts), self.encoded(texts, too_long=too_long, name=name)
        raw_nd = vectors_of(value, dim=self.dim, name=name)
        return [None] * len(raw_nd), raw_nd

    def encoded(self, texts: Sequence[str], *, too_long: TooLong = "refuse", name: str = "texts") -> Floats:
        """Embed texts with the encoder: raw latents (n, d), checked to be finite and one for each text.

        A text of more tokens than the encoder reads is refused, or truncated.
        """
        dim = self.dim
        with self._one_at_a_time[os.getpid()], plain_defaults():  # the first one loads it
            most = getattr(self.encoder, "max_length", None) if texts else None
            if check(too_long, TooLong, name="too_long") == "refuse" and most is not None:
                counts = cast(Any, self.encoder).count_tokens(texts)
                check_lengths(counts, texts, most=most, of="the encoder", name=name)
            found: Any = self.encoder.encode(texts) if texts else []
            return vectors_of(found, dim=dim, name="encoder", count=len(texts))

    def ids(
        self, texts: Sequence[str], *, too_long: TooLong = "refuse", effect: str = READ, name: str = "texts"
    ) -> list[list[int]]:
        """Tokenise texts; each must have 1 to `max_length` ids. Unknown words cause a warning that states `effect`."""
        ids = self.tokenizer.encode(list(texts))
        if check(too_long, TooLong, name="too_long") == "truncate":
            ids = [row[: self.shape.max_length] for row in ids]
        check_lengths([*map(len, ids)], texts, most=self.shape.max_length, of=MODEL, name=name)
        self.warn_of_unknown(ids, texts, effect=effect)
        return ids

    def warn_of_unknown(self, ids: Sequence[Sequence[int]], texts: Sequence[str], *, effect: str = READ) -> None:
        """Warn about texts with words outside the vocabulary; `effect` states what happens to these words."""
        if rows := [row for row, tokens in enumerate(ids) if self.tokenizer.unk_id in tokens]:
            log.warning(
                "%d of %d texts contain words outside this model's vocabulary; %s: %s",
                len(rows), len(texts), effect, ", ".join(show(texts[row], 60) for row in rows[:3]),
            )  # fmt: skip

    def unknown(self, ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        """Compute the fraction (n,) of [UNK] among the ids of each text."""
        return np.array([list(row).count(self.tokenizer.unk_id) / max(len(row), 1) for row in ids])

    def standardised(self, raw_nd: Floats) -> torch.Tensor:
        """Standardise raw latents: (n, d) float32 on the model's device, with a warning where they are unusual.

        Raises:
            SamplingError: latents are so far from the training data that results are meaningless, or they are not the
                encoder's vectors (`recognise`).
        """
        standard_nd = np.asarray(self.normaliser.standardise(raw_nd), dtype=np.float64)
        largest_n = np.abs(standard_nd).max(axis=1)
        if (rows := np.flatnonzero(~(largest_n <= FARTHEST))).size:
            raise SamplingError(
                f"latents: expected vectors like those that the encoder makes, found {len(rows)} of {len(raw_nd)} that "
                f"are more than {FARTHEST:g} standard deviations away from them (row {rows[0]}: "
                f"{largest_n[rows[0]]:.3g}). Check their scale."
            )
        if self.strict:
            self._judge(raw_nd, norms(standard_nd))
        return torch.from_numpy(standard_nd.astype(np.float32)).to(self.device)

    def _judge(self, raw_nd: Floats, norms_n: npt.NDArray[np.float64]) -> None:
        """Refuse latents that are not the encoder's, and warn of unusual ones."""
        unlike_n = np.concatenate([self._judged(part_nd) for part_nd in self.writer.by_request(raw_nd)])
        low, high = getattr(self.normaliser, "typical", None) or (0.0, np.inf)
        outside = np.flatnonzero((norms_n < low) | (norms_n > high))
        shown = ", ".join(f"{norms_n[row]:.2f}" for row in outside[:3])
        for rows, reason in (
            (outside, f"expected norms from {low:.2f} to {high:.2f} in standardised space, found {shown}"),
            (np.flatnonzero(unlike_n), "their directions are like random ones"),
        ):
            if rows.size:
                _warn(
                    f"{rows.size} of {len(norms_n)} latents are unlike those that the run was trained on, so results "
                    f"for them mean little: {reason} (rows {', '.join(map(str, rows[:3]))})"
                )

    def _judged(self, raw_nd: Floats) -> npt.NDArray[np.bool_]:
        """Refuse latents of one request that are not the encoder's, or warn; return which are like random ones (n,)."""
        verdict = self.recognise(raw_nd)
        if not verdict.usable:
            raise SamplingError(
                f"latents: expected vectors of the encoder that the run was trained on, found {len(raw_nd)} that look "
                f"like {verdict}. {verdict.remedy}"
            )
        if verdict.level >= HARMFUL:
            _warn(f"the {len(raw_nd)} latents look like {verdict}; their texts are less accurate")
        return np.asarray(verdict.unlike, bool) if len(verdict.unlike) else np.zeros(len(raw_nd), bool)

    def recognise(self, latents: Latents) -> Verdict:
        """Judge whether raw latents (n, d) are the encoder's vectors, altered ones, others or random numbers.

        A run without the signature of its encoder, which needs many vectors, judges all latents as its own.
        """
        signature: Signature | None = getattr(self.normaliser, "signature", None)
        signature = signature or known_encoders().get(self.parts.encoder)
        if signature is None or signature.dim != self.dim:
            return Verdict("own")
        return recognise(array_of(latents, name="latents"), signature)

    # --- from the model -----------------------------------------------------------------------------------------------

    def norms(self, raw_nd: Floats) -> npt.NDArray[np.float64]:
        """Compute the root mean square (n,) of the standardised coordinates of raw latents, about 1 in training."""
        return norms(np.asarray(self.normaliser.standardise(raw_nd)))

    def raw(self, latents_nd: npt.NDArray[np.floating]) -> Floats:
        """Convert standardised latents to raw ones, of unit norm if the encoder's vectors have unit norm."""
        raw_nd = np.asarray(self.normaliser.invert(latents_nd), dtype=np.float32)
        return vectors_of(raw_nd, dim=self.dim, name="latents that the model drew (a lower guidance keeps them small)")

    def reembedded(self, texts: Sequence[str], raw_md: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Embed texts that the model wrote: cosines (m,) to raw latents (m, d), and standardised latents (m, d).

        The standardised latents have the directions of the texts and the norms of the raw latents, because the scale of
        an encoder may differ from the scale of the latents.
        With an adapter and without the encoder of the latents, both are compared as vectors of the run's own encoder.
        """
        normaliser = self.normaliser
        if self._encoder is None and self.parts.load_own is not None:
            with self._one_at_a_time[os.getpid()], plain_defaults():
                found_md = self.parts.load_own().encode(list(texts)) if texts else raw_md[:0]
            raw_md, normaliser = normaliser.adapter.to_own(raw_md), normaliser.normaliser
        else:
            found_md = self.encoded(texts, too_long="truncate")
        lengths_m1 = np.linalg.norm(raw_md, axis=1, keepdims=True)
        return cosines_of(found_md, raw_md), normaliser.standardise(unit(found_md) * lengths_m1)

    def reembed(self, raw_nd: Floats) -> Reembed:
        """Make the function that embeds texts, given as ids, and compares each with a row of the raw latents (n, d)."""
        return lambda tokens, rows: self.reembedded(self.tokenizer.decode_batch(tokens), raw_nd[rows])

    def text_sampler(
        self, sampler: Any, steps: int | None, temperature: float | None = None, *, conditional: bool = True
    ) -> Any:
        """Return the configuration of a text sampler, with the caller's steps and temperature.

        None is the default of the model; a kind has the steps and the temperature of the default.

        Raises:
            ConfigurationError: there is no such kind, or a value is out of range; the message lists the kinds.
        """
        steps, default = check(steps, Steps | None, name="steps"), self.model.default_sampler(conditional=conditional)
        temperature = check(temperature, Temperature | None, name="temperature")
        if isinstance(sampler, str):
            known = getattr(TEXT_SAMPLERS.find(sampler, at="sampler"), "__dataclass_fields__", {})
            kept = [key for key in ("steps", "temperature") if key in known and hasattr(default, key)]
            inner = {"inner": default} if "inner" in known else {}
            sampler = {"kind": sampler, **{key: getattr(default, key) for key in kept}, **inner}
        chosen = parse_kind(TEXT_SAMPLERS, default if sampler is None else sampler, at="sampler")
        return chosen if steps is temperature is None else chosen.override(steps=steps, temperature=temperature)

    def texts(
        self,
        written: Written,
        sources: Sequence[str | None],
        raw_nd: Floats | None,
        *,
        reembed: bool = False,
        texts: Sequence[str] | None = None,
    ) -> Texts:
        """Make the result of texts that were written; `reembed` adds their cosines to the latents `raw_nd`.

        Without `texts`, the tokens are decoded.
        """
        texts = self.tokenizer.decode_batch(written.tokens) if texts is None else texts
        cosines, encoder_calls = written.cosines, written.encoder_calls
        if reembed and cosines is None and raw_nd is not None:
            cosines, encoder_calls = self.reembedded(texts, raw_nd)[0], encoder_calls + 1
        known = [source for source in sources if source is not None]
        compare = None if cosines is None or raw_nd is None else self.reembed(raw_nd)
        return Texts(
            texts=tuple(texts),
            tokens=tuple(written.tokens),
            log_probs=written.log_probs,
            model_calls=written.model_calls,
            encoder_calls=encoder_calls,
            sources=tuple(sources),
            cosines=cosines,
            latents=raw_nd,
            latent_norms=None if raw_nd is None else self.norms(raw_nd),
            unknown=self.unknown(self.tokenizer.encode(known)) if known else None,
            traces=None if written.traces is None else traces_of(written.traces, self.tokenizer, reembed=compare),
        )
