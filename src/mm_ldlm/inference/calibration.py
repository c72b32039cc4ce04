"""Probabilities that an inverted text is right, as functions of its cosine and of its log-probability.

They are fitted on held-out texts (`mm_ldlm.extras`) and kept in a JSON file with the run. An encoder without
case gives texts that differ only in case the same vector, so the cosine decides whether a text is exact up to case, and
the log-probability whether its capitals are right as well.

n texts, F = 3 features.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.files import json_document

Floats = npt.NDArray[np.float64]

CALIBRATION = "calibration.json"
FINEST = 1e-4
"""Differences of a cosine to 1 below this one count as 0: storing a vector in int8 causes up to 6e-5, in float16 less.
Sentences that differ in a word or a mark seldom differ by less (docs/log.md)"""
SUREST = 1e-3
"""The same for −log p of a text, in nats"""


def features_of(cosines: npt.ArrayLike, log_probs: npt.ArrayLike) -> Floats:
    """Compute the features (n, F) of texts; each is larger for texts that are more probably right.

    They are whether the cosine is 1, up to rounding (`FINEST`), −log₁₀(1 − cosine), and −log₁₀(−log p), where p is the
    probability that the model gave the text.
    """
    gap_n, nats_n = 1 - np.asarray(cosines, np.float64), -np.asarray(log_probs, np.float64)
    digits = (-np.log10(np.maximum(values, least)) for values, least in ((gap_n, FINEST), (nats_n, SUREST)))
    return np.column_stack([gap_n <= FINEST, *digits])


@json_document
class Curve:
    """Logistic function of the features, which decreases in none of them."""

    bias: float
    slopes: tuple[float, float, float]
    most: float
    """Largest probability of a text of the fit, and of any text"""

    def __post_init__(self) -> None:
        if not (np.isfinite([self.bias, *self.slopes]).all() and min(self.slopes) >= 0 <= self.most <= 1):
            raise ValueError("expected a finite bias, finite slopes of at least 0, and a probability")

    def __call__(self, features_nF: Floats) -> Floats:
        """Compute the probabilities (n,)."""
        logit_n = self.bias + features_nF @ np.array(self.slopes)
        return np.minimum(1 / (1 + np.exp(-np.clip(logit_n, -500, 500))), self.most)


@json_document
class Calibration:
    """Calibration of the texts that a run inverts."""

    weights: dict[str, str]
    """The weights of the run (`checkpoints.provenance.weights_of`)"""
    texts: int
    """Number of held-out texts that it was fitted on"""
    up_to_case: Curve
    """P(exact up to case)"""
    exact: Curve
    """P(exact as written | exact up to case)"""
    content_words: Curve
    """P(all content words are right | not exact up to case)"""

    def probabilities(self, cosines: npt.ArrayLike, log_probs: npt.ArrayLike) -> dict[str, Floats]:
        """Compute the probabilities (n,) that texts are exact, exact up to case, and right in all content words.

        Args:
            cosines: (n,) of the re-embedded texts to their targets.
            log_probs: (n,) nats, `Texts.log_probs`.
        """
        features_nF = features_of(cosines, log_probs)
        same_n = self.up_to_case(features_nF)
        content_n = same_n + (1 - same_n) * self.content_words(features_nF)
        return {"exact": same_n * self.exact(features_nF), "up_to_case": same_n, "content_words": content_n}
