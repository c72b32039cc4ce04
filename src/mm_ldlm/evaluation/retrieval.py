"""Quality of sampled latents compared with the encoder's: cosine, retrieval, neighbourhoods, distribution, calibration.

Shapes: N texts, d latent dimension, K samples per text, M candidates. All arithmetic is in float64 on raw
(encoder-space) vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mm_ldlm.core.errors import EvaluationError


def _pair(generated: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    generated, real = np.asarray(generated, dtype=np.float64), np.asarray(real, dtype=np.float64)
    for name, array in (("generated", generated), ("real", real)):
        if array.ndim != 2 or len(array) == 0:
            raise EvaluationError(f"Expected {name} latents of shape (n, d), found {array.shape}.")
        if bad := int((~np.isfinite(array).all(axis=1)).sum()):
            raise EvaluationError(f"Expected finite {name} latents, but {bad} of {len(array)} rows are not finite.")
    if generated.shape[1] != real.shape[1]:
        raise EvaluationError(
            f"Expected latents of one dimension, found {generated.shape[1]} (generated) and {real.shape[1]} (real)."
        )
    return generated, real


def _unit(x_Nd: np.ndarray) -> np.ndarray:
    norm_N1 = np.linalg.norm(x_Nd, axis=1, keepdims=True)
    if (norm_N1 == 0).any():
        raise EvaluationError(f"Expected latents with a direction, found {int((norm_N1 == 0).sum())} zero vectors.")
    return x_Nd / norm_N1


def cosine(generated_Nd: np.ndarray, real_Nd: np.ndarray) -> np.ndarray:
    """Compute the cosine (N,) of each generated latent to its target."""
    a, b = _pair(generated_Nd, real_Nd)
    if len(a) != len(b):
        raise EvaluationError(f"Expected one target per generated latent, found {len(a)} latents and {len(b)} targets.")
    return (_unit(a) * _unit(b)).sum(axis=1)


def squared_error(generated_Nd: np.ndarray, real_Nd: np.ndarray) -> np.ndarray:
    """Compute the mean squared error (N,) per coordinate; divide by the targets' variance for a fraction."""
    a, b = _pair(generated_Nd, real_Nd)
    return ((a - b) ** 2).mean(axis=1)


# -- retrieval -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retrieval:
    """Ranks of the targets among the candidates: `rank_N` is that of each query's target, 1 = nearest.

    Ties count half, so that the ranks of a collapsed model are in the middle and not first.
    """

    rank_N: np.ndarray
    candidates: int


def retrieval(
    generated_Nd: np.ndarray, real_Nd: np.ndarray, *, distractors_Md: np.ndarray | None = None, block: int = 512
) -> Retrieval:
    """Rank each generated latent's own target by cosine among all targets and the distractors."""
    a, b = _pair(generated_Nd, real_Nd)
    if len(a) != len(b):
        raise EvaluationError(f"Expected one target per generated latent, found {len(a)} latents and {len(b)} targets.")
    candidates_Md = b if distractors_Md is None else np.concatenate([b, np.asarray(distractors_Md, dtype=np.float64)])
    query, pool = _unit(a), _unit(candidates_Md)
    ranks = []
    for start in range(0, len(query), block):
        score_BM = query[start : start + block] @ pool.T
        rows = np.arange(len(score_BM))
        own_B1 = score_BM[rows, start + rows][:, None]
        closer, equal = (score_BM > own_B1 + 1e-12).sum(axis=1), (np.abs(score_BM - own_B1) <= 1e-12).sum(axis=1) - 1
        ranks.append(1 + closer + equal / 2)
    return Retrieval(np.concatenate(ranks), len(pool))


@dataclass(frozen=True)
class Neighbourhoods:
    """Agreement of neighbourhoods in generated and in real space.

    Attributes:
        rank_correlation_N: for each text, Spearman correlation of its cosines to all others in the two spaces.
        overlap_at: k → fraction of the k nearest neighbours that the two spaces share.
    """

    rank_correlation_N: np.ndarray
    overlap_at: dict[int, float]


