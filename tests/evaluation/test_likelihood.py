"""Summaries of likelihoods: buckets sum to the NELBO, and standard errors have the right coverage."""

import math

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import likelihood as lik
from mm_ldlm.inference.results import Scores


def scores(seed=0, count=50, draws=8, length_nll=0.3):
    """Draws of a NELBO in which every masked token costs between 1 and 2 nats."""
    generator = np.random.default_rng(seed)
    length = generator.integers(3, 12, size=count)
    fraction = 1 - (generator.random(count) + np.arange(draws)[:, None] / draws) % 1.0
    masked = np.ceil(fraction * length)
    cross_entropy = masked * generator.uniform(1, 2, size=masked.shape)
    nll = cross_entropy * generator.uniform(1, 9, size=masked.shape)  # the weight is the process's own
    return Scores(
        texts=tuple(map(str, range(count))),
        tokens=length,
        likelihood="bound",
        length_nll=np.full(count, length_nll),
        token_nll=nll.mean(axis=0),
        standard_errors=nll.std(axis=0, ddof=1) / draws**0.5,
        draw_nll=nll,
        draw_mask_ratio=fraction,
        draw_masked=masked,
        draw_correct=np.floor(masked / 2),
        draw_cross_entropy=cross_entropy,
    )


def test_buckets_add_up_to_the_nelbo():
    found = scores()
    table = lik.by_mask_ratio(found, buckets=4)
    assert table["nats_per_token"].sum() == pytest.approx(found.token_nll.sum() / found.tokens.sum())
    assert table["masked_tokens"].sum() == found.draw_masked.sum()
    assert table["draws"].sum() == found.draw_nll.size
    assert table["cross_entropy"].between(1, 2).all()
    assert (table["accuracy"] <= 0.5).all()


def test_bits_of_the_latent_are_the_difference():
    unconditional, conditional = scores(0), scores(1, length_nll=0.0)
    conditional = Scores(**{**vars(conditional), "tokens": unconditional.tokens})
    bits = lik.latent_bits(unconditional=unconditional, given_latent=conditional)
    costs = [lik.per_token(some.nll, some.tokens).value for some in (unconditional, conditional)]
    assert bits["per_token"].value == pytest.approx((costs[0] - costs[1]) / math.log(2))
    assert bits["per_sentence"].value == pytest.approx((unconditional.nll - conditional.nll).mean() / math.log(2))


def test_costs_of_different_sentences_are_refused():
    with pytest.raises(EvaluationError, match="found different sentences"):
        lik.latent_bits(unconditional=scores(), given_latent=scores(count=49))


def test_a_likelihood_without_masking_has_no_table():
    found = {**vars(scores()), "draw_mask_ratio": None, "draw_masked": None, "draw_correct": None}
    found["draw_cross_entropy"] = None
    assert lik.by_mask_ratio(Scores(**found)) is None


def test_standard_error_of_a_rate_covers():
    generator, hits = np.random.default_rng(0), 0
    for _ in range(300):
        length = generator.integers(3, 12, size=100)
        estimate = lik.per_token(2.0 * length + generator.normal(size=100), length)
        hits += estimate.low <= 2.0 <= estimate.high
    assert 0.9 <= hits / 300 <= 0.99


def test_an_infinite_cost_is_refused():
    with pytest.raises(EvaluationError, match="found 1 of 2 that are not finite"):
        lik.per_token(np.array([1.0, np.inf]), np.array([2, 3]))
