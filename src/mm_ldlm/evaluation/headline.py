"""Headline numbers of a run, flat: `metrics.json`.

Keys never change their meaning: fractions, accuracies and cosines lie between 0 and 1; BLEU, chrF and correlations are
× 100; costs are nats per token, the length included; times are seconds. An interval adds KEY.low and KEY.high, a
standard error KEY.standard_error. `nll.exact` is 1 if costs are exact negative log-likelihoods and 0 if they are upper
bounds (NELBO). Metrics that do not apply to a run have no key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_UNKNOWN = 0.5
"""Largest fraction of the sentences of an STS set with unknown words at which its score is a headline of a run"""


def flat_metrics(
    *,
    inversion: Mapping[str, Any],
    sts: Mapping[str, Any],
    likelihood: Mapping[str, Any],
    latents: Mapping[str, Any],
    generation: Mapping[str, Any],
    images: Mapping[str, Any],
    timings: Mapping[str, float],
    classification: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Collect the numbers of all suites into one flat dictionary of finite floats."""
    found: dict[str, float] = {}
    _inversion(found, inversion)
    _latents(found, latents)
    for name, entry in (sts.get("sets") or {}).items():
        _sts(found, f"sts.{name}", entry)
    _likelihood(found, likelihood)
    _generation(found, generation)
    _classification(found, classification or {})
    _images(found, images)
    for name, seconds in timings.items():
        if name != "reporting":  # it is still running
            found[f"seconds.{name}"] = float(seconds)
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _put(found: dict[str, float], key: str, value: Any) -> None:
    """Add a number, or a mapping with `value` and an interval or a standard error."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        found[key] = float(value)
        return
    found[key] = float(value["value"])
    for part in ("low", "high", "standard_error"):
        if part in value:
            found[f"{key}.{part}"] = float(value[part])


def _inversion(found: dict[str, float], inversion: Mapping[str, Any]) -> None:
    if "metrics" not in inversion:
        return
    found["l2t.sentences"] = float(inversion["sentences"])
    for name, value in inversion["metrics"].items():
        _put(found, f"l2t.{name}", value["value"] if name == "chrf" else value)  # chrF has no interval
    for name, entry in (inversion.get("baselines") or {}).items():
        for metric in ("exact_match", "token_set_f1", "bleu", "cosine"):
            _put(found, f"baseline.{name}.{metric}", entry["metrics"].get(metric, {}).get("value"))
    for key, value in (inversion.get("memorised") or {}).items():
        found[f"l2t.memorised.{key}"] = float(value)
    for line in inversion.get("sweep") or []:
        key = f"calls.{slug(line['label'])}"
        found[f"{key}.model_calls"] = float(line["model_calls"])
        found[f"{key}.sentences_per_second"] = float(line["sentences_per_second"])
        for metric in ("exact_match", "token_accuracy", "bleu", "cosine"):
            _put(found, f"{key}.{metric}", line.get(metric))
        _put(found, f"{key}.exact_ratio", line.get("exact_ratio"))


def _latents(found: dict[str, float], latents: Mapping[str, Any]) -> None:
    for name, entry in (latents.get("samplers") or {}).items():
        prefix = "t2l" if name == "model" else f"t2l.{name}"
        _put(found, f"{prefix}.cosine", entry["cosine"])
        _put(found, f"{prefix}.squared_error_fraction", entry["squared_error_fraction"])
        for metric in ("at_1", "at_5", "at_10", "mean_reciprocal_rank"):
            _put(found, f"{prefix}.retrieval.{metric}", entry["retrieval"][metric]["value"])
        if entry.get("neighbourhoods"):
            _put(found, f"{prefix}.neighbourhood_correlation", entry["neighbourhoods"]["rank_correlation"]["value"])
        _put(found, f"{prefix}.frechet", entry["frechet"])
    _put(found, "unconditional.frechet", latents.get("unconditional_frechet"))
    _put(found, "real.frechet", latents.get("real_frechet"))
    if "calibration" in latents:
        found["t2l.spread_to_error"] = float(latents["calibration"]["spread_to_error"])


def _sts(found: dict[str, float], key: str, entry: Mapping[str, Any]) -> None:
    found[f"{key}.pairs"] = float(entry["pairs"])
    _put(found, f"{key}.unknown", entry.get("unknown"))
    for source, prefix in (("model", ""), ("encoder", "encoder_"), ("one_step", "one_step_")):
        score = entry["scores"].get(source)
        if score is None:
            continue
        _put(found, f"{key}.{prefix}spearman", score["spearman"])
        _put(found, f"{key}.{prefix}pearson", score["pearson"]["value"])
        for name in ("mean_spearman", "weighted_mean_spearman", "mean_pearson", "weighted_mean_pearson"):
            _put(found, f"{key}.{prefix}{name}", score.get(name))
        _put(found, f"{key}.{prefix}ratio", score.get("ratio"))


def sts_headlines(metrics: Mapping[str, float]) -> list[str]:
    """List the keys of the model's STS scores, except those of sets with more than `MOST_UNKNOWN`."""
    scores = sorted(key for key in metrics if key.startswith("sts.") and key.endswith(".spearman"))
    return [key for key in scores if metrics.get(f"{key.removesuffix('spearman')}unknown", 0.0) <= MOST_UNKNOWN]