def neighbourhoods(
    generated_Nd: np.ndarray, real_Nd: np.ndarray, *, ks: tuple[int, ...] = (1, 5, 10), limit: int = 1000
) -> Neighbourhoods:
    """Compare the neighbourhoods of generated and of real latents, for `limit` evenly spaced texts."""
    from scipy.stats import rankdata

    a, b = _pair(generated_Nd, real_Nd)
    if len(a) != len(b) or len(a) < 3:
        raise EvaluationError(f"Neighbourhoods need at least three texts on both sides, found {len(a)} and {len(b)}.")
    places = np.unique(np.linspace(0, len(a) - 1, min(limit, len(a))).astype(int))
    a, b, count = a[places], b[places], len(places)
    off_diagonal = ~np.eye(count, dtype=bool)
    sides = [(_unit(x) @ _unit(x).T)[off_diagonal].reshape(count, count - 1) for x in (a, b)]
    ranks = [rankdata(side, axis=1) for side in sides]
    centred = [rank - rank.mean(axis=1, keepdims=True) for rank in ranks]
    scale = np.sqrt((centred[0] ** 2).sum(axis=1) * (centred[1] ** 2).sum(axis=1))
    if (scale == 0).any():
        raise EvaluationError(
            "Neighbourhoods: a text is equally near to all others in one of the spaces (collapsed latents)."
        )
    correlation = (centred[0] * centred[1]).sum(axis=1) / scale
    order = [np.argsort(-side, axis=1) for side in sides]
    overlap = {
        k: float(np.mean([len(set(x[:k]) & set(y[:k])) / k for x, y in zip(*order, strict=True)]))
        for k in ks
        if k < count
    }
    return Neighbourhoods(correlation, overlap)


# -- distribution ----------------------------------------------------------------------------------------------------


def frechet_distance(generated_Nd: np.ndarray, real_Md: np.ndarray) -> float:
    """Compute the Fréchet distance of two Gaussians, as in FID (Heusel et al. 2017).

    It is ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁^½ Σ₂ Σ₁^½)^½). The estimate is biased upwards unless both sides have many more
    rows than d; compare values at equal numbers of rows only.
    """
    a, b = _pair(generated_Nd, real_Md)
    if min(len(a), len(b)) < 2:
        raise EvaluationError("A covariance needs at least two latents on each side. Evaluate more sentences.")
    cov_a, cov_b = np.atleast_2d(np.cov(a, rowvar=False)), np.atleast_2d(np.cov(b, rowvar=False))
    values, vectors = np.linalg.eigh(cov_a)
    root_a = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    cross = np.sqrt(np.clip(np.linalg.eigvalsh(root_a @ cov_b @ root_a), 0, None)).sum()
    distance = ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * cross
    return float(max(0.0, distance))


def spectrum(latents_Nd: np.ndarray) -> np.ndarray:
    """Compute the eigenvalues (d,) of the covariance, largest first."""
    latents_Nd, _ = _pair(latents_Nd, latents_Nd)
    return np.linalg.eigvalsh(np.atleast_2d(np.cov(latents_Nd, rowvar=False)))[::-1]


def effective_rank(eigenvalues_d: np.ndarray) -> float:
    """Compute the effective rank, exp of the entropy of the spectrum (Roy & Vetterli 2007)."""
    fraction = np.clip(eigenvalues_d, 0, None)
    fraction = fraction[fraction > 0] / fraction.sum()
    return float(np.exp(-(fraction * np.log(fraction)).sum()))


# -- calibration of K samples ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """Calibration of the spread of K samples per text.

    Attributes:
        cosine_single, cosine_mean: cosine to the target of one sample, and of the mean of K samples.
        spread_to_error: standard deviation of the samples ÷ error of their mean, corrected by √(1 + 1/K); 1 is
            calibrated, below 1 is overconfident (Fortin et al. 2014).
        rank_fraction: (K + 1,) histogram of the target's rank among the samples over all coordinates; a flat histogram
            is calibrated, a U shape is overconfident.
    """

    samples: int
    cosine_single: float
    cosine_mean: float
    spread_to_error: float
    rank_fraction: np.ndarray


def calibration(samples_KNd: np.ndarray, real_Nd: np.ndarray) -> Calibration:
    """Compare K samples per text with the encoder's latents of the texts."""
    samples_KNd = np.asarray(samples_KNd, dtype=np.float64)
    if samples_KNd.ndim != 3 or len(samples_KNd) < 2:
        raise EvaluationError(f"Calibration needs (K ≥ 2, n, d) samples, found {samples_KNd.shape}.")
    count = len(samples_KNd)
    mean_Nd, real_Nd = _pair(samples_KNd.mean(axis=0), real_Nd)
    error = np.sqrt(((mean_Nd - real_Nd) ** 2).mean())
    spread = np.sqrt(samples_KNd.var(axis=0, ddof=1).mean() * (1 + 1 / count))
    if error == 0:
        raise EvaluationError(
            "Calibration: the mean of the samples equals the target exactly. Pass samples of the model and not the "
            "targets."
        )
    below_Nd = (samples_KNd < real_Nd).sum(axis=0)
    return Calibration(
        samples=count,
        cosine_single=float(np.mean([cosine(sample, real_Nd).mean() for sample in samples_KNd])),
        cosine_mean=float(cosine(mean_Nd, real_Nd).mean()),
        spread_to_error=float(spread / error),
        rank_fraction=np.bincount(below_Nd.ravel(), minlength=count + 1) / below_Nd.size,
    )
