"""Fit of the probabilities that inverted texts are right.

n texts, F features.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.corpus.record import comparison_form
from mm_ldlm.evaluation.bootstrap import calibration_error
from mm_ldlm.inference.calibration import Calibration, Curve, features_of

Floats = npt.NDArray[np.float64]
RIDGE = 0.1
"""Penalty on the slopes of standardised features, in units of texts"""
FUNCTION_WORDS = """
a an the this that these those i me my mine myself you your yours yourself yourselves he him his himself she her hers
herself it its itself we us our ours ourselves they them their theirs themselves one who whom whose which what and or
but if so as than then because while of at by for with about to from in on into onto out up down off over under be am is
are was were been being have has had having do does did doing will would shall should can could may might must there
here s d m ll re ve
"""
"""English words, and endings after an apostrophe, that are not content words; negations are"""


def expected_calibration_error(confidence_n: npt.ArrayLike, right_n: npt.ArrayLike, *, bins: int = 10) -> float:
    """Compute the expected calibration error, between 0 and 1, of the probabilities that answers are right."""
    once = np.ones((1, len(np.asarray(right_n))))
    return float(calibration_error(np.asarray(confidence_n), np.asarray(right_n), bins)(once)[0])


def right_texts(sources: Sequence[str], texts: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
    """Compare inverted texts with their sources: (n,) for each of the events, of which each one implies the next.

    A text is `exact` if it is equal as written, `up_to_case` if it is equal in `comparison_form`, and right in its
    `content_words` if it has the same ones as its source, in any order.
    """
    forms = [(comparison_form(source), comparison_form(text)) for source, text in zip(sources, texts, strict=True)]
    return {
        "exact": np.array([source == text for source, text in zip(sources, texts, strict=True)], dtype=bool),
        "up_to_case": np.array([source == text for source, text in forms], dtype=bool),
        "content_words": np.array([content_words(a) == content_words(b) for a, b in forms], dtype=bool),
    }


def content_words(form: str) -> list[str]:
    """List the content words of a text in comparison form, and its numbers, in alphabetical order."""
    left_out = {*FUNCTION_WORDS.split()}
    return sorted(word for word in re.findall(r"\w+", form) if word not in left_out)


def fit_calibration(
    sources: Sequence[str], texts: Sequence[str], cosines: npt.ArrayLike, log_probs: npt.ArrayLike,
    *, weights: Mapping[str, str] | None = None,
) -> Calibration:  # fmt: skip
    """Fit the probabilities that inverted texts are right on held-out texts, whose sources are known.

    Args:
        sources: the texts whose vectors were inverted.
        weights: the weights that inverted them (`checkpoints.provenance.weights_of`).
    """
    features_nF, right = features_of(cosines, log_probs), right_texts(sources, texts)
    same_n = right["up_to_case"]
    return Calibration(
        weights=dict(weights or {}),
        texts=len(texts),
        up_to_case=fit_curve(features_nF, same_n),
        exact=fit_curve(features_nF[same_n], right["exact"][same_n]),
        content_words=fit_curve(features_nF[~same_n], right["content_words"][~same_n]),
    )


def fit_curve(features_nF: Floats, right_n: npt.NDArray[np.bool_]) -> Curve:
    """Fit a logistic function that does not decrease in any feature.

    The targets are Platt's (1999, equation 10) instead of 0 and 1: with h right texts of n the largest one is
    (h + 1) ÷ (h + 2). A few texts that are all right therefore give no probability near 1, and none gives .5.
    """
    from scipy.optimize import minimize

    hits, misses, size = int(right_n.sum()), int((~right_n).sum()), features_nF.shape[1]
    target_n = np.where(right_n, (hits + 1) / (hits + 2), 1 / (misses + 2))
    mean_F = features_nF.mean(axis=0) if len(right_n) else np.zeros(size)
    scale_F = np.maximum(features_nF.std(axis=0), 1e-3) if len(right_n) else np.ones(size)
    standard_nF = np.column_stack([np.ones(len(right_n)), (features_nF - mean_F) / scale_F])

    def loss(weight_F: Floats) -> tuple[float, Floats]:
        logit_n = standard_nF @ weight_F
        penalty_F = np.array([0.0, *[RIDGE] * size]) * weight_F
        value = np.logaddexp(0, logit_n).sum() - target_n @ logit_n + penalty_F @ weight_F / 2
        return float(value), standard_nF.T @ (1 / (1 + np.exp(-logit_n)) - target_n) + penalty_F

    found = minimize(loss, np.zeros(size + 1), jac=True, method="L-BFGS-B", bounds=[(None, None), *[(0, None)] * size])
    slope_F = found.x[1:] / scale_F
    curve = Curve(float(found.x[0] - slope_F @ mean_F), tuple(slope_F.tolist()), most=1.0)
    return replace(curve, most=float(curve(features_nF).max(initial=0.0)) if len(right_n) else 0.5)
