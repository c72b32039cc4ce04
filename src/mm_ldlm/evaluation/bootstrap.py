"""Percentile bootstrap (Efron 1979), vectorised over replicates and seeded.

A replicate is a row of *counts*: how often each item was drawn. Means, ratios, correlations and corpus BLEU are
functions of such counts, so one set of draws serves every statistic of a set. Two systems scored on the same items are
compared on the same draws (a paired bootstrap) when both use the same seed.

Shapes: R replicates, N items, S statistics.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm_ldlm.core import EvaluationError

FEWEST_PAIRS = 30
"""Fewest items of a paired comparison. Percentile intervals are too narrow for few items: for the mean of n normal
differences the nominal 95 % interval covers 60 % at n = 2, 90.4 % at n = 10 and 93.6 % at n = 30."""
Statistic = Callable[[np.ndarray], np.ndarray]
"""Counts (r, N) → values (r,)"""
Values = Any
"""Numbers of items: a sequence, an array or a column of a table"""
Interval = dict[str, float]
"""A statistic with its confidence interval: value, low, high, level"""

_BLOCK = 4_000_000  # counts in memory at once: 32 MB, for any size of the set


@dataclass(frozen=True)
class Bootstrap:
    """Number of resamples, level of the intervals, and seed of the draws, which depend on it and on N only."""

    replicates: int = 1000
    level: float = 0.95
    seed: int = 0

    def count_blocks(self, items: int) -> Iterator[np.ndarray]:
        """Yield blocks (r, N) of draw counts, `replicates` rows in all; each row sums to N."""
        generator = np.random.default_rng([self.seed, items, 0xB007])
        rows_per_block = max(1, _BLOCK // items)
        for start in range(0, self.replicates, rows_per_block):
            rows = min(rows_per_block, self.replicates - start)
            drawn = generator.integers(0, items, size=(rows, items))
            flat = (drawn + np.arange(rows)[:, None] * items).ravel()
            yield np.bincount(flat, minlength=rows * items).reshape(rows, items).astype(np.float64)

    def replicates_of(self, statistic: Statistic, items: int) -> np.ndarray:
        """Compute a statistic on all replicates: (R,), or (R, …) for a statistic of several values."""
        return np.concatenate([statistic(counts_RN) for counts_RN in self.count_blocks(items)])

    def of_runs(self, statistics: Sequence[Statistic], items: int) -> tuple[Interval, float]:
        """Compute the mean of several runs' statistics on the same items: its interval, and the p-value of zero.

        A bootstrap over few runs is too narrow. Several runs therefore have a t interval: its variance is the
        variance of the runs ÷ their number + the variance of the mean over resampled items, with the degrees of freedom
        of Satterthwaite (1946). One run has the percentile interval, which does not cover other runs.
        """
        from scipy.stats import t

        values_S = np.array([float(statistic(np.ones((1, items)))[0]) for statistic in statistics])
        mean_R = np.mean([self.replicates_of(statistic, items) for statistic in statistics], axis=0)
        found, value, runs = self.interval(float(values_S.mean()), mean_R), values_S.mean(), len(values_S)
        if runs == 1:
            # The observed sample counts as one more replicate, so that no p-value is 0 (Davison and Hinkley 1997).
            below, above = ((side.sum() + 1) / (self.replicates + 1) for side in (mean_R <= 0, mean_R >= 0))
            return found, float(min(1.0, 2 * min(below, above)))
        parts = np.array([values_S.var(ddof=1) / runs, mean_R.var(ddof=1)])
        if not (error := float(np.sqrt(parts.sum()))):
            return found, float(value == 0)
        freedom = error**4 / (parts**2 / np.array([runs - 1, max(items - 1, 1)])).sum()
        reach = float(t.ppf((1 + self.level) / 2, freedom)) * error
        found |= {"low": float(value - reach), "high": float(value + reach)}
        return found, float(2 * t.sf(abs(value) / error, freedom))

    def interval(self, value: float, values_R: np.ndarray) -> Interval:
        """Compute the percentile interval around `value`.

        Raises:
            EvaluationError: a replicate is non-finite; a statistic that is undefined on a resample has no interval.
        """
        if bad := int((~np.isfinite([value, *values_R])).sum()):
            raise EvaluationError(
                f"Expected finite numbers, found the value {value} and {bad} non-finite numbers in its "
                f"{len(values_R)} resamples. The metric must be defined on every resample; check what was evaluated."
            )
        low, high = np.quantile(values_R, [(1 - self.level) / 2, (1 + self.level) / 2])
        return {"value": float(value), "low": float(low), "high": float(high), "level": self.level}

    def of(self, statistic: Statistic, items: int, *, value: float | None = None) -> Interval:
        """Compute a statistic with its interval; `value` is the statistic of the items themselves, if it is known."""
        value = float(statistic(np.ones((1, items)))[0]) if value is None else value
        return self.interval(value, self.replicates_of(statistic, items))

    def mean(self, values_N: Values) -> Interval:
        """Compute the mean of per-item values with its interval."""
        return self.ratio(values_N, np.ones(len(values_N)))

    def proportion(self, hits_N: Values) -> Interval:
        """Compute the fraction of hits, or the mean of fractions, with its interval, which lies in [0, 1].

        If all items or no items are hits, every resample is equal and the bootstrap interval would be empty; Wilson's
        interval (1927) is returned instead.
        """
        hit_N = np.asarray(hits_N, dtype=np.float64)
        fraction = float(hit_N.mean())
        if fraction not in (0.0, 1.0):
            return self.mean(hit_N)
        from scipy.stats import norm

        z2 = float(norm.ppf((1 + self.level) / 2)) ** 2
        reach = z2 / (len(hit_N) + z2)
        low, high = max(0.0, fraction - reach), min(1.0, fraction + reach)
        return {"value": fraction, "low": low, "high": high, "level": self.level}

    def ratio(self, numerator_N: Values, denominator_N: Values) -> Interval:
        """Compute Σ numerator ÷ Σ denominator with its interval (a per-token rate from per-sentence sums)."""
        top_N, bottom_N = np.asarray(numerator_N, dtype=np.float64), np.asarray(denominator_N, dtype=np.float64)
        return self.of(ratio_of_counts(top_N, bottom_N), len(top_N), value=float(top_N.sum() / bottom_N.sum()))

    def difference(self, a: Sequence[Statistic], b: Sequence[Statistic], items: int) -> dict[str, Any]:
        """Compare two systems on the same items by the paired bootstrap.

        Args:
            a, b: for each run (seed) of a system a statistic of the same items; run i of one is paired with run i of
                the other. One run each compares two runs.

        Returns:
            a, b: their values; difference: b − a with its interval; p: the p-value of a difference of zero, for one
            run each at least 2/(R + 1), None for fewer than `FEWEST_PAIRS` items; verdict: too few, significant or not
            significant.
        """
        once = np.ones((1, items))
        value_a, value_b = (float(np.mean([statistic(once)[0] for statistic in system])) for system in (a, b))
        found, p = self.of_runs([_difference(one, two) for one, two in zip(a, b, strict=True)], items)
        enough = items >= FEWEST_PAIRS
        clear = enough and (found["low"] > 0 or found["high"] < 0)
        return {
            "a": value_a,
            "b": value_b,
            "difference": found,
            "p": p if enough else None,
            "verdict": "too few" if not enough else "significant" if clear else "not significant",
        }


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        corrected[place] = largest = min(1.0, max(largest, p_values[place] * (len(p_values) - rank)))
    return corrected


# -- statistics as functions of counts -------------------------------------------------------------------------------


def mean_of_counts(values_N: Values) -> Statistic:
    """Make the statistic "mean of per-item values": counts (r, N) → (r,)."""
    return ratio_of_counts(values_N, np.ones(len(values_N)))


def ratio_of_counts(numerator_N: Values, denominator_N: Values) -> Statistic:
    """Make the statistic "Σ numerator ÷ Σ denominator": counts (r, N) → (r,)."""
    top_N, bottom_N = np.asarray(numerator_N, dtype=np.float64), np.asarray(denominator_N, dtype=np.float64)
    return lambda counts_RN: (counts_RN @ top_N) / np.maximum(counts_RN @ bottom_N, 1e-300)


def _difference(one: Statistic, two: Statistic) -> Statistic:
    return lambda counts_RN: two(counts_RN) - one(counts_RN)


def weighted_pearson(x_RN: np.ndarray, y_RN: np.ndarray, weight_RN: np.ndarray) -> np.ndarray:
    """Compute weighted correlations (R,); NaN if a variable is constant (`Bootstrap.interval` refuses it)."""
    total_R1 = weight_RN.sum(axis=1, keepdims=True)
    dx_RN = x_RN - (weight_RN * x_RN).sum(axis=1, keepdims=True) / total_R1
    dy_RN = y_RN - (weight_RN * y_RN).sum(axis=1, keepdims=True) / total_R1
    xy_R = (weight_RN * dx_RN * dy_RN).sum(axis=1)
    scale_R = np.sqrt((weight_RN * dx_RN**2).sum(axis=1) * (weight_RN * dy_RN**2).sum(axis=1))
    return np.divide(xy_R, scale_R, out=np.full_like(xy_R, np.nan), where=scale_R > 0)


# -- calibration of confidences ----------------------------------------------------------------------------------------


def calibration_error(confidence_n: np.ndarray, right_n: np.ndarray, bins: int) -> Statistic:
    """Return Σ_b (n_b ÷ n)·|accuracy_b − confidence_b| over bins of equal width, as a function of counts.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3. It is biased upwards where bins have few examples.
    """
    gap_nb = np.eye(bins)[bin_of(confidence_n, bins)] * (right_n - confidence_n)[:, None]

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        return np.abs(counts_rn @ gap_nb).sum(axis=1) / counts_rn.sum(axis=1)

    return statistic


def bin_of(confidence_n: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin (n,) of each confidence: bin i holds (i ÷ bins, (i + 1) ÷ bins]."""
    return np.clip(np.ceil(confidence_n * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability(confidence_n: np.ndarray, right_n: np.ndarray, bins: int, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """List the bins that have examples: their number, mean confidence, and accuracy with its interval."""
    number_n = bin_of(confidence_n, bins)
    return [
        {
            "examples": int((number_n == number).sum()),
            "confidence": float(confidence_n[number_n == number].mean()),
            "accuracy": bootstrap.proportion(right_n[number_n == number]),
        }
        for number in np.unique(number_n)
    ]
