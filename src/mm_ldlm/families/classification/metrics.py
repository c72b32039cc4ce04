"""Measures of a classifier with bootstrap intervals: accuracy, macro F1, confusion matrix and calibration.

n examples, K classes, b bins of confidence, r replicates of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.bootstrap import interval, mean_interval, proportion_interval, replicates_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Statistic = Callable[[np.ndarray], np.ndarray]


def measure(
    true_n: Ints, probability_nK: Floats, *, names: Sequence[str], bins: int, replicates: int, seed: int, level: float
) -> dict[str, Any]:
    """Compare probabilities with the true classes; every number has an interval over the examples.

    Raises:
        EvaluationError: there are no examples, or a class is outside the names.
    """
    if not len(true_n) or true_n.min() < 0 or true_n.max() >= len(names):
        raise EvaluationError(
            f"expected examples with classes 0 to {len(names) - 1}, found {len(true_n)} examples, classes "
            f"{np.unique(true_n).tolist()[:5]}. Validate the data with this objective again."
        )
    options: dict[str, Any] = {"replicates": replicates, "seed": seed, "level": level}
    predicted_n = probability_nK.argmax(axis=1)
    confidence_n = probability_nK.max(axis=1)
    correct_n = (predicted_n == true_n).astype(np.float64)
    cells_nC = _one_hot(true_n * len(names) + predicted_n, len(names) ** 2)
    nll_n = -np.log(np.maximum(probability_nK[np.arange(len(true_n)), true_n], 1e-300))
    return {
        "examples": len(true_n),
        "classes": list(names),
        "accuracy": proportion_interval(correct_n, **options).as_dict(),
        "macro_f1": _interval(macro_f1(true_n, predicted_n, len(names)), len(true_n), **options),
        "ece": _interval(expected_calibration_error(confidence_n, correct_n, bins), len(true_n), **options),
        "nll": mean_interval(nll_n, **options).as_dict(),
        "majority": float(np.bincount(true_n).max() / len(true_n)),
        "confusion": confusion(cells_nC, len(names), **options),
        "reliability": reliability(confidence_n, correct_n, bins, **options),
    }


def macro_f1(true_n: Ints, predicted_n: Ints, classes: int) -> Statistic:
    """Return the mean over classes of 2·TP ÷ (2·TP + FP + FN), as a function of counts (r, n) → (r,).

    Classes that are neither true nor predicted in a resample do not count.
    """
    true_nK, predicted_nK = _one_hot(true_n, classes), _one_hot(predicted_n, classes)

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        hits_rK = counts_rn @ (true_nK * predicted_nK)
        total_rK = counts_rn @ (true_nK + predicted_nK)
        f1_rK = 2 * hits_rK / np.maximum(total_rK, 1)
        mean: np.ndarray = f1_rK.sum(axis=1) / np.maximum((total_rK > 0).sum(axis=1), 1)
        return mean

    return statistic


def expected_calibration_error(confidence_n: Floats, correct_n: Floats, bins: int) -> Statistic:
    """Return Σ_b (n_b ÷ n)·|accuracy_b − confidence_b| over bins of equal width, as a function of counts.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3. It is biased upwards where bins have few examples.
    """
    gap_nb = _one_hot(bin_of(confidence_n, bins), bins) * (correct_n - confidence_n)[:, None]

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        error: np.ndarray = np.abs(counts_rn @ gap_nb).sum(axis=1) / counts_rn.sum(axis=1)
        return error

    return statistic


def bin_of(confidence_n: Floats, bins: int) -> Ints:
    """Return the bin (n,) of each confidence: bin i holds (i ÷ bins, (i + 1) ÷ bins]."""
    return np.clip(np.ceil(confidence_n * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability(
    confidence_n: Floats, correct_n: Floats, bins: int, *, replicates: int, seed: int, level: float
) -> list[dict[str, Any]]:
    """List the bins that have examples: their number, mean confidence, and accuracy with its interval."""
    number_n = bin_of(confidence_n, bins)
    found = []
    for number in np.unique(number_n).tolist():
        inside = number_n == number
        accuracy = proportion_interval(correct_n[inside], replicates=replicates, seed=seed, level=level)
        confidence = float(confidence_n[inside].mean())
        found.append({"examples": int(inside.sum()), "confidence": confidence, "accuracy": accuracy.as_dict()})
    return found


def confusion(
    cells_nC: npt.NDArray[np.float64], classes: int, *, replicates: int, seed: int, level: float
) -> dict[str, list[list[float]]]:
    """Count the examples of each true class (row) by predicted class (column), with intervals of the counts."""
    drawn: list[np.ndarray] = []

    def collect(counts_rn: np.ndarray) -> np.ndarray:
        drawn.append((counts_rn @ cells_nC).astype(np.float32))
        return np.zeros(len(counts_rn))

    replicates_of(collect, len(cells_nC), replicates=replicates, seed=seed)
    bounds = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2], axis=0)
    tables = {"counts": cells_nC.sum(axis=0), "low": bounds[0], "high": bounds[1]}
    return {name: table.reshape(classes, classes).tolist() for name, table in tables.items()}


def _interval(statistic: Statistic, items: int, *, replicates: int, seed: int, level: float) -> dict[str, float]:
    value = float(statistic(np.ones((1, items)))[0])
    drawn_r = replicates_of(statistic, items, replicates=replicates, seed=seed)
    return interval(value, drawn_r, level=level).as_dict()


def _one_hot(number_n: Ints, size: int) -> npt.NDArray[np.float64]:
    found = np.zeros((len(number_n), size))
    found[np.arange(len(number_n)), number_n] = 1
    return found
