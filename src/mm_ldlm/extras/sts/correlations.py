"""Rank and linear correlations as functions of counts, for the bootstrap.

r replicates, N items, G groups of equal values.
"""

import numpy as np

from mm_ldlm.evaluation.bootstrap import Statistic, weighted_pearson


def spearman_of_counts(x_N: np.ndarray, y_N: np.ndarray) -> Statistic:
    """Make the statistic "Spearman's ρ" (average ranks for ties, as scipy's): counts (r, N) → (r,)."""
    ranks_x, ranks_y = _ranks_of_counts(x_N), _ranks_of_counts(y_N)
    return lambda counts_RN: weighted_pearson(ranks_x(counts_RN), ranks_y(counts_RN), counts_RN)


def pearson_of_counts(x_N: np.ndarray, y_N: np.ndarray) -> Statistic:
    """Make the statistic "Pearson's r": counts (r, N) → (r,)."""
    # A shift and a scale do not change r and keep the sums well conditioned.
    x_1N, y_1N = (((v - v.mean()) / (v.std() or 1.0))[None, :] for v in (x_N, y_N))
    return lambda counts_RN: weighted_pearson(x_1N, y_1N, counts_RN)


def _ranks_of_counts(values_N: np.ndarray) -> Statistic:
    """Rank the items of every resample: counts (r, N) → (r, N).

    The average rank of a value is (draws of smaller values) + (draws of equal values + 1) / 2, which is a cumulative
    sum over the items; the items are sorted once.
    """
    _, group_N = np.unique(np.asarray(values_N, dtype=np.float64), return_inverse=True)
    order_N = np.argsort(group_N, kind="stable")
    starts_G = np.flatnonzero(np.diff(group_N[order_N], prepend=-1))

    def ranks(counts_RN: np.ndarray) -> np.ndarray:
        per_group_RG = np.add.reduceat(counts_RN[:, order_N], starts_G, axis=1)
        rank_RG = np.cumsum(per_group_RG, axis=1) - per_group_RG + (per_group_RG + 1) / 2
        return rank_RG[:, group_N]

    return ranks