_MOST_IMPORTANT = (
    "l2t.exact_match", "l2t.bleu", "l2t.cosine", "perplexity", "perplexity.given_latent", "t2l.cosine",
    "classification.accuracy", "classification.macro_f1", "caption_to_image.accuracy", "image_to_caption.accuracy",
    "unconditional.perplexity",
)  # fmt: skip
"""Headline numbers that are listed first, in this order"""


def most_important(metrics: Mapping[str, Any], *, count: int) -> list[str]:
    """Choose the keys of at most `count` numbers that describe a run best: one STS score, and those of its tasks."""
    found = [key for key in _MOST_IMPORTANT if key in metrics]
    numbers = {key: value for key, value in metrics.items() if isinstance(value, float)}
    return [*found[: count - 1], *sts_headlines(numbers)[:1], *found[count - 1 :]][:count]


def _likelihood(found: dict[str, float], likelihood: Mapping[str, Any]) -> None:
    if "likelihood" in likelihood:
        found["nll.exact"] = float(likelihood["likelihood"] == "exact")
    for name, suffix in (("unconditional", ""), ("given_latent", ".given_latent")):
        if part := likelihood.get(name):
            _put(found, f"nll{suffix}.per_token", part["per_token"])
            _put(found, f"perplexity{suffix}", part["perplexity"])
    if "latent_bits" in likelihood:
        _put(found, "latent.bits_per_token", likelihood["latent_bits"]["per_token"])
        _put(found, "latent.bits_per_sentence", likelihood["latent_bits"]["per_sentence"])
    for name, entry in (likelihood.get("zero_shot") or {}).items():
        if entry.get("unconditional"):
            _put(found, f"nll.{slug(name)}.per_token", entry["unconditional"]["per_token"])


def _generation(found: dict[str, float], generation: Mapping[str, Any]) -> None:
    for name, key in (("generated", "unconditional"), ("real", "real")):
        entry = generation.get(name)
        if not entry:
            continue
        for metric in ("entropy_sample", "entropy_corpus", "self_bleu", "unique", "attested_bigrams", "perplexity"):
            _put(found, f"{key}.{metric}", entry.get(metric))
        _put(found, f"{key}.distinct_2", entry["distinct"].get("2"))
    _put(found, "unconditional.empty", generation.get("empty"))
    _put(found, "unconditional.memorised", generation.get("memorised"))
    _put(found, "unconditional.mauve", generation.get("mauve"))


def _classification(found: dict[str, float], classification: Mapping[str, Any]) -> None:
    for name, prefix in (("model", "classification"), ("logistic_regression", "baseline.logistic_regression")):
        if entry := classification.get(name):
            for metric in ("accuracy", "macro_f1", "ece", "nll"):
                _put(found, f"{prefix}.{metric}", entry[metric])


def _images(found: dict[str, float], images: Mapping[str, Any]) -> None:
    _put(found, "images.classifier_accuracy", (images.get("classifier") or {}).get("real_accuracy"))
    for task, names in (
        ("caption_to_image", ("accuracy",)),
        ("image_to_caption", ("accuracy", "exact_match", "attested")),
        ("image_text", ("agreement",)),
    ):
        for name in names:
            _put(found, f"{task}.{name}", (images.get(task) or {}).get(name))
    for name, distance in ((images.get("caption_to_image") or {}).get("nearest_training") or {}).items():
        _put(found, f"caption_to_image.nearest_training.{name}", distance)


def slug(text: str) -> str:
    """Convert a text to lower-case letters, digits and '_', as a part of a key."""
    cleaned = "".join(c if c.isalnum() else "_" for c in text.lower())
    return "_".join(part for part in cleaned.split("_") if part)
