"""Stored forms of vectors and defences, and the attackers that read texts behind them.

A `Form` turns vectors into what a database keeps: numbers that its search compares with a query. The naive
attacker takes these numbers for the vector. The adaptive attacker knows the form, and texts with their vectors: from
pairs of stored and original vectors it fits linear maps (a rotation by Procrustes, or ridge regression, which for
Gaussian noise is Wiener's filter) and keeps the one with the highest cosine on held-out pairs.

n rows, d dimensions.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.latents.recognition import cosines_of, unit
from mm_ldlm.extras.audit.config import AuditConfig

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Map = Callable[[Floats], Floats]
CENTROIDS, ITERATIONS, TRAINED_ON = 256, 8, 5000
"""Of product quantisation: centroids of a byte, iterations of k-means, and rows that they are fitted on"""
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Weights of the ridge regressions, relative to the mean variance of the stored numbers"""
COPIES = 40_000
"""Most pairs that the attacker makes of the known vectors, where it can noise them itself"""
HELD_OUT = 0.2
"""Fraction of the known pairs by which the attacker chooses its map"""


@dataclass(frozen=True)
class Form:
    """A way to store vectors.

    Attributes:
        name: the form, for the page.
        group: "stored as" or "defence".
        bytes_per_vector: size of a stored vector.
        store: vectors (n, d) to the stored numbers (n, d), as the search compares them.
        query: vectors of queries to the numbers that are compared with the stored ones.
        level: length of the noise relative to the vector, if the form is only noise.
        known_pairs: number of pairs that an attacker knows; None if the form is public, so that anyone makes pairs.
    """

    name: str
    group: str
    bytes_per_vector: float
    store: Map
    query: Map
    level: float | None = None
    known_pairs: int | None = None


