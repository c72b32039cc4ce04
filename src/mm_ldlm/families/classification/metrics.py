"""Measures of a classifier with bootstrap intervals: accuracy, macro F1, confusion matrix and calibration.

n examples, K classes, b bins of confidence, r replicates of the bootstrap.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap, Statistic

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def measure(
    true_n: Ints, probability_nK: Floats, *, names: Sequence[str], bins: int, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Compare probabilities with the true classes; every number has an interval over the examples.

    Raises:
        EvaluationError: there are no examples, or a class is outside the names.
    """
    count, classes = len(true_n), len(names)
    if not count or true_n.min() < 0 or true_n.max() >= classes:
        raise EvaluationError(
            f"expected examples with classes 0 to {classes - 1}, found {count} examples, classes "
            f"{np.unique(true_n).tolist()[:5]}. Validate the data with this objective again."
        )
    predicted_n, confidence_n = probability_nK.argmax(axis=1), probability_nK.max(axis=1)
    correct_n = (predicted_n == true_n).astype(np.float64)
    nll_n = -np.log(np.maximum(probability_nK[np.arange(count), true_n], 1e-300))
    return {
        "examples": count,
        "classes": list(names),
        "accuracy": bootstrap.proportion(correct_n),
        "macro_f1": bootstrap.of(macro_f1(true_n, predicted_n, classes), count),
        "ece": bootstrap.of(expected_calibration_error(confidence_n, correct_n, bins), count),
        "nll": bootstrap.mean(nll_n),
        "majority": float(np.bincount(true_n).max() / count),
        "confusion": confusion(true_n, predicted_n, classes, bootstrap),
        "reliability": reliability(confidence_n, correct_n, bins, bootstrap),
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


def reliability(confidence_n: Floats, correct_n: Floats, bins: int, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """List the bins that have examples: their number, mean confidence, and accuracy with its interval."""
    number_n = bin_of(confidence_n, bins)
    return [
        {
            "examples": int((number_n == number).sum()),
            "confidence": float(confidence_n[number_n == number].mean()),
            "accuracy": bootstrap.proportion(correct_n[number_n == number]),
        }
        for number in np.unique(number_n)
    ]


def confusion(true_n: Ints, predicted_n: Ints, classes: int, bootstrap: Bootstrap) -> dict[str, list[list[float]]]:
    """Count the examples of each true class (row) by predicted class (column), with intervals of the counts."""
    cells_nC = _one_hot(true_n * classes + predicted_n, classes**2)

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        return (counts_rn @ cells_nC).astype(np.float32)

    ends = [(1 - bootstrap.level) / 2, (1 + bootstrap.level) / 2]
    low_C, high_C = np.quantile(bootstrap.replicates_of(statistic, len(true_n)), ends, axis=0)
    tables = {"counts": cells_nC.sum(axis=0), "low": low_C, "high": high_C}
    return {name: table.reshape(classes, classes).tolist() for name, table in tables.items()}


def _one_hot(number_n: Ints, size: int) -> Floats:
    found = np.zeros((len(number_n), size))
    found[np.arange(len(number_n)), number_n] = 1
    return found
