"""Compute MAUVE (Pillutla et al. 2021) of two sets of embeddings, with the constants of the paper's package.

The features are sentence embeddings instead of hidden states of GPT-2, so values are comparable only within a card.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

Floats = npt.NDArray[np.floating]


def mauve(ours_nd: Floats, theirs_md: Floats, *, seed: int = 0) -> float:
    """Compute MAUVE of embeddings (n, d) and (m, d): 1 for equal distributions over clusters, near 0 for disjoint ones.

    The clusters are from k-means with min(n, m)/10 clusters, at least 2, on the principal components with 90 % of the
    variance.
    """
    from sklearn import cluster, decomposition

    both = np.concatenate([ours_nd, theirs_md]).astype(np.float64)
    count = max(2, round(min(len(ours_nd), len(theirs_md)) / 10))
    reduced = decomposition.PCA(0.9, svd_solver="full").fit_transform(both)
    labels = cluster.KMeans(count, n_init=5, random_state=seed).fit_predict(reduced)
    parts = np.split(labels, [len(ours_nd)])
    return divergence_area(*(np.bincount(part, minlength=count) / len(part) for part in parts))


def divergence_area(p_K: Floats, q_K: Floats, *, scale: float = 5.0, points: int = 25) -> float:
    """Compute the area under the curve (exp(−c KL(q, r)), exp(−c KL(p, r))) for r = λp + (1 − λ)q, λ in (0, 1)."""
    curve = [(0.0, 1.0), (1.0, 0.0)]
    for weight in np.linspace(1e-6, 1 - 1e-6, points):
        r_K = weight * p_K + (1 - weight) * q_K
        curve.append((np.exp(-scale * rel_entr(q_K, r_K).sum()), np.exp(-scale * rel_entr(p_K, r_K).sum())))
    areas = []
    for x, y in (0, 1), (1, 0):
        ordered = sorted(((point[x], point[y]) for point in curve), key=lambda point: (point[0], -point[1]))
        areas.append(np.trapezoid([up for _, up in ordered], [along for along, _ in ordered]))
    return float(np.mean(areas))
