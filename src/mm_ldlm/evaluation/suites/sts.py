"""Semantic textual similarity: scores of the embeddings of the model, the encoder and the one-step regression."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.sts import Encode, StsScore, ratio_to, score_encoder
from mm_ldlm.evaluation.sts_sets import StsSet, load_sts
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Metrics, Suite

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

MOST_UNKNOWN = 0.5
"""Largest fraction of the sentences of a set with unknown words at which its score is a headline of a run"""
SOURCES = {"encoder": "encoder", "one_step": "one-step regression", "model": "model"}
"""Embeddings that are scored → their label"""
POINTS = 500
"""Most pairs in the scatter plot; scores use the whole set"""


class Sts(Suite):
    """Score every STS set of the parameters for the encoder, the model and the one-step regression.

    A run that cannot embed texts has the encoder's scores only. If the encoder cannot embed texts, the sets have
    neither its scores nor ratios to them.
    """

    name, title = "sts", "Semantic textual similarity"
    plots = ("plot_sts", "plot_sts_scatter")
    template = "mm_ldlm.evaluation.suites/sts.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        refusal = given.model.capabilities.refusal("t2l")
        if not given.config.sts.sources:
            return "no STS sets are configured (evaluation.sts.sets)"
        return refusal if not given.model.capabilities.reads_latents or given.model.no_encoder is not None else None

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        from tqdm import tqdm

        model, config = given.model, given.config.sts
        refusal = model.capabilities.refusal("t2l")
        encoders: dict[str, Encode] = {}
        left_out = [f"scores of the {SOURCES[name]}: {reason}" for name, reason in
                    (("encoder", model.no_encoder), ("model", refusal)) if reason is not None]  # fmt: skip
        if model.no_encoder is None:
            encoders["encoder"] = model.encode
        if refusal is None:
            encoders["model"] = embedder(model, config.sampler, seed=given.seed)
            encoders["one_step"] = embedder(model, "one_step", seed=given.seed)
        sets: Metrics = {}
        for source in tqdm(config.sources, desc="STS", disable=not given.config.progress):
            pairs = load_sts(source, seed=given.seed)
            entry: Metrics = {"pairs": len(pairs), "subsets": pairs.subsets}
            if pairs.part:
                entry["part"] = pairs.part
            if refusal is None:
                entry |= tokenised(pairs, model, too_long=config.too_long)
                if entry["unknown"] > MOST_UNKNOWN:
                    left_out.append(
                        f"the set {source.name} among the headline numbers: {100 * entry['unknown']:.0f} % of its "
                        "sentences contain words outside the run's vocabulary"
                    )
            scores = {
                name: score_encoder(pairs, encode, bootstrap=given.bootstrap) for name, encode in encoders.items()
            }
            entry["scores"] = {
                name: {
                    "spearman": score.spearman, "pearson": score.pearson, "by_similarity": score.by_similarity,
                    **score.subsets,
                }
                for name, score in scores.items()
            }  # fmt: skip
            for name in scores.keys() - {"encoder"} if "encoder" in scores else ():
                entry["scores"][name]["ratio"] = ratio_to(scores["encoder"], scores[name], given.bootstrap)
            sets[source.name] = entry | {"scatter": _scatter(pairs, scores, seed=given.seed)}
        for line in left_out:
            log.info("left out of STS: %s", line)
        return {"sets": sets, "left_out": left_out}, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {}
        names = (
            "spearman",
            "mean_spearman",
            "weighted_mean_spearman",
            "mean_pearson",
            "weighted_mean_pearson",
            "ratio",
        )
        for name, entry in metrics["sets"].items():
            found[f"sts.{name}.pairs"], found[f"sts.{name}.unknown"] = entry["pairs"], entry.get("unknown")
            for source, score in entry["scores"].items():
                prefix = f"sts.{name}." + ("" if source == "model" else f"{source}_")
                found |= {f"{prefix}{key}": score.get(key) for key in names}
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
                    ("ratio", f"sts.{name}.ratio", "fraction"),
                ),
                leading=name == names[0],
            )
            for name in names
        ]  # fmt: skip

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        from mm_ldlm.evaluation.report import figures

        return {
            "plot_sts": figures.sts_scores(metrics["sets"]),
            "plot_sts_scatter": figures.sts_scatter(next(iter(metrics["sets"].values()))["scatter"]),
        }


def embedder(model: Any, sampler: Any, *, seed: int) -> Encode:
    """Wrap the model as an encoder: the mean of the sampler's draws; long sentences are truncated, as encoders do.

    Unknown words cause no warning here, because `tokenised` counts them once for all samplers.
    """

    def encode(texts: Sequence[str]) -> np.ndarray:
        ids = [row[: model.max_length] for row in model.tokenizer.encode(list(texts))]
        return np.asarray(model.embed_tokens(ids, list(texts), sampler=sampler, seed=seed).latents)

    return encode


def tokenised(pairs: StsSet, model: Any, *, too_long: str) -> dict[str, float]:
    """Count the distinct sentences that are too long for the model, and the fraction of those with unknown words.

    Raises:
        EvaluationError: some are too long and `too_long` is "refuse".
    """
    rows = model.tokenizer.encode(pairs.sentences)
    long = sum(len(row) > model.max_length for row in rows)
    if long and too_long == "refuse":
        raise EvaluationError(
            f"STS set '{pairs.name}': expected sentences of at most {model.max_length} tokens, found {long} that are "
            "longer. Set evaluation.sts.too_long to 'truncate' to truncate them as encoders do."
        )
    return {"too_long": long, "unknown": sum(model.tokenizer.unk_id in row for row in rows) / len(rows)}


def _scatter(pairs: StsSet, scores: Mapping[str, StsScore], *, seed: int) -> dict[str, Any]:
    rows = np.arange(len(pairs))
    if len(rows) > POINTS:
        rows = np.sort(np.random.default_rng([seed, 0x575]).choice(rows, size=POINTS, replace=False))
    found = {"gold": pairs.gold_N[rows]} | {name: score.cosine_N[rows] for name, score in scores.items()}
    return {name: values.round(4) for name, values in found.items()}
