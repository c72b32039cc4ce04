"""Calibration of confidences: the expected error, and its bins.

n answers, b bins of confidence, r replicates of the bootstrap.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.evaluation.bootstrap import Bootstrap, Statistic


def calibration_error(confidence_n: np.ndarray, right_n: np.ndarray, bins: int) -> Statistic:
    """Return Σ_b (n_b ÷ n)·|accuracy_b − confidence_b| over bins of equal width, as a function of counts.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3. It is biased upwards where bins have few examples.
    """
    gap_nb = np.eye(bins)[bin_of(confidence_n, bins)] * (right_n - confidence_n)[:, None]

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        return np.abs(counts_rn @ gap_nb).sum(axis=1) / counts_rn.sum(axis=1)

    return statistic


def bin_of(confidence_n: np.ndarray, bins: int) -> npt.NDArray[np.int64]:
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
