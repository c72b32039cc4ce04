"""Headline cards of the page: each number as text, with its interval and a note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mm_ldlm.evaluation import likelihood
from mm_ldlm.evaluation.headline import sts_headlines

LIKELIHOODS = {"exact": "exact negative log-likelihood", "bound": "NELBO (upper bound)"}
"""`Capabilities.likelihood` → the label of a cost."""


@dataclass(frozen=True)
class Card:
    """One number as text, with its interval as text and as fractions of [0, 1] for the bar (None: no bar)."""

    label: str
    value: str
    interval: str
    note: str
    fraction: float | None = None
    low: float | None = None
    high: float | None = None


def cards(metrics: Mapping[str, float]) -> list[Card]:
    """Make the cards of the headline numbers that this run has."""
    found = [
        _fraction(metrics, "l2t.exact_match", "Exact match", "of held-out sentences, token for token"),
        _fraction(
            metrics, "l2t.token_accuracy", "Token accuracy", "by position; a wrong length counts as errors", digits=2
        ),
        _number(metrics, "l2t.bleu", "BLEU", "sacrebleu, 0 to 100", scale=100),
        _number(
            metrics, "l2t.cosine", "Cosine, re-embedded", "reconstructed text, encoded again, to its source", digits=3
        ),
        _number(metrics, "t2l.cosine", "Cosine, text to latent", "to the encoder's own vector", digits=3),
        _fraction(metrics, "classification.accuracy", "Accuracy", _beside_baseline(metrics)),
        _number(metrics, "classification.macro_f1", "Macro F1", "mean over the classes", digits=3),
        *(_sts(metrics, key) for key in sts_headlines(metrics)),
        *_costs(metrics),
        _number(
            metrics,
            "latent.bits_per_sentence",
            "Bits in a latent",
            "about its sentence: the drop in code length",
            bar=False,
        ),
        _fraction(
            metrics,
            "unconditional.attested_bigrams",
            "Attested word pairs",
            _beside(metrics, "attested_bigrams", "of unconditional samples, found in the training text", percent),
        ),
        _number(
            metrics,
            "unconditional.entropy_sample",
            "Token entropy",
            _beside(metrics, "entropy_sample", "nats, of unconditional samples", "{:.2f}".format),
            digits=2,
            bar=False,
        ),
        _number(
            metrics,
            "unconditional.perplexity",
            "Generative perplexity",
            _beside(metrics, "perplexity", "of unconditional samples", "{:.1f}".format),
            bar=False,
        ),
        _fraction(metrics, "caption_to_image.accuracy", "Image of the caption", _classified(metrics)),
        _fraction(metrics, "image_to_caption.accuracy", "Caption of the image", "with the label of the held-out image"),
        _fraction(metrics, "image_text.agreement", "Image and caption agree", "generated together, by the classifier"),
    ]
    return [card for card in found if card is not None]


def likelihood_label(metrics: Mapping[str, float]) -> str:
    """Return the label of the costs of metrics.json: exact, or an upper bound."""
    return LIKELIHOODS["exact" if metrics.get("nll.exact") else "bound"]


def _costs(metrics: Mapping[str, float]) -> list[Card | None]:
    """Make the card of nats per token; without an unconditional cost, that of the cost given the latent."""
    found: list[Card | None] = []
    for suffix, condition in (("", ""), (".given_latent", ", given the latent")):
        key = f"nll{suffix}.per_token"
        if key in metrics and not found:
            note = f"{likelihood_label(metrics)}{condition}"
            if (perplexity := likelihood.perplexity(metrics[key])) is not None:
                note += f"; perplexity {perplexity:.2f}"
            if not suffix and "nll.given_latent.per_token" in metrics:
                note += f"; {metrics['nll.given_latent.per_token']:.3f} nats given the latent"
            found.append(_number(metrics, key, "Nats per token", note, digits=3, bar=False))
    return found


def _sts(metrics: Mapping[str, float], key: str) -> Card | None:
    name = key.removeprefix("sts.").removesuffix(".spearman")
    encoder, ratio = metrics.get(f"sts.{name}.encoder_spearman"), metrics.get(f"sts.{name}.ratio")
    note = "Spearman × 100"
    note += f"; encoder {encoder:.1f}" if encoder is not None else ""
    note += f", ratio {percent(ratio)}" if ratio is not None else ""
    return _number(metrics, key, f"STS {name}", note, scale=100)


def percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction as in "92.4 %"."""
    return f"{100 * fraction:.{digits}f} %"


def _beside(metrics: Mapping[str, float], name: str, note: str, form: Callable[[float], str]) -> str:
    """Add the same number of held-out text to a note."""
    real = metrics.get(f"real.{name}")
    return note if real is None else f"{note}; held-out text {form(real)}"


def _beside_baseline(metrics: Mapping[str, float]) -> str:
    """Describe the accuracy of a classifier beside that of logistic regression on the latents."""
    note, baseline = "of held-out examples", metrics.get("baseline.logistic_regression.accuracy")
    return note if baseline is None else f"{note}; logistic regression on the latents {percent(baseline)}"


def _classified(metrics: Mapping[str, float]) -> str:
    """Note beside the accuracy of generated images."""
    real = metrics.get("images.classifier_accuracy")
    note = "recognised by a classifier trained on real images"
    return note if real is None else f"{note}; real held-out images {percent(real)}"


def _fraction(metrics: Mapping[str, float], key: str, label: str, note: str, *, digits: int = 1) -> Card | None:
    if key not in metrics:
        return None
    low, high = metrics.get(f"{key}.low"), metrics.get(f"{key}.high")
    interval = ""
    if low is not None and high is not None:
        interval = f"{percent(low, digits)} – {percent(high, digits)}"
    return Card(label, percent(metrics[key], digits), interval, note, metrics[key], low, high)


def _number(
    metrics: Mapping[str, float],
    key: str,
    label: str,
    note: str,
    *,
    digits: int = 1,
    scale: float = 1,
    bar: bool = True,
) -> Card | None:
    if key not in metrics:
        return None
    low, high = metrics.get(f"{key}.low"), metrics.get(f"{key}.high")
    interval = f"{low:.{digits}f} – {high:.{digits}f}" if low is not None and high is not None else ""
    parts = [v / scale if v is not None and bar else None for v in (metrics[key], low, high)]
    return Card(label, f"{metrics[key]:.{digits}f}", interval, note, *parts)
