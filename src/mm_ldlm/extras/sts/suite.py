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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap, Interval
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Metrics, Suite, unit
from mm_ldlm.extras.sts.correlations import pearson_of_counts, spearman_of_counts
from mm_ldlm.extras.sts.sets import StsSet, load_sts

Encode = Callable[[Sequence[str]], np.ndarray]
"""Sentences → (n, d) vectors, in order"""
MOST_UNKNOWN = 0.5
"""Largest fraction of the sentences of a set with unknown words at which its score is a headline of a run"""


@dataclass(frozen=True)
class StsScore:
    """Scores of one encoder on one set; correlations × 100.

    Attributes:
        numbers: `spearman` and `pearson` of the cosine, over the concatenation of the subsets ("all"), with intervals;
            `by_similarity`, both correlations of each of the `similarities`; and for a set with subsets, Spearman of
            the cosine by subset, and the two means of both correlations.
        replicates_R: Spearman of the cosine per resample; the draws depend only on set and seed, so that the
            replicates of two encoders are paired.
    """

    numbers: dict[str, Any]
    replicates_R: np.ndarray = field(repr=False)


class Sts(Suite):
    """Score every STS set of the parameters for the encoder, the model and the one-step regression.

    A run that cannot embed texts has the encoder's scores only. If the encoder cannot embed texts, the sets have
    neither its scores nor ratios to them.
    """

    name, title = "sts", "Semantic textual similarity"
    template = "mm_ldlm.extras.sts/report.html.j2"

    def untrained(self, sections: Mapping[str, Any], *, seed: int) -> Mapping[str, Sequence[str]]:
        return {source.name: load_sts(source, seed=seed).sentences for source in sections["evaluation"].sts.sources}

    def skip_reason(self, given: Evaluation) -> str | None:
        if not given.config.sts.sources:
            return "no STS sets are configured (evaluation.sts.sets)"
        encodes = "latents" in given.model.capabilities.fields and given.model.no_encoder is None
        return None if encodes else given.model.capabilities.refusal("t2l")

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        model, config = given.model, given.config.sts
        refusals = {"encoder": model.no_encoder, "model": model.capabilities.refusal("t2l")}
        left_out = [f"scores of the {name}: {why}" for name, why in refusals.items() if why is not None]
        encoders: dict[str, Encode] = {} if refusals["encoder"] is not None else {"encoder": model.encode}
        embeds = refusals["model"] is None
        if embeds:
            encoders["model"] = embedder(model, config.sampler, seed=given.seed)
            encoders["one_step"] = embedder(model, "one_step", seed=given.seed)
        sets: Metrics = {}
        for source in config.sources:
            pairs = load_sts(source, seed=given.seed)
            entry: Metrics = {"pairs": len(pairs), "subsets": pairs.subsets, "part": pairs.part}
            if "encoder" in encoders and hasattr(model.encoder, "spec"):  # one that has a name
                entry["published"] = source.published.get(model.encoder.spec.name)
            entry |= tokenised(pairs, model) if embeds else {}
            if entry.get("unknown", 0) > MOST_UNKNOWN:
                left_out.append(
                    f"the set {source.name} among the headline numbers: {100 * entry['unknown']:.0f} % of its "
                    "sentences contain words outside the run's vocabulary"
                )
            scores = {
                name: score_encoder(pairs, encode, bootstrap=given.bootstrap) for name, encode in encoders.items()
            }
            entry["scores"] = {name: score.numbers for name, score in scores.items()}
            for name in scores.keys() - {"encoder"} if "encoder" in scores else ():
                entry["scores"][name]["ratio"] = ratio_to(scores["encoder"], scores[name], given.bootstrap)
            sets[source.name] = entry
        return {"sets": sets, "left_out": left_out}, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {}
        means = [f"{kind}_{of}" for of in ("spearman", "pearson") for kind in ("mean", "weighted_mean")]
        for name, entry in metrics["sets"].items():
            found[f"sts.{name}.pairs"], found[f"sts.{name}.unknown"] = entry["pairs"], entry.get("unknown")
            found[f"sts.{name}.encoder_published"] = entry.get("published")
            for source, score in entry["scores"].items():
                prefix = f"sts.{name}." + ("" if source == "model" else f"{source}_")
                found |= {f"{prefix}{key}": score.get(key) for key in ("spearman", *means, "ratio")}
                found[f"{prefix}pearson"] = score["pearson"]["value"]
        return found

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        """List the Spearman correlation of the model on every set with enough known words; the first one leads."""
        names = [key.split(".")[1] for key in numbers if key.startswith("sts.") and key.endswith(".spearman")]
        names = sorted(name for name in names if numbers.get(f"sts.{name}.unknown", 0.0) <= MOST_UNKNOWN)
        return [
            Headline(
                f"sts.{name}.spearman", f"STS {name}", "points", "Spearman × 100",
                beside=(
                    ("encoder", f"sts.{name}.encoder_spearman", "points"),
                    ("published", f"sts.{name}.encoder_published", "points"),
                    ("ratio", f"sts.{name}.ratio", "fraction"),
                ),
                leading=name == names[0],
            )
            for name in names
        ]  # fmt: skip

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        return {"plot_sts": sts_scores(metrics["sets"])}


