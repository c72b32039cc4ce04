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
from dataclasses import dataclass, field

import numpy as np

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.bootstrap import Interval, PearsonOfCounts, SpearmanOfCounts, interval, replicates_of
from mm_ldlm.evaluation.sts_sets import StsSet

Encode = Callable[[Sequence[str]], np.ndarray]
"""Sentences → (n, d) vectors, in order."""


@dataclass(frozen=True)
class StsScore:
    """Scores of one encoder on one set; correlations × 100.

    Attributes:
        spearman, pearson: by similarity ("cosine", "dot", "manhattan", "euclidean") over the concatenation ("all").
        subset_spearman, mean_spearman, weighted_mean_spearman: Spearman of the cosine by subset, and its means.
        subset_pearson, mean_pearson, weighted_mean_pearson: the same with Pearson, which SentEval's tables contain.
        replicates_R: Spearman of the cosine per resample; the draws depend only on set and seed, so that the
            replicates of two encoders are paired.
    """

    set_name: str
    pairs: int
    spearman: dict[str, float]
    pearson: dict[str, float]
    spearman_interval: Interval
    pearson_interval: Interval
    subset_spearman: dict[str, float] = field(default_factory=dict)
    mean_spearman: float | None = None
    weighted_mean_spearman: float | None = None
    subset_pearson: dict[str, float] = field(default_factory=dict)
    mean_pearson: float | None = None
    weighted_mean_pearson: float | None = None
    mean_interval: Interval | None = None
    replicates_R: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    cosine_N: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)


def similarities(a_Nd: np.ndarray, b_Nd: np.ndarray, *, name: str = "sts") -> dict[str, np.ndarray]:
    """Compute four similarities of the rows of `a` and `b`, in float64; larger is more similar for all of them.

    Raises:
        EvaluationError: the shapes differ, or a vector is not finite or zero, so that its cosine is undefined.
    """
    a_Nd, b_Nd = np.asarray(a_Nd, dtype=np.float64), np.asarray(b_Nd, dtype=np.float64)
    if a_Nd.shape != b_Nd.shape or a_Nd.ndim != 2:
        raise EvaluationError(f"{name}: expected two equal (n, d) arrays, found {a_Nd.shape} and {b_Nd.shape}.")
    for side, vectors in (("first", a_Nd), ("second", b_Nd)):
        if bad := int((~np.isfinite(vectors).all(axis=1)).sum()):
            raise EvaluationError(f"{name}: {bad} of {len(vectors)} embeddings of the {side} side are not finite.")
        if zero := int((np.linalg.norm(vectors, axis=1) == 0).sum()):
            raise EvaluationError(
                f"{name}: {zero} embeddings of the {side} side are zero vectors, whose cosine is undefined."
            )
    dot_N = (a_Nd * b_Nd).sum(axis=1)
    return {
        # Rounded, so that pairs of a sentence with itself are ties and not ordered by their last bit.
        "cosine": np.round(dot_N / (np.linalg.norm(a_Nd, axis=1) * np.linalg.norm(b_Nd, axis=1)), 12),
        "dot": dot_N,
        "manhattan": -np.abs(a_Nd - b_Nd).sum(axis=1),
        "euclidean": -np.linalg.norm(a_Nd - b_Nd, axis=1),
    }


def correlate(similarity_N: np.ndarray, gold_N: np.ndarray, *, name: str = "sts") -> tuple[float, float]:
    """Compute (Spearman, Pearson), each × 100.

    Raises:
        EvaluationError: all similarities are equal (a collapsed encoder), so that the correlation is undefined.
    """
    from scipy.stats import pearsonr, spearmanr

    if np.ptp(similarity_N) == 0:
        raise EvaluationError(
            f"{name}: all {len(similarity_N)} similarities equal {similarity_N[0]:.6g}; the embeddings have collapsed."
        )
    return 100 * float(spearmanr(similarity_N, gold_N).statistic), 100 * float(pearsonr(similarity_N, gold_N).statistic)


