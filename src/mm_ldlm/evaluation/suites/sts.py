"""Evaluation of STS: scores of the embeddings of the model, the encoder and the one-step regression."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.config import BootstrapConfig, StsConfig
from mm_ldlm.evaluation.headline import MOST_UNKNOWN
from mm_ldlm.evaluation.sts import Encode, StsScore, ratio_to, score_encoder
from mm_ldlm.evaluation.sts_sets import StsSet, load_sts
from mm_ldlm.evaluation.suites.inversion import no_encoder
from mm_ldlm.inference.inputs import warn_of_unknown

log = logging.getLogger(__name__)


def evaluate(model: Any, *, config: StsConfig, bootstrap: BootstrapConfig, seed: int, progress: bool) -> dict[str, Any]:
    """Score every STS set of the parameters.

    Returns:
        {"sets": {name: pairs, subsets, the part of SICK, and for encoder, model and one_step the correlations with
        intervals}}. A run that cannot embed texts has "skipped", the reason, and the encoder's scores alone; without
        latents it has no encoder either, and no sets. If the encoder cannot embed texts, "left_out" is the reason, and
        the sets have neither its scores nor ratios to them.
    """
    from tqdm import tqdm

    reason = model.capabilities.refusal("t2l")
    found: dict[str, Any] = {"sets": {}} if reason is None else {"skipped": reason, "sets": {}}
    if not model.capabilities.reads_latents:
        return found
    if (without := no_encoder(model)) is not None:
        found["left_out"] = without
        log.info("STS of the encoder is left out: %s", without)
        if reason is not None:
            return found
    for source in tqdm(config.sources, desc="STS", disable=not progress):
        pairs = load_sts(source, seed=seed)
        options: dict[str, Any] = {"replicates": bootstrap.replicates, "seed": seed, "level": bootstrap.level}
        scores = {} if without is not None else {"encoder": score_encoder(pairs, model.encode, **options)}
        entry: dict[str, Any] = {"pairs": len(pairs), "subsets": list(pairs.subsets)}
        if source.format == "sick":
            entry["part"] = source.split
        if reason is None:
            entry["too_long"] = count_long(pairs, model, too_long=config.too_long)
            entry["unknown"] = fraction_unknown(pairs, model)
            if entry["unknown"] > MOST_UNKNOWN:
                log.warning(
                    "STS set '%s': %s of its sentences contain words outside this run's vocabulary, so the scores of "
                    "the model are not among the headline numbers; evaluation.sts.sets=[] leaves all sets out",
                    source.name, f"{100 * entry['unknown']:.0f} %",
                )  # fmt: skip
            else:
                tokenizer, sentences = model.tokenizer, pairs.sentences
                warn_of_unknown(tokenizer.encode(sentences), sentences, unk_id=tokenizer.unk_id)
            scores["model"] = score_encoder(pairs, embedder(model, config.sampler, seed=seed), **options)
            scores["one_step"] = score_encoder(pairs, embedder(model, "one_step", seed=seed), **options)
        entry["scores"] = {name: as_dict(score) for name, score in scores.items()}
        for name in scores.keys() - {"encoder"} if "encoder" in scores else ():
            entry["scores"][name]["ratio"] = ratio_to(scores["encoder"], scores[name], level=bootstrap.level).as_dict()
        entry["scatter"] = _scatter(pairs, scores, seed=seed)
        found["sets"][source.name] = entry
    return found


def embedder(model: Any, sampler: Any, *, seed: int) -> Encode:
    """Wrap the model as an encoder: the mean of the sampler's draws; long sentences are truncated, as encoders do.

    Unknown words cause no warning here, because `evaluate` warns of them once for all samplers.
    """

    def encode(texts: Sequence[str]) -> np.ndarray:
        ids = [row[: model.max_length] for row in model.tokenizer.encode(list(texts))]
        return np.asarray(model.embed_tokens(ids, list(texts), sampler=sampler, seed=seed).latents)

    return encode


def count_long(pairs: StsSet, model: Any, *, too_long: str) -> int:
    """Count the distinct sentences of more tokens than the model reads.

    Raises:
        EvaluationError: there are some and `too_long` is "refuse".
    """
    long = sum(len(row) > model.max_length for row in model.tokenizer.encode(pairs.sentences))
    if long and too_long == "refuse":
        raise EvaluationError(
            f"STS set '{pairs.name}': expected sentences of at most {model.max_length} tokens, found {long} that are "
            "longer. Set evaluation.sts.too_long to 'truncate' to truncate them as encoders do."
        )
    return long


def fraction_unknown(pairs: StsSet, model: Any) -> float:
    """Compute the fraction of the distinct sentences with a word outside the run's vocabulary."""
    rows = model.tokenizer.encode(pairs.sentences)
    return sum(model.tokenizer.unk_id in row for row in rows) / len(rows)


def as_dict(score: StsScore) -> dict[str, Any]:
    """Convert the scores of one encoder on one set to plain values."""
    found: dict[str, Any] = {
        "spearman": score.spearman_interval.as_dict(),
        "pearson": score.pearson_interval.as_dict(),
        "by_similarity": {k: {"spearman": score.spearman[k], "pearson": score.pearson[k]} for k in score.spearman},
    }
    if score.mean_interval is not None:
        found |= {
            "mean_spearman": score.mean_spearman,
            "weighted_mean_spearman": score.weighted_mean_spearman,
            "subset_spearman": score.subset_spearman,
            "mean_pearson": score.mean_pearson,
            "weighted_mean_pearson": score.weighted_mean_pearson,
            "subset_pearson": score.subset_pearson,
            "mean_interval": score.mean_interval.as_dict(),
        }
    return found


def _scatter(pairs: StsSet, scores: dict[str, StsScore], *, seed: int, points: int = 500) -> dict[str, list[float]]:
    """Select gold scores and cosines of at most `points` pairs for the report's plot; scores use the whole set."""
    rows = np.arange(len(pairs))
    if len(rows) > points:
        rows = np.sort(np.random.default_rng([seed, 0x575]).choice(rows, size=points, replace=False))
    found = {"gold": [round(float(v), 4) for v in pairs.gold_N[rows]]}
    return found | {name: [round(float(v), 4) for v in score.cosine_N[rows]] for name, score in scores.items()}
