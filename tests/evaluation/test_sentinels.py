"""Every metric, card and cosine shows its own number: all inputs differ, and vectors are not of unit norm."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.evaluation import baselines, retrieval
from mm_ldlm.evaluation.headline import flat_metrics
from mm_ldlm.evaluation.report.cards import cards, percent
from mm_ldlm.evaluation.suites.inversion import reembedding_cosine
from mm_ldlm.models.base import DataShape

NUMBERS = itertools.count(1)


def value() -> dict[str, float]:
    """An interval of three numbers that occur nowhere else."""
    return {"value": next(NUMBERS) / 1024, "low": next(NUMBERS) / 1024, "high": next(NUMBERS) / 1024}


def values(*names: str) -> dict[str, Any]:
    return {name: value() for name in names}


def number() -> float:
    return next(NUMBERS) / 1024


QUALITY = ("exact_match", "token_accuracy", "token_set_f1", "bleu", "cosine", "rouge_l", "sentence_bleu")


def sampler() -> dict[str, Any]:
    return {
        **values("cosine", "squared_error_fraction"),
        "retrieval": values("at_1", "at_5", "at_10", "mean_reciprocal_rank"),
        "neighbourhoods": values("rank_correlation"),
        "frechet": number(),
    }


def diversity() -> dict[str, Any]:
    names = ("entropy_sample", "entropy_corpus", "self_bleu", "unique", "perplexity")
    return {**{name: number() for name in names}, "attested_bigrams": value(), "distinct": {"2": number()}}


def score() -> dict[str, Any]:
    return {**values("spearman", "pearson", "ratio"), "mean_spearman": number()}


def suites() -> dict[str, Any]:
    """The results of all suites, no number twice."""
    accuracy = ("accuracy", "macro_f1", "ece", "nll")
    return {
        "inversion": {
            "sentences": number(), "metrics": values(*QUALITY, "chrf"),
            "baselines": {name: {"metrics": values(*QUALITY)} for name in ("nearest", "bag")},
            "memorised": {name: number() for name in ("outputs", "references")},
            "sweep": [
                {"label": label, "model_calls": number(), "sentences_per_second": number(), "exact_ratio": value(),
                 **values("exact_match", "token_accuracy", "bleu", "cosine")} for label in ("1 step", "2 steps")
            ],
        },
        "latents": {
            "samplers": {"model": sampler(), "one_step": sampler()},
            "unconditional_frechet": number(), "real_frechet": number(),
            "calibration": {"spread_to_error": number()},
        },
        "sts": {"sets": {"news": {
            "pairs": number(), "scores": {who: score() for who in ("model", "encoder", "one_step")},
        }}},
        "likelihood": {
            "likelihood": "bound", "unconditional": values("per_token", "perplexity"),
            "given_latent": values("per_token", "perplexity"), "latent_bits": values("per_token", "per_sentence"),
            "zero_shot": {"other": {"unconditional": values("per_token")}},
        },
        "generation": {
            "generated": diversity(), "real": diversity(), "empty": number(), "memorised": number(), "mauve": number(),
        },
        "classification": {"model": values(*accuracy), "logistic_regression": values(*accuracy)},
        "images": {
            "classifier": values("real_accuracy"),
            "caption_to_image": {**values("accuracy"), "nearest_training": values("generated", "real")},
            "image_to_caption": values("accuracy", "exact_match", "attested"),
            "image_text": values("agreement"),
        },
        "timings": {"training": number(), "sampling": number()},
    }  # fmt: skip


def test_every_headline_metric_is_its_own_number() -> None:
    """The table names, for every key of metrics.json, the place in the results of the suites."""
    whole = suites()
    inversion, latents, likelihood = whole["inversion"], whole["latents"], whole["likelihood"]
    generation, images, sts = whole["generation"], whole["images"], whole["sts"]["sets"]["news"]
    expected: dict[str, Any] = {
        "l2t.sentences": inversion["sentences"],
        **{f"l2t.{name}": inversion["metrics"][name] for name in QUALITY},
        "l2t.chrf": inversion["metrics"]["chrf"]["value"],
        **{f"l2t.memorised.{name}": found for name, found in inversion["memorised"].items()},
        "unconditional.frechet": latents["unconditional_frechet"],
        "real.frechet": latents["real_frechet"],
        "t2l.spread_to_error": latents["calibration"]["spread_to_error"],
        "sts.news.pairs": sts["pairs"],
        "nll.exact": 0.0,
        "nll.per_token": likelihood["unconditional"]["per_token"],
        "perplexity": likelihood["unconditional"]["perplexity"],
        "nll.given_latent.per_token": likelihood["given_latent"]["per_token"],
        "perplexity.given_latent": likelihood["given_latent"]["perplexity"],
        "latent.bits_per_token": likelihood["latent_bits"]["per_token"],
        "latent.bits_per_sentence": likelihood["latent_bits"]["per_sentence"],
        "nll.other.per_token": likelihood["zero_shot"]["other"]["unconditional"]["per_token"],
        **{f"unconditional.{name}": generation[name] for name in ("empty", "memorised", "mauve")},
        "images.classifier_accuracy": images["classifier"]["real_accuracy"],
        "caption_to_image.accuracy": images["caption_to_image"]["accuracy"],
        **{f"image_to_caption.{name}": found for name, found in images["image_to_caption"].items()},
        "image_text.agreement": images["image_text"]["agreement"],
        **{f"seconds.{name}": found for name, found in whole["timings"].items()},
    }
    for name, found in images["caption_to_image"]["nearest_training"].items():
        expected[f"caption_to_image.nearest_training.{name}"] = found
    for name in ("nearest", "bag"):
        for metric in ("exact_match", "token_set_f1", "bleu", "cosine"):
            expected[f"baseline.{name}.{metric}"] = inversion["baselines"][name]["metrics"][metric]["value"]
    for line, key in zip(inversion["sweep"], ("calls.1_step", "calls.2_steps"), strict=True):
        expected |= {f"{key}.{name}": found for name, found in line.items() if name != "label"}
    for name, prefix in (("model", "t2l"), ("one_step", "t2l.one_step")):
        entry = latents["samplers"][name]
        expected |= {f"{prefix}.{key}": entry[key] for key in ("cosine", "squared_error_fraction", "frechet")}
        expected |= {f"{prefix}.retrieval.{key}": found["value"] for key, found in entry["retrieval"].items()}
        expected[f"{prefix}.neighbourhood_correlation"] = entry["neighbourhoods"]["rank_correlation"]["value"]
    for name, prefix in (("model", ""), ("encoder", "encoder_"), ("one_step", "one_step_")):
        entry = sts["scores"][name]
        expected |= {f"sts.news.{prefix}{key}": entry[key] for key in ("spearman", "ratio", "mean_spearman")}
        expected[f"sts.news.{prefix}pearson"] = entry["pearson"]["value"]
    for name, prefix in (("generated", "unconditional"), ("real", "real")):
        entry = dict(generation[name])
        expected[f"{prefix}.distinct_2"] = entry.pop("distinct")["2"]
        expected |= {f"{prefix}.{key}": found for key, found in entry.items()}
    for name, prefix in (("model", "classification"), ("logistic_regression", "baseline.logistic_regression")):
        expected |= {f"{prefix}.{key}": found for key, found in whole["classification"][name].items()}
    flat: dict[str, float] = {}
    for key, found in expected.items():
        if isinstance(found, dict):
            flat |= {key: found["value"], f"{key}.low": found["low"], f"{key}.high": found["high"]}
        else:
            flat[key] = found
    assert len(set(flat.values())) == len(flat), "no number is the same as another"
    assert flat_metrics(**whole) == flat


def zeros(found: Any) -> Any:
    """The same results where every number is 0."""
    if isinstance(found, dict):
        return {key: zeros(value) for key, value in found.items()}
    if isinstance(found, list):
        return [zeros(value) for value in found]
    return 0.0 if isinstance(found, float) else found


def test_a_number_of_zero_has_its_key_and_its_interval() -> None:
    """A run without any exact match, duplicate or memorized text; the time of the report is not known yet."""
    whole = suites()
    whole["timings"]["reporting"] = 9.0
    empty = flat_metrics(**zeros(whole))
    assert empty == dict.fromkeys(flat_metrics(**whole), 0.0)
    assert "seconds.reporting" not in empty


CARDS = {
    "Exact match": "l2t.exact_match", "Token accuracy": "l2t.token_accuracy", "BLEU": "l2t.bleu",
    "Cosine, re-embedded": "l2t.cosine", "Cosine, text to latent": "t2l.cosine",
    "Accuracy": "classification.accuracy", "Macro F1": "classification.macro_f1", "STS news": "sts.news.spearman",
    "Nats per token": "nll.per_token", "Bits in a latent": "latent.bits_per_sentence",
    "Attested word pairs": "unconditional.attested_bigrams", "Token entropy": "unconditional.entropy_sample",
    "Generative perplexity": "unconditional.perplexity", "Image of the caption": "caption_to_image.accuracy",
    "Caption of the image": "image_to_caption.accuracy", "Image and caption agree": "image_text.agreement",
}  # fmt: skip
NOTES = {
    "Accuracy": "baseline.logistic_regression.accuracy", "Attested word pairs": "real.attested_bigrams",
    "Token entropy": "real.entropy_sample", "Generative perplexity": "real.perplexity",
    "Image of the caption": "images.classifier_accuracy", "STS news": "sts.news.encoder_spearman",
    "Nats per token": "nll.given_latent.per_token",
}  # fmt: skip


def test_every_card_shows_its_own_metric_and_interval() -> None:
    """A number in a card identifies its key: all keys of metrics.json differ by more than a card rounds."""
    metrics = flat_metrics(**suites())
    scaled = {key: 1 + 2 * place for place, key in enumerate(sorted(metrics))}
    scaled["nll.exact"] = 0
    found = {card.label: card for card in cards({key: float(item) for key, item in scaled.items()})}
    assert found.keys() == CARDS.keys()
    for label, key in CARDS.items():
        card = found[label]
        as_fraction = card.value.endswith("%")
        shown = float(card.value.rstrip(" %")) / (100 if as_fraction else 1)
        assert shown == pytest.approx(scaled[key]), f"{label} shows another number than {key}"
        if card.interval:
            ends = [float(part.rstrip(" %")) / (100 if as_fraction else 1) for part in card.interval.split(" – ")]
            assert ends == pytest.approx([scaled[f"{key}.low"], scaled[f"{key}.high"]]), label
        if card.fraction is not None:
            ends = [card.low or 0, card.high or 0]
            assert np.allclose(
                np.array(ends) / card.fraction, np.array([scaled[f"{key}.low"], scaled[f"{key}.high"]]) / scaled[key]
            )
    for label, key in NOTES.items():
        number = float(scaled[key])
        forms = (f"{number:.1f}", f"{number:.2f}", f"{number:.3f}", percent(number), f"{number:.1%}")
        assert any(f" {form}" in found[label].note for form in forms), f"{label} does not show {key}"


# -- cosines of vectors that are not of unit norm --------------------------------------------------------------------

RNG = np.random.default_rng(5)
A, B = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 4))
LONG = RNG.uniform(0.01, 90, (6, 1))
EXACT = np.array([float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in zip(A, B, strict=True)])


def test_cosines_do_not_depend_on_norms() -> None:
    np.testing.assert_allclose(retrieval.cosine(A * LONG, B / LONG), EXACT, rtol=1e-9)
    model = SimpleNamespace(encode=lambda texts: (A * LONG)[[int(text) for text in texts]])
    texts = [str(i) for i in range(6)]
    np.testing.assert_allclose(reembedding_cosine(model, texts, B / LONG), EXACT, rtol=1e-6)
    np.testing.assert_allclose(reembedding_cosine(model, ["0", " ", *texts[2:]], B / LONG)[1:2], [0.0])
    near = baselines.nearest_training_rows(A * LONG, B / LONG)
    cosines = (A / np.linalg.norm(A, axis=1)[:, None]) @ (B / np.linalg.norm(B, axis=1)[:, None]).T
    assert near.tolist() == cosines.argmax(1).tolist()


def test_ranks_count_ties_as_half_and_do_not_depend_on_norms() -> None:
    real = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = retrieval.retrieval(real * [[3.0], [0.2], [7.0]], real * [[0.5], [9.0], [2.0]])
    assert found.rank_N.tolist() == [1.0, 1.0, 1.0]
    twice = retrieval.retrieval(real[:1], real[:1], distractors_Md=np.array([[4.0, 0.0], [0.0, 2.0]]))
    assert (twice.rank_N.tolist(), twice.candidates) == ([1.5], 3), "one of two equal candidates is the right one"


def test_neighbours_and_search_measure_directions() -> None:
    from mm_ldlm.inference.edge import Edge
    from mm_ldlm.inference.editing import neighbours

    found = neighbours(A * LONG, (B / LONG).astype(np.float32), k=6)
    by_row = np.take_along_axis(found.cosines, np.argsort(found.rows, axis=1), axis=1)
    np.testing.assert_allclose(np.diag(by_row), EXACT, rtol=1e-5)
    assert (np.diff(found.cosines, axis=1) <= 0).all()
    tokenizer: Any = SimpleNamespace(decode_batch=lambda tokens: [str(row[0]) for row in tokens])
    encoder: Any = SimpleNamespace(dim=A.shape[1], encode=lambda texts: (A * LONG)[[int(text) for text in texts]])
    shape = DataShape(vocab_size=9, pad_id=6, mask_id=7, max_length=4, latent_dim=A.shape[1])
    edge = Edge(shape, torch.device("cpu"), tokenizer, None, encoder=encoder, load_encoder=None)
    cosines = edge.cosines((B / LONG).astype(np.float32))
    np.testing.assert_allclose(cosines([[5], [0], [3]], [5, 0, 3]), EXACT[[5, 0, 3]], rtol=1e-5)
