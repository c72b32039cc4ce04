"""Quality of sampled latents compared with the encoder's: cosine, retrieval, neighbourhoods, distribution, calibration.

Shapes: N texts, d latent dimension, K samples per text, M candidates. All arithmetic is in float64 on raw
(encoder-space) vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError


def unit(x_Nd: np.ndarray) -> np.ndarray:
    """Scale each row to length 1, in float64.

    Raises:
        EvaluationError: a row is zero or non-finite and has no direction.
    """
    x_Nd = np.asarray(x_Nd, dtype=np.float64)
    norm_N1 = np.linalg.norm(x_Nd, axis=1, keepdims=True)
    if wrong := int((~(np.isfinite(norm_N1) & (norm_N1 > 0))).sum()):
        raise EvaluationError(
            f"Expected vectors with a direction, found {wrong} of {len(x_Nd)} that are zero or non-finite. "
            "Check the checkpoint or the encoder that made them."
        )
    found: np.ndarray = x_Nd / norm_N1
    return found


def cosine(a_Nd: np.ndarray, b_Nd: np.ndarray) -> np.ndarray:
    """Compute the cosine (N,) of each row of `a` to the same row of `b`."""
    found: np.ndarray = (unit(a_Nd) * unit(b_Nd)).sum(axis=1)
    return found


def ranks(generated_Nd: np.ndarray, real_Nd: np.ndarray, candidates_Md: np.ndarray, *, block: int = 512) -> np.ndarray:
    """Rank each generated latent's own target by cosine among all targets and the candidates: (N,), 1 = nearest.

    Ties count half, so that the ranks of a collapsed model are in the middle and not first.
    """
    query, pool = unit(generated_Nd), unit(np.concatenate([real_Nd, candidates_Md]))
    found = []
    for start in range(0, len(query), block):
        score_BM = query[start : start + block] @ pool.T
        own_B1 = np.diagonal(score_BM, offset=start)[:, None]
        closer, equal = (score_BM > own_B1 + 1e-12).sum(axis=1), (np.abs(score_BM - own_B1) <= 1e-12).sum(axis=1) - 1
        found.append(1 + closer + equal / 2)
    return np.concatenate(found)


def neighbourhoods(
    generated_Nd: np.ndarray, real_Nd: np.ndarray, *, ks: tuple[int, ...] = (1, 5, 10), limit: int = 1000
) -> tuple[np.ndarray, dict[int, float]]:
    """Compare the neighbourhoods of generated and of real latents, for `limit` evenly spaced texts, at least three.

    Returns:
        For each text the Spearman correlation of its cosines to all others in the two spaces, NaN where all are
        equal; and k → fraction of the k nearest neighbours that the two spaces share.
    """
    from scipy.stats import rankdata

    places = np.unique(np.linspace(0, len(real_Nd) - 1, min(limit, len(real_Nd))).astype(int))
    count = len(places)
    others = ~np.eye(count, dtype=bool)
    sides = [unit(x_Nd[places]) for x_Nd in (generated_Nd, real_Nd)]
    alike = [(x_Nd @ x_Nd.T)[others].reshape(count, count - 1) for x_Nd in sides]
    centred = [rank - rank.mean(axis=1, keepdims=True) for rank in (rankdata(side, axis=1) for side in alike)]
    scale = np.sqrt((centred[0] ** 2).sum(axis=1) * (centred[1] ** 2).sum(axis=1))
    product = (centred[0] * centred[1]).sum(axis=1)
    order = [np.argsort(-side, axis=1) for side in alike]
    overlap = {
        k: float(np.mean([len(set(x[:k]) & set(y[:k])) / k for x, y in zip(*order, strict=True)]))
        for k in ks
        if k < count
    }
    return np.divide(product, scale, out=np.full(count, np.nan), where=scale > 0), overlap


def frechet_distance(generated_Nd: np.ndarray, real_Md: np.ndarray) -> float:
    """Compute the Fréchet distance of two Gaussians, as in FID (Heusel et al. 2017), each from at least two latents.

    It is ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁^½ Σ₂ Σ₁^½)^½). The estimate is biased upwards unless both sides have many more
    rows than d; compare values at equal numbers of rows only.
    """
    a, b = (np.asarray(side, dtype=np.float64) for side in (generated_Nd, real_Md))
    cov_a, cov_b = (np.atleast_2d(np.cov(side, rowvar=False)) for side in (a, b))
    values, vectors = np.linalg.eigh(cov_a)
    root_a = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    cross = np.sqrt(np.clip(np.linalg.eigvalsh(root_a @ cov_b @ root_a), 0, None)).sum()
    distance = ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * cross
    return float(max(0.0, distance))


def spectrum(latents_Nd: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute the eigenvalues (d,) of the covariance, largest first, and the effective rank.

    The effective rank is exp of the entropy of the spectrum (Roy & Vetterli 2007).
    """
    covariance = np.cov(np.asarray(latents_Nd, dtype=np.float64), rowvar=False)
    values_d = np.clip(np.linalg.eigvalsh(np.atleast_2d(covariance))[::-1], 0, None)
    fraction = values_d[values_d > 0] / values_d.sum()
    return values_d, float(np.exp(-(fraction * np.log(fraction)).sum()))


def calibration(samples_KNd: np.ndarray, real_Nd: np.ndarray) -> dict[str, Any]:
    """Compare the spread of K ≥ 2 samples per text with the encoder's latents of the texts.

    Returns:
        samples: K.
        cosine_single, cosine_mean: cosine to the target of one sample, and of the mean of K samples.
        spread_to_error: standard deviation of the samples ÷ error of their mean, corrected by √(1 + 1/K); 1 is
            calibrated, below 1 is overconfident (Fortin et al. 2014).
        rank_fraction: (K + 1,) histogram of the target's rank among the samples over all coordinates; a flat histogram
            is calibrated, a U shape is overconfident.
    """
    samples_KNd, real_Nd = np.asarray(samples_KNd, dtype=np.float64), np.asarray(real_Nd, dtype=np.float64)
    count, mean_Nd = len(samples_KNd), samples_KNd.mean(axis=0)
    error = np.sqrt(((mean_Nd - real_Nd) ** 2).mean())
    spread = np.sqrt(samples_KNd.var(axis=0, ddof=1).mean() * (1 + 1 / count))
    below_Nd = (samples_KNd < real_Nd).sum(axis=0)
    return {
        "samples": count,
        "cosine_single": float(np.mean([cosine(sample, real_Nd).mean() for sample in samples_KNd])),
        "cosine_mean": float(cosine(mean_Nd, real_Nd).mean()),
        "spread_to_error": float(spread / error),
        "rank_fraction": np.bincount(below_Nd.ravel(), minlength=count + 1) / below_Nd.size,
    }
