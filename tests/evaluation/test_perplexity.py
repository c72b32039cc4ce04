"""The bound is unbiased on a law small enough to enumerate; its summaries add up."""

import itertools
import math

import numpy as np
import pytest
import torch

from mm_ldlm.errors import EvaluationError
from mm_ldlm.evaluation import perplexity as ppl

PAD, MASK, VOCABULARY = 4, 5, 4


def law(seed=0, length=3):
    """A random joint law over VOCABULARY^length and its exact conditionals."""
    joint = np.random.default_rng(seed).dirichlet(np.full(VOCABULARY**length, 0.3)).reshape((VOCABULARY,) * length)

    def log_probs(noisy_BL, masked_BL, t_B, rows):
        found = []
        for noisy, masked in zip(noisy_BL.numpy(), masked_BL.numpy(), strict=True):
            for position in np.flatnonzero(masked):
                slices = tuple(slice(None) if token == MASK else int(token) for token in noisy[:length])
                left = joint[slices]
                axis = sum(token == MASK for token in noisy[:position])
                marginal = left.sum(axis=tuple(a for a in range(left.ndim) if a != axis))
                found.append(np.log(marginal / marginal.sum()))
        return torch.tensor(np.array(found))

    return joint, log_probs


def exact_bound(joint, log_probs, sentence):
    """∫ (1/m) E[Σ] dm = Σ over mask patterns of Beta(k, L − k + 1) · Σ −log p, by enumeration."""
    length, total = len(sentence), 0.0
    for pattern in itertools.product([False, True], repeat=length):
        masked = sum(pattern)
        if masked == 0:
            continue
        weight = math.factorial(masked - 1) * math.factorial(length - masked) / math.factorial(length)
        noisy = torch.tensor([[MASK if hide else token for hide, token in zip(pattern, sentence, strict=True)]])
        log_p = log_probs(noisy, torch.tensor([pattern]), None, None)
        targets = [token for hide, token in zip(pattern, sentence, strict=True) if hide]
        total += weight * -sum(float(log_p[i, token]) for i, token in enumerate(targets))
    return total


def draw(sentences, log_probs, **options):
    settings = {"pad_id": PAD, "mask_id": MASK, "time_of_share": lambda m: m, "draws": 8, "seed": 0} | options
    return ppl.bound_draws(sentences, log_probs, **settings)


def test_the_bound_is_unbiased_on_an_enumerable_law():
    joint, log_probs = law()
    sentence = [1, 3, 0]
    exact = exact_bound(joint, log_probs, sentence)
    draws = draw([sentence] * 1500, log_probs, draws=4)
    estimate = ppl.mean(draws.per_sentence_N)
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.03 * exact
    assert exact >= -math.log(joint[1, 3, 0]) - 1e-9, "a bound on the negative log-likelihood lies above it"


def test_a_row_does_not_depend_on_its_batch():
    _, log_probs = law()
    sentences = [[1, 3, 0], [0, 0, 0], [2, 1, 1]]
    one, all_at_once = draw(sentences, log_probs, batch_size=1), draw(sentences, log_probs, batch_size=3)
    assert np.allclose(one.nll_ND, all_at_once.nll_ND)


def test_draws_are_stratified_over_the_masked_share():
    _, log_probs = law()
    shares = draw([[1, 3, 0]] * 10, log_probs, draws=5).share_ND
    assert ((shares > 0) & (shares <= 1)).all()
    assert (np.sort(np.ceil(shares * 5).astype(int), axis=1) == np.arange(1, 6)).all(), "one draw in each fifth"


def test_buckets_add_up_to_the_bound():
    _, log_probs = law()
    draws = draw([[1, 3, 0]] * 50, log_probs)
    table = ppl.by_time(draws, buckets=4)
    assert table["nats_per_token"].sum() == pytest.approx(draws.per_sentence_N.sum() / draws.length_N.sum())
    assert table["masked_tokens"].sum() == draws.masked_ND.sum()


def test_bits_of_the_latent_are_the_difference():
    _, log_probs = law()
    sentences = [[1, 3, 0], [0, 1, 2]] * 20
    free = draw(sentences, log_probs)
    told = draw(sentences, lambda noisy, masked, t, rows: log_probs(noisy, masked, t, rows) * 0.5 + math.log(0.5) * 0)
    length = np.full(40, 0.3)
    score = ppl.language_model_score(
        unconditional=free, given_latent=told, length_unconditional_N=length, length_given_latent_N=np.zeros(40)
    )
    drop = score.nll_unconditional.value - score.nll_given_latent.value
    assert score.bits_per_token.value == pytest.approx(drop / math.log(2))
    assert score.bits_per_sentence.value == pytest.approx(3 * score.bits_per_token.value)


def test_standard_error_of_a_rate_covers():
    generator, hits = np.random.default_rng(0), 0
    for _ in range(300):
        length = generator.integers(3, 12, size=100)
        estimate = ppl.per_token(2.0 * length + generator.normal(size=100), length)
        hits += estimate.low <= 2.0 <= estimate.high
    assert 0.9 <= hits / 300 <= 0.99


def test_a_token_outside_the_vocabulary_is_refused():
    with pytest.raises(EvaluationError, match="outside its vocabulary"):
        draw([[1, 3, 9]], lambda noisy, masked, t, rows: torch.full((int(masked.sum()), 4), -math.log(4)), draws=16)


def test_time_of_share_inverts_a_schedule():
    time = ppl.schedule_time(lambda t: 1 - (1 - 1e-3) * t)
    shares = np.array([1e-4, 0.3, 0.99])
    assert np.allclose(time(shares), shares / (1 - 1e-3), atol=1e-9)
    assert time(np.array([1.0]))[0] == 1.0