def embedder(model: Any, sampler: Any, *, seed: int) -> Encode:
    """Wrap the model as an encoder: the mean of the sampler's draws; long sentences are truncated, as encoders do.

    Unknown words cause no warning here, because `tokenised` counts them once for all samplers.
    """

    def encode(texts: Sequence[str]) -> np.ndarray:
        ids = [row[: model.max_length] for row in model.tokenizer.encode(list(texts))]
        return np.asarray(model.embed(list(texts), ids=ids, sampler=sampler, seed=seed).latents)

    return encode


def tokenised(pairs: StsSet, model: Any) -> dict[str, float]:
    """Count the distinct sentences that are too long for the model, and the fraction of those with unknown words."""
    rows = model.tokenizer.encode(pairs.sentences)
    return {
        "too_long": sum(len(row) > model.max_length for row in rows),
        "unknown": sum(model.tokenizer.unk_id in row for row in rows) / len(rows),
    }


# -- scores -----------------------------------------------------------------------------------------------------------


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
    alike = similarities(*(vectors_Md[[place[text] for text in side]] for side in (pairs.first, pairs.second)))
    gold_N, cosine_N = pairs.gold_N, alike["cosine"]
    both = {kind: correlate(values, gold_N, name=f"STS set '{pairs.name}'") for kind, values in alike.items()}
    replicates = {
        kind: 100 * bootstrap.replicates_of(statistic(cosine_N, gold_N), len(pairs))
        for kind, statistic in (("spearman", spearman_of_counts), ("pearson", pearson_of_counts))
    }
    numbers = {
        **{kind: bootstrap.interval(both["cosine"][kind], values_R) for kind, values_R in replicates.items()},
        "by_similarity": both,
        **(_over_subsets(pairs, cosine_N) if len(pairs.subsets) > 1 else {}),
    }
    return StsScore(numbers, replicates["spearman"])


def ratio_to(encoder: StsScore, model: StsScore, bootstrap: Bootstrap) -> Interval:
    """Compute the model's Spearman ÷ the encoder's on the same set, with the interval of paired resamples."""
    value = model.numbers["spearman"]["value"] / encoder.numbers["spearman"]["value"]
    return bootstrap.interval(value, model.replicates_R / encoder.replicates_R)


def _over_subsets(pairs: StsSet, cosine_N: np.ndarray) -> dict[str, Any]:
    parts = {name: np.flatnonzero(np.array(pairs.subset_N) == name) for name in pairs.subsets}
    scores = {name: correlate(cosine_N[rows], pairs.gold_N[rows], name=f"subset '{name}'")
              for name, rows in parts.items()}  # fmt: skip
    found: dict[str, Any] = {"subset_spearman": {name: score["spearman"] for name, score in scores.items()}}
    for kind in ("spearman", "pearson"):
        values = [score[kind] for score in scores.values()]
        found[f"mean_{kind}"] = float(np.mean(values))
        found[f"weighted_mean_{kind}"] = float(np.average(values, weights=[*map(len, parts.values())]))
    return found


def sts_scores(sets: Mapping[str, Any]) -> Any:
    """Plot Spearman × 100 by set, with intervals, of model, one-step regression and encoder."""
    from mm_ldlm.evaluation.report import theme

    traces = []
    for source, (label, colour) in theme.SOURCES.items():
        found = {name: e["scores"][source]["spearman"] for name, e in sets.items() if source in e["scores"]}
        if found:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": label, "y": list(found),
                    "x": [each["value"] for each in found.values()],
                    "error_x": theme.bars(list(found.values()), colour), "marker": {"size": 11, "color": colour},
                    "hovertemplate": "%{y}: %{x:.2f}<extra>" + label + "</extra>",
                }
            )  # fmt: skip
    y = {"title": "STS set", "type": "category", "autorange": "reversed"}
    height = max(340, 130 + 70 * len(sets))
    return theme.chart(traces, x={"title": "Spearman × 100"}, y=y, height=height, scattermode="group", scattergap=0.6)