def forms(config: AuditConfig, vectors_nd: Floats, *, seed: int) -> Iterator[Form]:
    """Yield the collection as it is, its stored forms and the defences; `vectors_nd` is the collection."""
    d = vectors_nd.shape[1]

    def same(x_nd: Floats) -> Floats:
        return x_nd

    yield Form("as it is", "stored as", 4 * d, same, same)
    yield Form("float16", "stored as", 2 * d, lambda x: x.astype(np.float16).astype(np.float64), same)
    yield Form("int8", "stored as", d, _int8(vectors_nd), same)
    yield Form("binary", "stored as", d / 8, _signs, _signs)
    for dims in config.code_dims:
        name = f"product quantisation, {dims} dimensions a byte"
        if d % dims or len(vectors_nd) < CENTROIDS:
            log.warning("%s: left out for %d vectors of dimension %d", name, len(vectors_nd), d)
            continue
        yield Form(name, "stored as", d / dims, _product_quantised(vectors_nd, dims, seed=seed), same)
    for part in (0.5, 0.25):
        kept = _truncated(max(1, round(part * d)))
        yield Form(f"first {max(1, round(part * d))} dimensions", "stored as", 4 * round(part * d), kept, kept)
    for decimals in (2, 1):
        yield Form(f"rounded to {decimals} decimal{'s' * (decimals != 1)}", "defence", 4 * d, _rounded(decimals), same)
    for place, level in enumerate(config.noise):
        yield Form(f"noise {level:g}", "defence", 4 * d, _noised(level, [seed, place]), same, level=level)
    turned = _rotated(d, seed)
    for pairs in config.known_pairs:
        name = f"secret rotation, {pairs:,} known pairs"
        yield Form(name, "defence", 4 * d, turned, turned, known_pairs=pairs)
    if config.known_pairs and config.noise:
        level, pairs = config.noise[len(config.noise) // 2], config.known_pairs[-1]
        noise = _noised(level, [seed, len(config.noise)])
        yield Form(
            f"secret rotation and noise {level:g}, {pairs:,} known pairs", "defence", 4 * d,
            lambda x: noise(turned(x)), turned, known_pairs=pairs,
        )  # fmt: skip


def _int8(vectors_nd: Floats) -> Map:
    """256 equal steps between the extremes of each dimension in the collection."""
    low_d, high_d = vectors_nd.min(axis=0), vectors_nd.max(axis=0)
    step_d = np.maximum(high_d - low_d, 1e-12) / 255
    return lambda x: np.rint((x - low_d) / step_d).clip(0, 255) * step_d + low_d


def _signs(x_nd: Floats) -> Floats:
    return np.where(x_nd > 0, 1.0, -1.0)


def _product_quantised(vectors_nd: Floats, dims: int, *, seed: int) -> Map:
    """The nearest of 256 centroids for each group of `dims` dimensions (Jégou et al. 2011)."""
    from scipy.cluster.vq import vq

    columns = [slice(start, start + dims) for start in range(0, vectors_nd.shape[1], dims)]
    rng = np.random.default_rng(seed)
    books = [_centroids(vectors_nd[:TRAINED_ON, each], rng) for each in columns]
    return lambda x: np.concatenate(
        [book[vq(x[:, each], book)[0]] for book, each in zip(books, columns, strict=True)], axis=1
    )


def _centroids(x_nd: Floats, rng: np.random.Generator) -> Floats:
    """Fit centroids by k-means; one without rows stays where it is."""
    from scipy.cluster.vq import kmeans2

    first_kd = x_nd[rng.choice(len(x_nd), CENTROIDS, replace=False)]
    with warnings.catch_warnings(action="ignore"):  # about centroids without rows
        return np.asarray(kmeans2(x_nd, first_kd, iter=ITERATIONS, minit="matrix")[0])


def _truncated(kept: int) -> Map:
    return lambda x: np.concatenate([x[:, :kept], np.zeros_like(x[:, kept:])], axis=1)


def _rounded(decimals: int) -> Map:
    return lambda x: np.round(x, decimals)


def _noised(level: float, seed: Any) -> Map:
    """Add Gaussian noise whose length is `level` times the vector's, on average in squares; new in each call."""
    rng = np.random.default_rng(seed)

    def noised(x_nd: Floats) -> Floats:
        noise_nd = rng.normal(size=x_nd.shape) / np.sqrt(x_nd.shape[1])
        return x_nd + level * np.linalg.norm(x_nd, axis=1, keepdims=True) * noise_nd

    return noised


def _rotated(d: int, seed: int) -> Map:
    """Multiply by a random orthogonal matrix (Haar)."""
    q_dd, r_dd = np.linalg.qr(np.random.default_rng([seed, 7]).normal(size=(d, d)))
    rotation_dd = q_dd * np.sign(np.diag(r_dd))
    return lambda x: x @ rotation_dd


# --- attackers --------------------------------------------------------------------------------------------------------


def pairs(form: Form, stored_md: Floats, original_md: Floats) -> tuple[Floats, Floats]:
    """Return the pairs of an attacker that knows m vectors: for a public noise it draws further noise for each."""
    if form.known_pairs is not None:
        return stored_md[: form.known_pairs], original_md[: form.known_pairs]
    if form.level is None:
        return stored_md, original_md
    many_Md = np.repeat(original_md, max(1, COPIES // len(original_md)), axis=0)
    return form.store(many_Md), many_Md


def adaptive(stored_md: Floats, original_md: Floats) -> tuple[str, Map]:
    """Fit the map of the adaptive attacker on m pairs; return its name and the map.

    The cosine on held-out pairs is of standardised vectors, which the model reads.
    """
    cut = max(1, round(len(stored_md) * HELD_OUT))
    mean_d, std_d = original_md.mean(axis=0), original_md.std(axis=0)
    std_d[std_d <= 1e-6 * std_d.max()] = np.inf  # the normaliser maps constant dimensions to 0
    held_md = (original_md[:cut] - mean_d) / std_d
    scores = []
    for name, fit in _FITS.items():
        found_md = unit(fit(stored_md[cut:], original_md[cut:])(stored_md[:cut])) * length_of(original_md)
        scores.append((cosines_of((found_md - mean_d) / std_d, held_md).mean(), name, fit))
    _, name, fit = max(scores, key=lambda score: score[0])
    return name, fit(stored_md, original_md)


def length_of(x_nd: Floats) -> float:
    """Compute the median length of vectors."""
    return float(np.median(np.linalg.norm(x_nd, axis=1)))


def _identity(stored_md: Floats, original_md: Floats) -> Map:
    return lambda x: x


def _procrustes(stored_md: Floats, original_md: Floats) -> Map:
    """The orthogonal map nearest to the pairs (Schönemann 1966)."""
    left_dd, _, right_dd = np.linalg.svd(stored_md.T @ original_md)
    return lambda x: x @ (left_dd @ right_dd)


def _ridge(ridge: float) -> Callable[[Floats, Floats], Map]:
    def fit(stored_md: Floats, original_md: Floats) -> Map:
        from sklearn.linear_model import Ridge

        alpha = ridge * max(stored_md.var(axis=0).mean() * len(stored_md), 1e-12)
        found: Map = Ridge(alpha, solver="cholesky").fit(stored_md, original_md).predict
        return found

    return fit


_FITS: dict[str, Callable[[Floats, Floats], Map]] = {
    "none": _identity, "rotation": _procrustes, **{f"ridge {ridge:g}": _ridge(ridge) for ridge in RIDGES},
}  # fmt: skip
"""Name of a map → the function that fits it on stored and original vectors"""


# --- retrieval --------------------------------------------------------------------------------------------------------

NEAREST = 10


def nearest(stored_nd: Floats, queries_qd: Floats) -> npt.NDArray[np.int64]:
    """Return the rows (q, `NEAREST`) nearest to each query by cosine, nearest first; query i is not near to row i."""
    found_qn = queries_qd @ unit(stored_nd).T
    found_qn[np.arange(len(queries_qd)), np.arange(len(queries_qd))] = -np.inf
    top_qk = np.argpartition(-found_qn, NEAREST - 1, axis=1)[:, :NEAREST]
    order_qk = np.argsort(-np.take_along_axis(found_qn, top_qk, axis=1), axis=1, kind="stable")
    return np.take_along_axis(top_qk, order_qk, axis=1)


def recall_and_ndcg(
    truth_qk: npt.NDArray[np.int64], found_qk: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:  # fmt: skip
    """Compute recall and nDCG (q,) of the rows that are found, compared with the original vectors.

    The gain of the nearest original row is K, of the second K − 1, and so on down to 1; other rows have none.
    """
    k = truth_qk.shape[1]
    same_qkk = found_qk[:, :, None] == truth_qk[:, None, :]
    gain_qk = (same_qkk * np.arange(k, 0, -1)).sum(axis=2)
    discount_k = 1 / np.log2(np.arange(2, k + 2))
    return same_qkk.any(axis=2).mean(axis=1), gain_qk @ discount_k / (np.arange(k, 0, -1) @ discount_k)
