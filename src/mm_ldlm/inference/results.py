"""Results of `MMLDLM`: frozen records with one entry for each text of the request; each converts to a table.

Calls are counted for each text: the model calls in which it took part (a guided call counts 2), and the sentences that
the encoder embedded for it.

n texts, d latent dimension, K draws.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mm_ldlm.inference.traces import Trace

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Texts:
    """Texts that a sampler wrote."""

    main: ClassVar[str] = "texts"
    """The field that answers the request"""
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...] = field(repr=False)
    log_probs: Floats = field(repr=False)
    """(n,) nats: sum of the log-probabilities of the written tokens when they were unmasked"""
    model_calls: Ints
    encoder_calls: Ints
    sources: tuple[str | None, ...]
    """The text that was inverted, infilled or edited; None if there was none"""
    cosines: Floats | None = None
    """(n,) cosine of the re-embedded text to the target latent; None without re-embedding"""
    p_exact: Floats | None = None
    """(n,) probability that the text is exact, as its source was written; like the two fields below None without
    re-embedding, and where the run has no calibration"""
    p_up_to_case: Floats | None = None
    """(n,) probability that it is exact up to case"""
    p_content_words: Floats | None = None
    """(n,) probability that its content words equal the source's"""
    latents: Floats | None = field(default=None, repr=False)
    """(n, d) raw latents of the texts: the condition, or generated with the text"""
    latent_norms: Floats | None = field(default=None, repr=False)
    """(n,) root mean square of the standardised coordinates of each latent: about 1 for latents like the training data
    (`Normaliser.typical` is their range); None without latents"""
    unknown: Floats | None = field(default=None, repr=False)
    """(n,) fraction of the tokens of each source that are [UNK]; None without sources"""
    rows: Ints | None = None
    """(n,) latent, or pair of latents, of the request that each text was written for, where each has several texts"""
    samples: Ints | None = None
    """(n,) number of the text among the texts of its latent, from 0"""
    best: npt.NDArray[np.bool_] | None = None
    """(n,) whether the text is the best of its latent: of the highest cosine, or score without cosines (`invert`)"""
    fractions: Floats | None = None
    """(n,) position of an interpolated latent: 0 at the first of its pair, 1 at the second"""
    traces: tuple[Trace, ...] | None = field(default=None, repr=False)
    """How each text was written; None unless the model records it (`MMLDLM.traced`)"""

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, index: Ints) -> Texts:
        """Return the texts with these numbers, in this order."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        chosen: dict[str, Any] = {
            name: tuple(value[i] for i in index) if isinstance(value, tuple) else np.asarray(value)[index]
            for name, value in given.items()
        }
        return replace(self, **chosen)

    def to_frame(self) -> pd.DataFrame:
        """Convert to a table with one row per text; latents are a list column."""
        return _table(
            source=self.sources, text=self.texts, length=[len(tokens) for tokens in self.tokens],
            log_prob=self.log_probs, model_calls=self.model_calls, encoder_calls=self.encoder_calls,
            cosine=self.cosines, p_exact=self.p_exact, p_up_to_case=self.p_up_to_case,
            p_content_words=self.p_content_words, latent=self.latents, latent_norm=self.latent_norms,
            unknown=self.unknown,
            row=self.rows, sample=self.samples, best=self.best, fraction=self.fractions,
        )  # fmt: skip


@dataclass(frozen=True)
class Embeddings:
    """Latents that a sampler drew for texts."""

    main: ClassVar[str] = "latents"
    sources: tuple[str, ...]
    latents: Floats = field(repr=False)
    """(n, d) raw: the mean of the draws, of unit norm if the encoder's vectors have unit norm"""
    draws: Floats = field(repr=False)
    """(K, n, d) raw"""
    model_calls: Ints
    unknown: Floats | None = field(default=None, repr=False)
    """(n,) fraction of the tokens of each text that are [UNK]"""

    def __len__(self) -> int:
        return len(self.sources)

    def to_frame(self) -> pd.DataFrame:
        """Convert to a table with one row per text; latents are a list column."""
        return _table(source=self.sources, latent=self.latents, model_calls=self.model_calls)


@dataclass(frozen=True)
class Scores:
    """Negative log-likelihoods of texts in nats: exact, or upper bounds (NELBO)."""

    main: ClassVar[str] = "nll"
    texts: tuple[str, ...]
    tokens: Ints
    """(n,) number of tokens of each text"""
    likelihood: str
    """"exact", "bound" or "given_length" (`Capabilities`)"""
    length_nll: Floats
    """(n,) −log p(length); 0 given the length, and for a model with an end token, whose −log p is part of
    `token_nll`"""
    token_nll: Floats
    """(n,) −log p(tokens | length) or an upper bound on it, float64, mean over the draws"""
    standard_errors: Floats
    """(n,) standard error of `token_nll` for independent draws; low-discrepancy draws have a smaller one. One draw
    of a bound has none: NaN"""
    draw_nll: Floats = field(repr=False)
    """(K, n) nats: each draw of `token_nll`; K = 1 if it is exact"""
    draw_mask_ratio: Floats | None = field(default=None, repr=False)
    """(K, n) noise level in (0, 1]: the expected mask ratio if the noise is [MASK]; None if the likelihood is exact,
    like the three fields below"""
    draw_masked: Floats | None = field(default=None, repr=False)
    """(K, n) number of scored tokens: the masked ones where the noise is [MASK]"""
    draw_correct: Floats | None = field(default=None, repr=False)
    """(K, n) number of scored tokens at which the model's most probable token is correct"""
    draw_cross_entropy: Floats | None = field(default=None, repr=False)
    """(K, n) nats: sum of the cross-entropy of the scored tokens, without the weight of the NELBO"""
    unknown: Floats | None = field(default=None, repr=False)
    """(n,) fraction of the tokens of each text that are [UNK]"""

    @property
    def nll(self) -> Floats:
        """(n,) −log p(text), or an upper bound on it"""
        return self.length_nll + self.token_nll

    def to_frame(self) -> pd.DataFrame:
        """Convert to a table with one row per text."""
        return _table(
            text=self.texts, tokens=self.tokens, length_nll=self.length_nll, token_nll=self.token_nll, nll=self.nll,
            standard_error=self.standard_errors,
        )  # fmt: skip


@dataclass(frozen=True)
class Neighbours:
    """The k nearest of other latents to each of n latents, nearest first."""

    main: ClassVar[str] = "nearest"
    rows: Ints
    """(n, k) row among the other latents, or of the records of the dataset"""
    cosines: Floats
    """(n, k)"""
    texts: tuple[tuple[str, ...], ...] | None = None
    """(n, k) texts of these rows of a dataset; None for latents without texts"""

    @property
    def nearest(self) -> Any:
        """(n, k) the texts, or the rows of latents without texts"""
        return self.rows if self.texts is None else self.texts

    def to_frame(self) -> pd.DataFrame:
        """Convert to a table with one row per (query, rank)."""
        n, k = self.rows.shape
        return _table(
            query=np.repeat(np.arange(n), k), rank=np.tile(np.arange(1, k + 1), n), row=self.rows.ravel(),
            cosine=self.cosines.ravel(), text=None if self.texts is None else [*itertools.chain(*self.texts)],
        )  # fmt: skip


def _table(**columns: Any) -> pd.DataFrame:
    """Make a table of the columns that are not None; the rows of a matrix become lists."""
    import pandas as pd

    given = {name: column for name, column in columns.items() if column is not None}
    return pd.DataFrame({name: list(column) if np.ndim(column) == 2 else column for name, column in given.items()})
