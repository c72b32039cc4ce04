"""Conversion of texts and raw latents (the encoder's vectors) to token ids and standardised latents, and back."""

from __future__ import annotations

import collections
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.core.messages import show
from mm_ldlm.data.latents.normaliser import norms
from mm_ldlm.inference.arguments import (
    Floats,
    begins_with_text,
    check_lengths,
    listed,
    read_vectors,
    texts_of,
    vectors_of,
)
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.defaults import plain_defaults

log = logging.getLogger(__name__)

Latents = npt.ArrayLike
"""(n, d) raw, or one (d,)"""
TooLong = Literal["refuse", "truncate"]
"""Treatment of a text of more tokens than the model reads; encoders truncate."""
FARTHEST = 1e6
"""Largest standardised coordinate of a latent; those of training data have a standard deviation of about 1"""

READ = "it reads them as [UNK]"
"""What happens to words outside the vocabulary: the model reads them."""
KEPT = f"{READ}, and the result keeps those that are not rewritten"
"""The same for texts of which a part is rewritten."""
ENCODED = "the encoder reads them, but the model cannot write them"
"""The same for texts whose latents are the targets."""


class Encoder(Protocol):
    """Interface of a sentence encoder."""

    @property
    def dim(self) -> int:
        """Dimension d of the vectors"""
        ...

    def encode(self, sentences: Sequence[str]) -> Floats:
        """Embed sentences: raw vectors (n, d) float32."""
        ...


