"""Conversion of texts and raw latents (the encoder's vectors) to token ids and standardised latents, and back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.normaliser import norms
from mm_ldlm.inference import inputs
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.default_dtype import float32_by_default

log = logging.getLogger(__name__)

Latents = npt.ArrayLike
"""(n, d) raw, or one (d,)"""
Floats = npt.NDArray[np.float32]
TooLong = Literal["refuse", "truncate"]
"""Treatment of a text of more tokens than the model reads; encoders truncate."""


FARTHEST = 1e6
"""Largest standardised coordinate of a latent; those of training data have a standard deviation of about 1"""


def refuse_huge(largest_n: npt.NDArray[np.floating]) -> None:
    """Raise SamplingError if a latent is so far from the training data that results are meaningless."""
    if (rows := np.flatnonzero(~(largest_n <= FARTHEST))).size:
        raise SamplingError(
            f"latents: expected vectors like those that the encoder makes, found {len(rows)} of {len(largest_n)} that "
            f"are more than {FARTHEST:g} standard deviations away from them (row {rows[0]}: {largest_n[rows[0]]:.3g}). "
            "Check their scale."
        )


def fraction_of(token: int, ids: Sequence[int]) -> float:
    """Compute the fraction of one id among the ids of a text; 0 for a text without ids."""
    return sum(found == token for found in ids) / max(len(ids), 1)


class Encoder(Protocol):
    """Interface of a sentence encoder."""

    @property
    def dim(self) -> int:
        """Dimension d of the vectors"""
        ...

    def encode(self, sentences: Sequence[str]) -> Floats:
        """Embed sentences: raw vectors (n, d) float32."""
        ...


class Edge:
    """Converter of checked inputs to ids and standardised latents, and of results to raw latents and cosines.

    Args:
        shape: maximum text length and dimension of a latent.
        normaliser: None for a run without latents.
        load_encoder: loads the encoder when it is first needed, if `encoder` is None.
        no_encoder: the reason why there is neither, if it is known.
    """

    def __init__(
        self,
        shape: DataShape,
        device: torch.device,
        tokenizer: TextTokenizer,
        normaliser: Any | None,
        *,
        encoder: Encoder | None,
        load_encoder: Callable[[], Encoder] | None,
        no_encoder: str | None = None,
    ) -> None:
        self.shape, self.device, self.tokenizer, self.normaliser = shape, device, tokenizer, normaliser
        self.loaded, self.load_encoder, self._no_encoder = encoder, load_encoder, no_encoder
        self._one_at_a_time = threading.Lock()  # batches are searched side by side; an encoder need not be thread-safe

    @property
    def dim(self) -> int:
        """Dimension d of a latent.

        Raises:
            SamplingError: the run has no latents.
        """
        if self.shape.latent_dim is None:
            raise SamplingError(
                "this run has no latents: its objective reads none. Choose a run whose objective reads latents "
                "(docs/models.md), such as one of base."
            )
        return self.shape.latent_dim

    @property
    def encoder(self) -> Encoder:
        """Encoder that made the latents.

        Raises:
            SamplingError: there is no encoder, or the dimension of its vectors differs from that of the latents.
        """
        dim = self.dim
        if self.loaded is None and self.load_encoder is not None:
            with float32_by_default():
                self.loaded = self.load_encoder()
        if self.loaded is None:
            raise SamplingError(
                f"expected the encoder that made the latents, but {self.no_encoder} In Python, pass "
                "encoder=load_encoder(...), or give latents instead of texts."
            )
        if self.loaded.dim != dim:
            raise SamplingError(
                f"expected an encoder of dimension {dim}, found one of dimension {self.loaded.dim}. Pass the encoder "
                "that made the latents."
            )
        return self.loaded

    @property
    def no_encoder(self) -> str | None:
        """Why texts cannot be embedded by the encoder; None if they can."""
        if self.loaded is not None or self.load_encoder is not None:
            return None
        return self._no_encoder or "this model was built without one."

    # --- inputs -------------------------------------------------------------------------------------------------------

    def targets(self, targets: Any, *, written: bool = True) -> tuple[list[str | None], Floats]:
        """Convert texts, a `.npy` path or vectors to (source texts or None, raw latents).

        `written` is whether texts are written from the latents; words that the model cannot write then cause a warning.
        """
        if isinstance(targets, Path) or (isinstance(targets, str) and targets.endswith(".npy")):
            raw_nd = inputs.read_npy(targets, dim=self.dim)
            return [None] * len(raw_nd), raw_nd
        targets = inputs.read_once(targets)
        if inputs.are_texts(targets):
            listed = inputs.check_texts(targets)
            if written:
                ids = self.tokenizer.encode(listed)
                inputs.warn_of_unknown(ids, listed, unk_id=self.tokenizer.unk_id, effect=inputs.ENCODED)
            return list(listed), self.encoded(listed)
        raw_nd = inputs.check_latents(targets, dim=self.dim)
        return [None] * len(raw_nd), raw_nd

    def encoded(self, texts: Sequence[str]) -> Floats:
        """Embed texts by the encoder: raw latents (n, d), checked to be finite and one for each text."""
        with self._one_at_a_time, float32_by_default():
            raw_nd = inputs.check_latents(self.encoder.encode(texts), dim=self.dim, what="encoder")
        if len(raw_nd) != len(texts):
            raise SamplingError(f"expected a vector for each of {len(texts)} texts, the encoder made {len(raw_nd)}.")
        return raw_nd

    def given(self, latents: Latents | None, *, rows: int) -> Floats | None:
        """Check raw latents (rows, d), one for each text; None if none are given."""
        if latents is None:
            return None
        raw_nd = inputs.check_latents(latents, dim=self.dim)
        if len(raw_nd) != rows:
            raise SamplingError(f"expected one latent for each of {rows} texts, found {len(raw_nd)} latents.")
        return raw_nd

    def ids(self, texts: Sequence[str], *, too_long: TooLong = "refuse", effect: str = inputs.READ) -> list[list[int]]:
        """Tokenise texts; each must have 1 to `max_length` ids. Unknown words cause a warning that states `effect`."""
        ids = self.tokenizer.encode(list(texts))
        if too_long == "truncate":
            ids = [row[: self.shape.max_length] for row in ids]
        inputs.check_lengths([len(row) for row in ids], texts, max_length=self.shape.max_length)
        inputs.warn_of_unknown(ids, texts, unk_id=self.tokenizer.unk_id, effect=effect)
        return ids

    def standardised(self, raw_nd: Floats) -> torch.Tensor:
        """Standardise raw latents: (n, d) float32 on the model's device."""
        assert self.normaliser is not None
        standard_nd = np.asarray(self.normaliser.standardise(raw_nd), dtype=np.float64)
        refuse_huge(np.abs(standard_nd).max(axis=1))
        self._warn_of_unlike(norms(standard_nd))
        return torch.from_numpy(standard_nd.astype(np.float32)).to(self.device)

    def norms(self, raw_nd: Floats) -> npt.NDArray[np.float64]:
        """Compute the root mean square (n,) of the standardised coordinates of raw latents, about 1 in training."""
        assert self.normaliser is not None
        return norms(np.asarray(self.normaliser.standardise(raw_nd)))

    def unknown(self, texts: Sequence[str | None]) -> npt.NDArray[np.float64] | None:
        """Compute the fraction (n,) of [UNK] among the tokens of each text; NaN without a text, None without any."""
        known = [text for text in texts if text is not None]
        if not known:
            return None
        rows = iter(self.tokenizer.encode(known))
        return np.array([np.nan if text is None else fraction_of(self.tokenizer.unk_id, next(rows)) for text in texts])

    def _warn_of_unlike(self, norms_n: npt.NDArray[np.float64]) -> None:
        """Warn of latents whose norm lies outside the range that the validation split has."""
        if (typical := getattr(self.normaliser, "typical", None)) is None:
            return
        low, high = typical
        if (rows := np.flatnonzero((norms_n < low) | (norms_n > high))).size:
            log.warning(
                "%d of %d latents are unlike those that the run was trained on, so results for them mean little: "
                "expected norms from %.2f to %.2f in standardised space, found %s (rows %s)",
                rows.size, len(norms_n), low, high, ", ".join(f"{norms_n[row]:.2f}" for row in rows[:3]),
                ", ".join(str(row) for row in rows[:3]),
            )  # fmt: skip

    # --- outputs ------------------------------------------------------------------------------------------------------

    def raw(self, latents_nd: torch.Tensor) -> Floats:
        """Convert standardised latents to raw ones, of unit norm if the encoder's vectors have unit norm."""
        assert self.normaliser is not None
        raw_nd = np.asarray(self.normaliser.invert(latents_nd.float().cpu().numpy()), dtype=np.float32)
        if not np.isfinite(raw_nd).all():
            row = int(np.flatnonzero(~np.isfinite(raw_nd).all(axis=1))[0])
            raise SamplingError(
                f"row {row} of the request: the model drew a latent that exceeds float32. Lower the guidance."
            )
        return raw_nd

    def cosines(self, raw_nd: Floats) -> Callable[[list[list[int]], list[int]], list[float]]:
        """Return the function (token ids of m texts, row of `raw_nd` of each) → m cosines of the re-embedded texts."""
        return lambda tokens, rows: self.cosines_of(self.tokenizer.decode_batch(tokens), raw_nd[rows]).tolist()

    def cosines_of(self, texts: Sequence[str], raw_md: Floats) -> npt.NDArray[np.float64]:
        """Cosines (m,) of the re-embedded texts to raw latents (m, d)."""
        found_md, target_md = self.encoded(texts).astype(np.float64), raw_md.astype(np.float64)
        for vectors_md in (found_md, target_md):
            vectors_md /= np.maximum(np.linalg.norm(vectors_md, axis=1, keepdims=True), 1e-12)
        return np.einsum("md,md->m", found_md, target_md)
