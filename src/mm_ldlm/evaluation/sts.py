"""Semantic textual similarity: correlation of a similarity of embeddings with gold scores (human or constructed).

A set is always scored completely, without sampling and without substitute values. Scores are Spearman and Pearson × 100
of four similarities: cosine, dot, and negative Manhattan and Euclidean distances, as in sentence-transformers'
EmbeddingSimilarityEvaluator; a test requires agreement to 1e-4.

Over subsets (SemEval 2012 to 2016) there are three conventions:

    all            correlation of the concatenation of the subsets: SimCSE (its copy of SentEval added it), and MTEB,
                   whose sets of a year have no subsets
    mean           unweighted mean of the subsets' correlations: SentEval's "mean"
    weighted mean  mean weighted by the subsets' numbers of pairs: SentEval's "wmean"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap, Interval, pearson_of_counts, spearman_of_counts
from mm_ldlm.evaluation.latents import unit
from mm_ldlm.evaluation.sts_sets import StsSet

Encode = Callable[[Sequence[str]], np.ndarray]
"""Sentences → (n, d) vectors, in order."""


@dataclass(frozen=True)
class StsScore:
    """Scores of one encoder on one set; correlations × 100.

    Attributes:
        spearman, pearson: of the cosine, over the concatenation of the subsets ("all").
        by_similarity: both correlations by similarity ("cosine", "dot", "manhattan", "euclidean").
        subsets: for a set with subsets, Spearman and Pearson of the cosine by subset and their two means.
        replicates_R: Spearman of the cosine per resample; the draws depend only on set and seed, so that the
            replicates of two encoders are paired.
        cosine_N: cosine of each pair.
    """

    spearman: Interval
    pearson: Interval
    by_similarity: dict[str, dict[str, float]]
    subsets: dict[str, Any]
    replicates_R: np.ndarray = field(repr=False)
    cosine_N: np.ndarray = field(repr=False)


def similarities(a_Nd: np.ndarray, b_Nd: np.ndarray) -> dict[str, np.ndarray]:
    """Compute four similarities of the rows of `a` and `b`, in float64; larger is more similar for all of them.

    Raises:
        EvaluationError: a vector is non-finite or zero, so that its cosine is undefined.
    """
    a_Nd, b_Nd = np.asarray(a_Nd, dtype=np.float64), np.asarray(b_Nd, dtype=np.float64)
    return {
        # Rounded, so that pairs of a sentence with itself are ties and not ordered by their last bit.
        "cosine": np.round((unit(a_Nd) * unit(b_Nd)).sum(axis=1), 12),
        "dot": (a_Nd * b_Nd).sum(axis=1),
        "manhattan": -np.abs(a_Nd - b_Nd).sum(axis=1),
        "euclidean": -np.linalg.norm(a_Nd - b_Nd, axis=1),
    }


def correlate(similarity_N: np.ndarray, gold_N: np.ndarray, *, name: str = "sts") -> dict[str, float]:
    """Compute the Spearman and Pearson correlations, each × 100.

    Raises:
        EvaluationError: all similarities are equal (a collapsed encoder), so that the correlation is undefined.
    """
    from scipy.stats import pearsonr, spearmanr

    if np.ptp(similarity_N) == 0:
        raise EvaluationError(
            f"{name}: expected different similarities, found {similarity_N[0]:.6g} for all {len(similarity_N)} pairs: "
            "the embeddings have collapsed. Check the encoder, or the checkpoint."
        )
    found = {"spearman": spearmanr(similarity_N, gold_N), "pearson": pearsonr(similarity_N, gold_N)}
    return {kind: 100 * float(result.statistic) for kind, result in found.items()}


def score_encoder(pairs: StsSet, encode: Encode, *, bootstrap: Bootstrap = Bootstrap()) -> StsScore:  # noqa: B008
    """Embed every distinct sentence of a set once and score the pairs; exceptions of `encode` are not caught."""
    sentences = pairs.sentences
    place = {sentence: index for index, sentence in enumerate(sentences)}
    vectors_Md = np.asarray(encode(sentences))
    if len(vectors_Md) != len(sentences):
        raise EvaluationError(
            f"STS set '{pairs.name}': expected one vector for each of {len(sentences)} sentences, found "
            f"{len(vectors_Md)}. Return one vector per text, in their order."
        )
    alike = similarities(*(vectors_Md[[place[text] for text in side]] for side in (pairs.first, pairs.second)))
    gold_N, cosine_N = pairs.gold_N, alike["cosine"]
    both = {kind: correlate(values, gold_N, name=f"STS set '{pairs.name}'") for kind, values in alike.items()}
    spearman_R = 100 * bootstrap.replicates_of(spearman_of_counts(cosine_N, gold_N), len(pairs))
    pearson_R = 100 * bootstrap.replicates_of(pearson_of_counts(cosine_N, gold_N), len(pairs))
    return StsScore(
        spearman=bootstrap.interval(both["cosine"]["spearman"], spearman_R),
        pearson=bootstrap.interval(both["cosine"]["pearson"], pearson_R),
        by_similarity=both,
        subsets=_over_subsets(pairs, cosine_N, bootstrap) if len(pairs.subsets) > 1 else {},
        replicates_R=spearman_R,
        cosine_N=cosine_N,
    )


def ratio_to(encoder: StsScore, model: StsScore, bootstrap: Bootstrap) -> Interval:
    """Compute the model's Spearman ÷ the encoder's on the same set, with the interval of paired resamples."""
    value = model.spearman["value"] / encoder.spearman["value"]
    return bootstrap.interval(value, model.replicates_R / encoder.replicates_R)


def _over_subsets(pairs: StsSet, cosine_N: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    label_N = np.array(pairs.subset_N)
    scores: dict[str, dict[str, float]] = {}
    draws: list[np.ndarray] = []
    sizes: list[int] = []
    for name in pairs.subsets:
        rows = np.flatnonzero(label_N == name)
        scores[name] = correlate(cosine_N[rows], pairs.gold_N[rows], name=f"subset '{name}'")
        # One stream per subset, because a mean over subsets needs resampling within each.
        stream = replace(bootstrap, seed=bootstrap.seed + len(sizes))
        statistic = spearman_of_counts(cosine_N[rows], pairs.gold_N[rows])
        draws.append(100 * stream.replicates_of(statistic, len(rows)))
        sizes.append(len(rows))
    found: dict[str, Any] = {}
    for kind in ("spearman", "pearson"):
        values = [score[kind] for score in scores.values()]
        found[f"mean_{kind}"] = float(np.mean(values))
        found[f"weighted_mean_{kind}"] = float(np.average(values, weights=sizes))
        found[f"subset_{kind}"] = dict(zip(scores, values, strict=True))
    return found | {"mean_interval": bootstrap.interval(found["mean_spearman"], np.mean(draws, axis=0))}
