"""metrics.json: flat, numbers only, stable keys, and no key for metrics that do not apply to a run."""

import json

import pytest

from mm_ldlm.evaluation.headline import flat_metrics, slug
from mm_ldlm.evaluation.report.cards import LIKELIHOODS, cards, likelihood_label

V = {"value": 0.9, "low": 0.8, "high": 0.95, "level": 0.95}
NATS = {"value": 1.2, "standard_error": 0.01, "low": 1.18, "high": 1.22}
PERPLEXITY = {"value": 3.3, "low": 3.2, "high": 3.4}


def parts(**changes):
    whole = {
        "inversion": {"sentences": 500, "metrics": {k: V for k in ("exact_match", "token_accuracy", "bleu", "cosine")}},
        "sts": {
            "sets": {
                "starter": {
                    "pairs": 480,
                    "scores": {w: {"spearman": V, "pearson": V} for w in ("encoder", "one_step")}
                    | {"model": {"spearman": V, "pearson": V, "ratio": V}},
                }
            }
        },
        "likelihood": {
            "likelihood": "bound",
            "unconditional": {"per_token": NATS, "perplexity": PERPLEXITY},
            "given_latent": {"per_token": {**NATS, "value": 0.1}, "perplexity": {**PERPLEXITY, "value": 1.1}},
            "latent_bits": {"per_token": NATS, "per_sentence": NATS},
        },
        "latents": {
            "samplers": {
                "model": {
                    "cosine": V,
                    "squared_error_fraction": V,
                    "retrieval": dict.fromkeys(("at_1", "at_5", "at_10", "mean_reciprocal_rank"), V),
                    "neighbourhoods": {"rank_correlation": V},
                    "frechet": 0.1,
                }
            }
        },
        "generation": {
            "generated": {"entropy_sample": 2.0, "distinct": {"2": 0.5}, "attested_bigrams": {"value": 0.9}},
            "memorised": 0.0,
        },
        "images": {
            "classifier": {"real_accuracy": V},
            "caption_to_image": {"accuracy": V, "nearest_training": {"generated": V, "real": V}},
            "image_to_caption": {"accuracy": V, "exact_match": V, "attested": V},
            "image_text": {"agreement": V},
        },
        "timings": {"training": 400.0, "sampling": 30.5, "reporting": 0.1},
    }
    return whole | changes


def test_the_promised_keys_are_there():
    found = flat_metrics(**parts())
    assert {
        "l2t.exact_match",
        "l2t.token_accuracy",
        "l2t.bleu",
        "l2t.cosine",
        "t2l.cosine",
        "sts.starter.spearman",
        "sts.starter.encoder_spearman",
        "nll.per_token",
        "seconds.training",
        "seconds.sampling",
    } <= set(found)
    assert found["l2t.exact_match.low"] == 0.8
    assert found["nll.per_token"] == 1.2
    assert found["perplexity.high"] == 3.4
    assert found["nll.exact"] == 0.0
    assert found["unconditional.attested_bigrams"] == 0.9
    for key in ("caption_to_image.accuracy", "image_to_caption.accuracy", "image_text.agreement"):
        assert (found[key], found[f"{key}.low"]) == (0.9, 0.8)
    assert "seconds.reporting" not in found, "it is still running when the numbers are put together"
    assert all(isinstance(value, float) for value in found.values())
    json.dumps(found, allow_nan=False)


def test_what_a_run_cannot_do_has_no_key():
    found = flat_metrics(
        **parts(
            inversion={"skipped": "no l2t"},
            latents={"skipped": "no t2l"},
            generation={"skipped": "none"},
            images={"skipped": "no images"},
            sts={"skipped": "no t2l", "sets": {}},
            likelihood={"likelihood": "bound", "given_latent": {"per_token": NATS, "perplexity": PERPLEXITY}},
        )
    )
    assert not [key for key in found if key.startswith(("l2t", "t2l", "sts", "unconditional", "image", "caption"))]
    assert "nll.per_token" not in found, "a cost given the latent is not comparable with an unconditional one"
    assert found["nll.given_latent.per_token"] == 1.2


def test_a_text_only_run_with_an_exact_likelihood_reports_costs_and_samples():
    found = flat_metrics(
        **parts(
            inversion={"skipped": "no latents"},
            latents={"skipped": "no latents"},
            sts={"skipped": "no latents", "sets": {}},
            likelihood={"likelihood": "exact", "unconditional": {"per_token": NATS, "perplexity": PERPLEXITY}},
        )
    )
    assert found["nll.exact"] == 1.0
    assert found["nll.per_token"] == 1.2
    assert "unconditional.entropy_sample" in found
    assert not [key for key in found if "latent" in key]


@pytest.mark.parametrize("part", ["unconditional", "given_latent"])
@pytest.mark.parametrize("kind", ["exact", "bound"])
def test_the_card_of_a_cost_says_whether_it_is_a_bound(kind, part):
    found = flat_metrics(**parts(likelihood={"likelihood": kind, part: {"per_token": NATS, "perplexity": PERPLEXITY}}))
    assert likelihood_label(found) == LIKELIHOODS[kind]
    (note,) = (card.note for card in cards(found) if card.label == "Nats per token")
    assert note.startswith(LIKELIHOODS[kind])


@pytest.mark.parametrize(
    ("text", "key"), [("ancestral, 64 steps", "ancestral_64_steps"), ("Threshold 0.9", "threshold_0_9")]
)
def test_slug(text, key):
    assert slug(text) == key
