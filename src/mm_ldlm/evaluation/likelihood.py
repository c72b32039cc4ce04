"""Summaries of negative log-likelihoods: nats per token with standard errors, and the cost by noise level.

The cost of a sentence is `length_nll + token_nll` nats (`inference.results.Scores`), and its rate is the cost divided
by its number of tokens. The cost includes the length, which diffusion models predict by a length head and
autoregressive models by an end token that is part of `token_nll`. The rates of all models are therefore comparable.
`Capabilities.likelihood` states whether a rate is the exact negative log-likelihood or an upper bound (the NELBO).

N sentences, K Monte Carlo draws of the NELBO for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mm_ldlm.core.errors import EvaluationError

if TYPE_CHECKING:
    from mm_ldlm.inference.results import Scores


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error over sentences; the interval is ±1.96 standard errors."""

    value: float
    standard_error: float

    @property
    def low(self) -> float:
        return self.value - 1.959964 * self.standard_error

    @property
    def high(self) -> float:
        return self.value + 1.959964 * self.standard_error

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "standard_error": self.standard_error, "low": self.low, "high": self.high}


def per_token(nll_N: np.ndarray, length_N: np.ndarray) -> Estimate:
    """Compute nats per token, Σ nll ÷ Σ tokens, with the ratio estimator's standard error over sentences.

    Raises:
        EvaluationError: a sentence's cost is not finite.
    """
    nll_N, length_N = np.asarray(nll_N, dtype=np.float64), np.asarray(length_N, dtype=np.float64)
    if not np.isfinite(nll_N).all():
        raise EvaluationError(
            f"Expected a finite negative log-likelihood of every sentence, found {(~np.isfinite(nll_N)).sum()} of "
            f"{len(nll_N)} that are not finite. The model gives probability 0 to these sentences; check its checkpoint."
        )
    rate = nll_N.sum() / length_N.sum()
    count = len(nll_N)
    residual_N = nll_N - rate * length_N
    error = math.sqrt(count / max(1, count - 1) * (residual_N**2).sum()) / length_N.sum()
    return Estimate(float(rate), float(error))


def perplexity(nats_per_token: float) -> float | None:
    """Compute the perplexity of a cost per token in nats; None if it exceeds a float."""
    try:
        return math.exp(nats_per_token)
    except OverflowError:
        return None


def mean(values_N: np.ndarray) -> Estimate:
    """Compute the mean of per-sentence values with its standard error."""
    values_N = np.asarray(values_N, dtype=np.float64)
    error = values_N.std(ddof=1) / math.sqrt(len(values_N)) if len(values_N) > 1 else float("nan")
    return Estimate(float(values_N.mean()), float(error))


def latent_bits(*, unconditional: Scores, given_latent: Scores) -> dict[str, Estimate]:
    """Compute the difference of unconditional and conditional cost in bits, per token and per sentence.

    Differences are taken sentence by sentence, so that the standard errors are those of the differences. If both costs
    are upper bounds, their difference estimates the latent's information but does not bound it.

    Raises:
        EvaluationError: the two costs belong to different sentences.
    """
    if unconditional.texts != given_latent.texts:
        raise EvaluationError(
            "Expected the unconditional and the conditional cost of the same sentences in the same order, found "
            f"different sentences ({len(unconditional.texts)} and {len(given_latent.texts)})."
        )
    bits_N = (unconditional.nll - given_latent.nll) / math.log(2)
    return {"per_token": per_token(bits_N, unconditional.tokens), "per_sentence": mean(bits_N)}


def by_mask_ratio(scores: Scores, *, buckets: int = 10) -> pd.DataFrame | None:
    """Summarise the draws of the NELBO by bucket of noise level; None if the likelihood is not estimated by noise.

    The noise level is the mask ratio where the noise is [MASK], and the tokens scored there are the masked ones.
    Columns: ends of the bucket, draws, scored tokens, cross-entropy and accuracy per scored token, and the nats per
    token that the bucket contributes. The last column sums to the NELBO of the tokens, in nats per token.
    """
    ratio_KN, masked_KN, correct_KN = scores.draw_mask_ratio, scores.draw_masked, scores.draw_correct
    cross_entropy_KN = scores.draw_cross_entropy
    if ratio_KN is None or masked_KN is None or correct_KN is None or cross_entropy_KN is None:
        return None
    edges = np.linspace(0, 1, buckets + 1)
    index_KN = np.clip(np.ceil(ratio_KN * buckets).astype(int) - 1, 0, buckets - 1)
    total = scores.tokens.sum() * len(ratio_KN)
    lines = []
    for bucket in range(buckets):
        here = index_KN == bucket
        masked = masked_KN[here].sum()
        lines.append(
            {
                "low": edges[bucket],
                "high": edges[bucket + 1],
                "draws": int(here.sum()),
                "masked_tokens": int(masked),
                "cross_entropy": cross_entropy_KN[here].sum() / masked if masked else float("nan"),
                "accuracy": correct_KN[here].sum() / masked if masked else float("nan"),
                "nats_per_token": scores.draw_nll[here].sum() / total,
            }
        )
    return pd.DataFrame(lines)