def score_vectors(
    pairs: StsSet, a_Nd: np.ndarray, b_Nd: np.ndarray, *, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> StsScore:
    """Score vectors of the two sides of a set."""
    if len(a_Nd) != len(pairs):
        raise EvaluationError(
            f"STS set '{pairs.name}': expected one vector for each of {len(pairs)} pairs, found {len(a_Nd)}."
        )
    alike = similarities(a_Nd, b_Nd, name=f"STS set '{pairs.name}'")
    both = {kind: correlate(values, pairs.gold_N, name=f"STS set '{pairs.name}'") for kind, values in alike.items()}
    cosine_N = alike["cosine"]
    spearman, pearson = SpearmanOfCounts(cosine_N, pairs.gold_N), PearsonOfCounts(cosine_N, pairs.gold_N)
    spearman_R = 100 * replicates_of(spearman, len(pairs), replicates=replicates, seed=seed)
    pearson_R = 100 * replicates_of(pearson, len(pairs), replicates=replicates, seed=seed)
    subsets = (
        _over_subsets(pairs, cosine_N, replicates=replicates, seed=seed, level=level) if len(pairs.subsets) > 1 else {}
    )
    return StsScore(
        set_name=pairs.name,
        pairs=len(pairs),
        spearman={kind: value for kind, (value, _) in both.items()},
        pearson={kind: value for kind, (_, value) in both.items()},
        spearman_interval=interval(both["cosine"][0], spearman_R, level=level),
        pearson_interval=interval(both["cosine"][1], pearson_R, level=level),
        replicates_R=spearman_R,
        cosine_N=cosine_N,
        **subsets,
    )


def score_encoder(
    pairs: StsSet, encode: Encode, *, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> StsScore:
    """Embed every distinct sentence of the set once, then score; exceptions of `encode` are not caught."""
    a_Nd, b_Nd = embed_pairs(pairs, encode)
    return score_vectors(pairs, a_Nd, b_Nd, replicates=replicates, seed=seed, level=level)


def embed_pairs(pairs: StsSet, encode: Encode) -> tuple[np.ndarray, np.ndarray]:
    sentences = pairs.sentences
    vectors_Md = np.asarray(encode(sentences))
    if len(vectors_Md) != len(sentences):
        raise EvaluationError(
            f"STS set '{pairs.name}': expected one vector for each of {len(sentences)} sentences, found "
            f"{len(vectors_Md)}."
        )
    row = {sentence: index for index, sentence in enumerate(sentences)}
    return vectors_Md[[row[s] for s in pairs.first]], vectors_Md[[row[s] for s in pairs.second]]


def ratio_to(encoder: StsScore, model: StsScore, *, level: float = 0.95) -> Interval:
    """Compute the model's Spearman ÷ the encoder's, with the interval of paired resamples."""
    if encoder.pairs != model.pairs or encoder.set_name != model.set_name:
        raise EvaluationError(
            f"A ratio needs two scores of one STS set, found '{encoder.set_name}' and '{model.set_name}'."
        )
    value = model.spearman["cosine"] / encoder.spearman["cosine"]
    return interval(value, model.replicates_R / encoder.replicates_R, level=level)


def _over_subsets(pairs: StsSet, cosine_N: np.ndarray, *, replicates: int, seed: int, level: float) -> dict:
    names, label_N = pairs.subsets, np.array(pairs.subset_N)
    by_name: dict[str, float] = {}
    pearson: dict[str, float] = {}
    draws: list[np.ndarray] = []
    sizes: list[int] = []
    for name in names:
        rows = np.flatnonzero(label_N == name)
        by_name[name], pearson[name] = correlate(cosine_N[rows], pairs.gold_N[rows], name=f"subset '{name}'")
        statistic = SpearmanOfCounts(cosine_N[rows], pairs.gold_N[rows])
        # One stream per subset, because a mean over subsets needs resampling within each.
        draws.append(100 * replicates_of(statistic, len(rows), replicates=replicates, seed=seed + len(sizes)))
        sizes.append(len(rows))
    values = np.array(list(by_name.values()))
    return {
        "subset_spearman": by_name,
        "mean_spearman": float(values.mean()),
        "weighted_mean_spearman": float(np.average(values, weights=sizes)),
        "subset_pearson": pearson,
        "mean_pearson": float(np.mean(list(pearson.values()))),
        "weighted_mean_pearson": float(np.average(list(pearson.values()), weights=sizes)),
        "mean_interval": interval(float(values.mean()), np.mean(draws, axis=0), level=level),
    }
