"""Summaries of negative log-likelihoods: nats per token with standard errors, and the cost by noise level.

The cost of a sentence is `length_nll + token_nll` nats (`inference.results.Scores`), and its rate is the cost divided
by its number of tokens. The cost includes the length, which diffusion models predict by a length head and
autoregressive models by an end token that is part of `token_nll`. The rates of all models are therefore comparable.
`Capabilities.likelihood` states whether a rate is the exact negative log-likelihood or an upper bound (the NELBO).

N sentences, K Monte Carlo draws of the NELBO for each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import EvaluationError

if TYPE_CHECKING:
    from mm_ldlm.inference.results import Scores


class Estimate(TypedDict):
    """A mean with its standard error over sentences; the interval is ±1.96 standard errors."""

    value: float
    standard_error: float
    low: float
    high: float


def _estimate(value: float, error: float) -> Estimate:
    value, reach = float(value), 1.959964 * float(error)
    return {"value": value, "standard_error": float(error), "low": value - reach, "high": value + reach}


def per_token(nll_N: npt.ArrayLike, length_N: npt.ArrayLike) -> Estimate:
    """Compute nats per token, Σ nll ÷ Σ tokens, with the ratio estimator's standard error over sentences.

    Raises:
        EvaluationError: a sentence's cost is not finite.
    """
    nll_N, length_N = np.asarray(nll_N, dtype=np.float64), np.asarray(length_N, dtype=np.float64)
    if not np.isfinite(nll_N).all():
        raise EvaluationError(
            f"Expected a finite negative log-likelihood of every sentence, found {(~np.isfinite(nll_N)).sum()} of "
            f"{len(nll_N)} that are not. The model gives probability 0 to these sentences; check its checkpoint."
        )
    rate, count = nll_N.sum() / length_N.sum(), len(nll_N)
    residual_N = nll_N - rate * length_N
    return _estimate(rate, math.sqrt(count / max(1, count - 1) * (residual_N**2).sum()) / length_N.sum())


def mean(values_N: npt.ArrayLike) -> Estimate:
    """Compute the mean of per-sentence values with its standard error, which is NaN for a single sentence."""
    value_N = np.asarray(values_N, dtype=np.float64)
    error = value_N.std(ddof=1) / math.sqrt(len(value_N)) if len(value_N) > 1 else math.nan
    return _estimate(value_N.mean(), error)


def perplexity(rate: Estimate) -> dict[str, float] | None:
    """Compute the perplexity of a rate with its interval; None if a number exceeds a float."""
    try:
        return {name: math.exp(rate[name]) for name in ("value", "low", "high")}
    except OverflowError:
        return None


def latent_bits(*, unconditional: Scores, given_latent: Scores) -> dict[str, Estimate]:
    """Compute the difference of unconditional and conditional cost in bits, per token and per sentence.

    Differences are taken sentence by sentence, so that the standard errors are those of the differences. If both costs
    are upper bounds, their difference estimates the latent's information but does not bound it.
    """
    bits_N = (unconditional.nll - given_latent.nll) / math.log(2)
    return {"per_token": per_token(bits_N, unconditional.tokens), "per_sentence": mean(bits_N)}


def by_noise_level(scores: Scores, *, buckets: int = 10) -> list[dict[str, Any]] | None:
    """Summarise the draws of the NELBO by bucket of noise level; None if the likelihood is not estimated by noise.

    The noise level is the mask ratio where the noise is [MASK], and the tokens scored there are the masked ones.
    Each line has the ends of the bucket, draws, scored tokens, cross-entropy and accuracy per scored token (None
    without any), and the nats per token that the bucket contributes, which sum to the NELBO of the tokens.
    """
    level_KN, scored_KN, correct_KN = scores.draw_mask_ratio, scores.draw_masked, scores.draw_correct
    cross_entropy_KN = scores.draw_cross_entropy
    if level_KN is None or scored_KN is None or correct_KN is None or cross_entropy_KN is None:
        return None
    index_KN = np.clip(np.ceil(level_KN * buckets).astype(int) - 1, 0, buckets - 1)
    total = scores.tokens.sum() * len(index_KN)
    lines = []
    for bucket in range(buckets):
        here = index_KN == bucket
        scored = int(scored_KN[here].sum())
        lines.append(
            {
                "low": bucket / buckets,
                "high": (bucket + 1) / buckets,
                "draws": int(here.sum()),
                "masked_tokens": scored,
                "cross_entropy": cross_entropy_KN[here].sum() / scored if scored else None,
                "accuracy": correct_KN[here].sum() / scored if scored else None,
                "nats_per_token": scores.draw_nll[here].sum() / total,
            }
        )
    return lines