class Converter:
    """Converter of texts and raw latents to ids and standardised latents on the device of the model, and back.

    Args:
        parts: the parts of the run.
        encoder: the encoder; None loads that of the run when it is first needed.
    """

    def __init__(self, parts: Parts, encoder: Encoder | None) -> None:
        if encoder is not None and not (hasattr(encoder, "encode") and hasattr(encoder, "dim")):
            raise SamplingError(f"encoder: expected an encoder (dim, encode), found {show(encoder, 60)}.")
        self.shape, self.tokenizer = parts.model.shape, parts.tokenizer
        self.normaliser: Any = parts.normalisers.get("normaliser")
        self._parts, self._encoder = parts, encoder
        # Batches are searched side by side, and an encoder need not be thread-safe. The lock of another thread would
        # stay locked in a forked process, so that each process has one.
        self._one_at_a_time: dict[int, threading.Lock] = collections.defaultdict(threading.Lock)

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
        return self.shape.dim("latents")

    @property
    def no_encoder(self) -> str | None:
        """Why texts cannot be embedded by the encoder; None if they can."""
        return self._parts.no_encoder if self._encoder is self._parts.load_encoder is None else None

    @property
    def encoder(self) -> Encoder:
        """Encoder that made the latents.

        Raises:
            SamplingError: there is no encoder, or the dimension of its vectors differs from that of the latents.
        """
        dim = self.dim
        if self._encoder is None and self._parts.load_encoder is not None:
            with plain_defaults():
                self._encoder = self._parts.load_encoder()
        if self._encoder is None:
            raise SamplingError(
                f"expected the encoder that made the latents, but {self.no_encoder} In Python, pass "
                "encoder=load_encoder(...), or give latents instead of texts."
            )
        if self._encoder.dim != dim:
            raise SamplingError(
                f"expected an encoder of dimension {dim}, found one of dimension {self._encoder.dim}. Pass the encoder "
                "that made the latents."
            )
        return self._encoder

    # --- to the model -------------------------------------------------------------------------------------------------

    def targets(self, value: Any, *, written: bool = True) -> tuple[list[str | None], Floats]:
        """Convert texts, a `.npy` path or vectors to (source texts or None, raw latents).

        `written` is whether texts are written from the latents; words that the model cannot write then cause a warning.
        """
        if isinstance(value, Path) or (isinstance(value, str) and value.endswith(".npy")):
            value = read_vectors(value, dim=self.dim)
        elif not isinstance(value, (str, np.ndarray, torch.Tensor, Sequence)):
            value = listed(value, name="targets") if getattr(value, "ndim", 1) == 1 else value  # an iterator ends
        if isinstance(value, str) or begins_with_text(value):
            texts = texts_of(value)
            if written:
                self.warn_of_unknown(self.tokenizer.encode(texts), texts, effect=ENCODED)
            return list(texts), self.encoded(texts)
        raw_nd = vectors_of(value, dim=self.dim)
        return [None] * len(raw_nd), raw_nd

    def encoded(self, texts: Sequence[str]) -> Floats:
        """Embed texts by the encoder: raw latents (n, d), checked to be finite and one for each text."""
        with self._one_at_a_time[os.getpid()], plain_defaults():
            raw_nd = vectors_of(self.encoder.encode(texts), dim=self.dim, name="encoder")
        if len(raw_nd) != len(texts):
            raise SamplingError(f"expected a vector for each of {len(texts)} texts, the encoder made {len(raw_nd)}.")
        return raw_nd

    def one_for_each(self, latents: Latents, texts: Sequence[str]) -> Floats:
        """Convert raw latents, one for each text, to (n, d)."""
        raw_nd = vectors_of(latents, dim=self.dim)
        if len(raw_nd) != len(texts):
            raise SamplingError(f"expected one latent for each of {len(texts)} texts, found {len(raw_nd)} latents.")
        return raw_nd

    def ids(self, texts: Sequence[str], *, too_long: TooLong = "refuse", effect: str = READ) -> list[list[int]]:
        """Tokenise texts; each must have 1 to `max_length` ids. Unknown words cause a warning that states `effect`."""
        ids = self.tokenizer.encode(list(texts))
        if too_long == "truncate":
            ids = [row[: self.shape.max_length] for row in ids]
        check_lengths(ids, texts, max_length=self.shape.max_length)
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
            SamplingError: latents are so far from the training data that results are meaningless.
        """
        standard_nd = np.asarray(self.normaliser.standardise(raw_nd), dtype=np.float64)
        largest_n = np.abs(standard_nd).max(axis=1)
        if (rows := np.flatnonzero(~(largest_n <= FARTHEST))).size:
            raise SamplingError(
                f"latents: expected vectors like those that the encoder makes, found {len(rows)} of {len(raw_nd)} that "
                f"are more than {FARTHEST:g} standard deviations away from them (row {rows[0]}: "
                f"{largest_n[rows[0]]:.3g}). Check their scale."
            )
        norms_n, (low, high) = norms(standard_nd), getattr(self.normaliser, "typical", None) or (0.0, np.inf)
        if (rows := np.flatnonzero((norms_n < low) | (norms_n > high))).size:
            log.warning(
                "%d of %d latents are unlike those that the run was trained on, so results for them mean little: "
                "expected norms from %.2f to %.2f in standardised space, found %s (rows %s)",
                rows.size, len(norms_n), low, high, ", ".join(f"{norms_n[row]:.2f}" for row in rows[:3]),
                ", ".join(str(row) for row in rows[:3]),
            )  # fmt: skip
        return torch.from_numpy(standard_nd.astype(np.float32)).to(self._parts.model.device)

    # --- from the model -----------------------------------------------------------------------------------------------

    def norms(self, raw_nd: Floats) -> npt.NDArray[np.float64]:
        """Compute the root mean square (n,) of the standardised coordinates of raw latents, about 1 in training."""
        return norms(np.asarray(self.normaliser.standardise(raw_nd)))

    def raw(self, latents_nd: npt.NDArray[np.floating]) -> Floats:
        """Convert standardised latents to raw ones, of unit norm if the encoder's vectors have unit norm."""
        raw_nd = np.asarray(self.normaliser.invert(latents_nd), dtype=np.float32)
        return vectors_of(raw_nd, dim=self.dim, name="latents that the model drew (a lower guidance keeps them small)")

    def cosines(self, texts: Sequence[str], raw_md: Floats) -> npt.NDArray[np.float64]:
        """Cosines (m,) of the re-embedded texts to raw latents (m, d)."""
        found_md, target_md = self.encoded(texts).astype(np.float64), raw_md.astype(np.float64)
        for vectors_md in (found_md, target_md):
            vectors_md /= np.maximum(np.linalg.norm(vectors_md, axis=1, keepdims=True), 1e-12)
        return np.einsum("md,md->m", found_md, target_md)
