"""Percentile bootstrap (Efron 1979), vectorised over replicates and seeded.

A replicate is a row of *counts*: how often each item was drawn. Means, ratios, rank correlations and corpus BLEU are
functions of such counts, so one set of draws serves every statistic of a set. Two systems scored on the same items are
compared on the same draws (a paired bootstrap) when both use the same seed.

Shapes: R replicates, N items, S statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import EvaluationError

FEWEST_PAIRS = 30
"""Fewest items of a paired comparison. Percentile intervals are too narrow for few items: for the mean of n normal
differences the nominal 95 % interval covers 60 % at n = 2, 90.4 % at n = 10 and 93.6 % at n = 30."""
Verdict = Literal["too few", "significant", "not significant"]

_BLOCK = 4_000_000  # counts in memory at once: 32 MB, for any size of the set


@dataclass(frozen=True)
class Interval:
    """A statistic with its bootstrap confidence interval."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def count_blocks(items: int, *, replicates: int, seed: int) -> Iterator[np.ndarray]:
    """Yield blocks (r, N) of draw counts, `replicates` rows in all; each row sums to N.

    The draws depend on the seed and N only.
    """
    if items < 1:
        raise EvaluationError("A bootstrap needs at least one item, found none.")
    generator = np.random.default_rng([seed, items, 0xB007])
    rows_per_block = max(1, _BLOCK // items)
    for start in range(0, replicates, rows_per_block):
        rows = min(rows_per_block, replicates - start)
        drawn = generator.integers(0, items, size=(rows, items))
        flat = (drawn + np.arange(rows)[:, None] * items).ravel()
        yield np.bincount(flat, minlength=rows * items).reshape(rows, items).astype(np.float64)


def replicates_of(
    statistic: Callable[[np.ndarray], np.ndarray],
    items: int,
    *,
    replicates: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """Compute `statistic`, a function of counts (r, N) → (r,), on R replicates: (R,)."""
    blocks = count_blocks(items, replicates=replicates, seed=seed)
    return np.concatenate([statistic(counts_RN) for counts_RN in blocks])


def replicates_of_runs(
    statistics: Sequence[Callable[[np.ndarray], np.ndarray]], items: int, *, replicates: int = 1000, seed: int = 0
) -> np.ndarray:
    """Compute the mean of several runs' statistics on the same items: (R,).

    Runs and items are resampled independently of one another (crossed, Owen 2007), so that an interval covers the
    variation between runs as well. For one run this is `replicates_of`.
    """
    runs = len(statistics)
    weight_RS = np.concatenate(list(count_blocks(runs, replicates=replicates, seed=seed))) / runs
    found, start = [], 0
    for counts_RN in count_blocks(items, replicates=replicates, seed=seed):
        value_RS = np.stack([statistic(counts_RN) for statistic in statistics], axis=1)
        found.append((value_RS * weight_RS[start : start + len(counts_RN)]).sum(axis=1))
        start += len(counts_RN)
    return np.concatenate(found)


def interval(value: float, values_R: np.ndarray, *, level: float = 0.95) -> Interval:
    """Compute the percentile interval around `value`.

    Raises:
        EvaluationError: a replicate is not finite; a statistic that is undefined on a resample has no valid interval.
    """
    if not np.isfinite(value) or not np.isfinite(values_R).all():
        bad = int((~np.isfinite(values_R)).sum())
        raise EvaluationError(
            f"Bootstrap: expected finite numbers, found the value {value} and {bad} of {len(values_R)} replicates that "
            "are not finite. The statistic must be defined on every resample."
        )
    low, high = np.quantile(values_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high), level)


def mean_interval(values_N: np.ndarray, *, replicates: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Compute the mean of per-item values with its interval."""
    values_N = _finite(values_N, "values")
    drawn_R = replicates_of(mean_of_counts(values_N), len(values_N), replicates=replicates, seed=seed)
    return interval(float(values_N.mean()), drawn_R, level=level)


def proportion_interval(hits_N: np.ndarray, *, replicates: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Compute the fraction of hits, or the mean of fractions, with its interval, which lies in [0, 1].

    If all items or no items are hits, every resample is equal and the bootstrap interval would be empty; Wilson's
    interval (1927) is returned instead.
    """
    hits_N = _finite(hits_N, "hits")
    fraction, count = float(hits_N.mean()), len(hits_N)
    if 0 < fraction < 1:
        return mean_interval(hits_N, replicates=replicates, seed=seed, level=level)
    from scipy.stats import norm

    z2 = float(norm.ppf((1 + level) / 2)) ** 2
    reach = z2 / (count + z2)
    return Interval(fraction, max(0.0, fraction - reach), min(1.0, fraction + reach), level)


def ratio_interval(
    numerator_N: np.ndarray, denominator_N: np.ndarray, *, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Compute Σ numerator ÷ Σ denominator with its interval (a per-token rate from per-sentence sums)."""
    top_N, bottom_N = _finite(numerator_N, "numerators"), _finite(denominator_N, "denominators")
    if bottom_N.sum() <= 0:
        raise EvaluationError(f"A ratio needs a positive denominator, found {bottom_N.sum()}.")
    drawn_R = replicates_of(ratio_of_counts(top_N, bottom_N), len(top_N), replicates=replicates, seed=seed)
    return interval(float(top_N.sum() / bottom_N.sum()), drawn_R, level=level)


# -- statistics as functions of counts -------------------------------------------------------------------------------


def mean_of_counts(values_N: npt.ArrayLike) -> Callable[[np.ndarray], np.ndarray]:
    """Make the statistic "mean of per-item values": counts (r, N) → (r,)."""
    value_N = np.asarray(values_N, dtype=np.float64)
    return lambda counts_RN: counts_RN @ value_N / len(value_N)


def ratio_of_counts(numerator_N: npt.ArrayLike, denominator_N: npt.ArrayLike) -> Callable[[np.ndarray], np.ndarray]:
    """Make the statistic "Σ numerator ÷ Σ denominator": counts (r, N) → (r,)."""
    top_N, bottom_N = np.asarray(numerator_N, dtype=np.float64), np.asarray(denominator_N, dtype=np.float64)
    return lambda counts_RN: (counts_RN @ top_N) / np.maximum(counts_RN @ bottom_N, 1e-300)


# -- correlations ----------------------------------------------------------------------------------------------------


class SpearmanOfCounts:
    """Spearman's ρ (average ranks for ties, as scipy's) of every replicate at once: counts (r, N) → (r,).

    In a resample the average rank of a value is (draws of smaller values) + (draws of equal values + 1) / 2, which is a
    cumulative sum over the items; the items are sorted once.
    """

    def __init__(self, x_N: np.ndarray, y_N: np.ndarray) -> None:
        self._x, self._y = _Ranker(x_N), _Ranker(y_N)

    def __call__(self, counts_RN: np.ndarray) -> np.ndarray:
        return weighted_pearson(self._x(counts_RN), self._y(counts_RN), counts_RN)


class PearsonOfCounts:
    """Pearson's r of every replicate: counts (r, N) → (r,)."""

    def __init__(self, x_N: np.ndarray, y_N: np.ndarray) -> None:
        # A shift and a scale do not change r and keep the sums well conditioned.
        self._x, self._y = _unit(x_N)[None, :], _unit(y_N)[None, :]

    def __call__(self, counts_RN: np.ndarray) -> np.ndarray:
        return weighted_pearson(self._x, self._y, counts_RN)


class _Ranker:
    def __init__(self, values_N: np.ndarray) -> None:
        _, group_N = np.unique(np.asarray(values_N, dtype=np.float64), return_inverse=True)
        self._group_N = group_N
        self._order_N = np.argsort(group_N, kind="stable")
        self._starts_G = np.flatnonzero(np.diff(group_N[self._order_N], prepend=-1))

    def __call__(self, counts_RN: np.ndarray) -> np.ndarray:
        per_group_RG = np.add.reduceat(counts_RN[:, self._order_N], self._starts_G, axis=1)
        rank_RG = np.cumsum(per_group_RG, axis=1) - per_group_RG + (per_group_RG + 1) / 2
        return rank_RG[:, self._group_N]


def weighted_pearson(x_RN: np.ndarray, y_RN: np.ndarray, weight_RN: np.ndarray) -> np.ndarray:
    """Compute weighted correlations (R,); NaN if a variable is constant (`interval` refuses it)."""
    total_R1 = weight_RN.sum(axis=1, keepdims=True)
    dx_RN = x_RN - (weight_RN * x_RN).sum(axis=1, keepdims=True) / total_R1
    dy_RN = y_RN - (weight_RN * y_RN).sum(axis=1, keepdims=True) / total_R1
    xy_R = (weight_RN * dx_RN * dy_RN).sum(axis=1)
    scale_R = np.sqrt((weight_RN * dx_RN**2).sum(axis=1) * (weight_RN * dy_RN**2).sum(axis=1))
    return np.divide(xy_R, scale_R, out=np.full_like(xy_R, np.nan), where=scale_R > 0)


# -- differences -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedDifference:
    """B − A on the same items, with its interval and the bootstrap p-value of a difference of zero.

    Attributes:
        p_two_sided: None for fewer than `FEWEST_PAIRS` items; at least 2/(R + 1) for R replicates.
    """

    a: float
    b: float
    difference: Interval
    p_two_sided: float | None
    items: int

    @property
    def enough(self) -> bool:
        """Whether there are enough items for a statement about the difference."""
        return self.items >= FEWEST_PAIRS

    @property
    def clear(self) -> bool:
        """Whether there are enough items and the interval excludes zero."""
        return self.enough and (self.difference.low > 0 or self.difference.high < 0)

    @property
    def verdict(self) -> Verdict:
        """What the comparison shows."""
        if not self.enough:
            return "too few"
        return "significant" if self.clear else "not significant"


def paired_difference(
    a: Sequence[Callable[[np.ndarray], np.ndarray]],
    b: Sequence[Callable[[np.ndarray], np.ndarray]],
    items: int,
    *,
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> PairedDifference:
    """Compute the paired bootstrap between two systems on the same items.

    Args:
        a, b: for each run (seed) of a system a statistic of the same items, a function of counts; run i of one is
            paired with run i of the other. One run each compares two runs.
    """
    once = np.ones((1, items))
    value_a, value_b = (float(np.mean([statistic(once)[0] for statistic in system])) for system in (a, b))
    differences = [_difference(one, two) for one, two in zip(a, b, strict=True)]
    difference_R = replicates_of_runs(differences, items, replicates=replicates, seed=seed)
    found = interval(value_b - value_a, difference_R, level=level)
    # The observed sample counts as one more replicate, so that no p-value is 0 (Davison and Hinkley 1997).
    below, above = ((side.sum() + 1) / (replicates + 1) for side in (difference_R <= 0, difference_R >= 0))
    p_two_sided = float(min(1.0, 2 * min(below, above))) if items >= FEWEST_PAIRS else None
    return PairedDifference(value_a, value_b, found, p_two_sided, items)


def _difference(
    one: Callable[[np.ndarray], np.ndarray], two: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    return lambda counts_RN: two(counts_RN) - one(counts_RN)


def _unit(values_N: np.ndarray) -> np.ndarray:
    values_N = np.asarray(values_N, dtype=np.float64)
    spread = values_N.std()
    return (values_N - values_N.mean()) / (spread if spread > 0 else 1.0)


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values))
        raise EvaluationError(
            f"Expected finite {what}, found {len(bad)} of {len(values)} that are not finite, the first at row {bad[0]}."
        )
    return values
