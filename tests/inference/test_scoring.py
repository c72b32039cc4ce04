"""Likelihoods through the Python API, on distributions small enough to enumerate.

The estimator of the NELBO has its own tests in tests/diffusion/test_absorbing.py.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from scripted import ABLE, engine

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import MMLDLM, scoring
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.mmdit import Output
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel, Likelihood
from mm_ldlm.objectives.multimodal import MultimodalConfig

MASK, PAD = 3, 4
SHAPE = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=2, latent_dim=2)
PAIRS = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64)
"""p(first word, second word)"""


class Words:
    """Ids 0, 1 and 2 are the words a, b and c."""

    vocab_size, pad_id, mask_id, unk_id, max_length = 5, PAD, MASK, -1, 2

    def encode(self, texts):
        return [["abc".index(word) for word in text.split()] for text in texts]


class Identity:
    def standardise(self, x):
        return x


class Posterior(torch.nn.Module):
    """The exact posterior of each of two words given the visible one; lengths 1 and 2 have 1/4 and 3/4."""

    def __init__(self):
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens, *, logits_at=None, heads=(), **_):
        if "length" in heads:
            return Output(None, None, torch.tensor([[1.0, 3.0]]).log().expand(len(tokens), -1))
        first, second = tokens[:, 0].clamp_max(2), tokens[:, 1].clamp_max(2)
        rows, columns = PAIRS / PAIRS.sum(1, keepdim=True), PAIRS / PAIRS.sum(0, keepdim=True)
        out = torch.full((*tokens.shape, 5), -torch.inf, dtype=torch.float64)
        out[:, 0, :3] = torch.where((tokens[:, 1] < 3)[:, None], columns.T[second], PAIRS.sum(1)).log()
        out[:, 1, :3] = torch.where((tokens[:, 0] < 3)[:, None], rows[first], PAIRS.sum(0)).log()
        return Output(out[logits_at], None, None)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("schedule", "t_min"),
    [({"name": "log_linear"}, 1e-3), ({"name": "cosine"}, 1e-3), ({"name": "log_linear", "epsilon": 0.2}, 0.3)],
)
def test_the_bound_of_an_exact_model_is_the_likelihood(schedule, t_min, given):
    """With the exact posterior the NELBO is tight, so its mean over the distribution is the distribution's entropy,
    for any times of training."""
    process = {"kind": "absorbing", "schedule": schedule, "t_min": t_min}
    objective = parse(MultimodalConfig, {"process": process}, at="objective")
    model = MMLDLM(
        objective.build(SHAPE).generative_model(Posterior()),
        Capabilities(
            uses=frozenset({"score", "score_given_latent"}), reads_latents=True, trained_as="the exact posterior"
        ),
        Words(),
        Identity(),
    )
    texts = [f"{a} {b}" for a in "abc" for b in "abc"] * 1500
    scores = model.score(texts, latents=np.ones((len(texts), 2)) if given else None, draws=32)
    assert scores.likelihood == "bound"
    assert scores.length_nll == pytest.approx(-math.log(3 / 4), abs=1e-6)
    each = torch.from_numpy(scores.token_nll).view(1500, 9).mean(0)
    exact = -PAIRS.flatten().log()
    assert torch.allclose((each * PAIRS.flatten()).sum(), (exact * PAIRS.flatten()).sum(), atol=0.02)
    assert torch.allclose(each, exact, atol=0.12)
    assert (scores.draw_nll.std(axis=0) > 0).all()


class Chain(GenerativeModel):
    """An exact model with an end token: p(word) = 1/4, 1/8 and 1/8 for a, b and c, and p(end) = 1/2 after each."""

    has_length = False
    calls: tuple[int, ...] = ()

    def default_sampler(self, *, conditional):
        raise AssertionError

    def write(self, *arguments, **more):
        raise AssertionError

    def likelihood(self, tokens_BL, *, latents_Bd, draws, generator):
        assert latents_Bd is None
        self.calls += (draws,)
        costs = torch.tensor([4.0, 8.0, 8.0, 1.0, 1.0], dtype=torch.float64).log()
        return Likelihood((costs[tokens_BL].sum(1) + math.log(2))[None])


def test_an_exact_likelihood_is_one_draw_without_an_error():
    shape = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=2)
    chain = Chain(Posterior(), shape)
    abilities = Capabilities(uses=frozenset({"score"}), likelihood="exact", trained_as="next tokens")
    scores = MMLDLM(chain, abilities, Words()).score(["a", "b c", "a a"], draws=8)
    assert scores.likelihood == "exact"
    assert (scores.length_nll == 0).all()
    assert (scores.standard_errors == 0).all()
    assert scores.draw_nll.shape == (1, 3)
    assert set(chain.calls) == {1}
    assert scores.nll == pytest.approx(np.log([8, 128, 32]))  # in the order of the request
    assert scores.draw_mask_ratio is None
    assert scores.draw_masked is None
    assert scores.draw_correct is None
    assert list(scores.to_frame()["standard_error"]) == [0, 0, 0]


def test_draws_shrink_the_error_and_seeds_decide(model):
    texts = ["w1 w2 w3", "w4 w5 w6 w7"]
    few, many = model.score(texts, draws=4), model.score(texts, draws=64)
    wide = [model.score(["w1 w2 w3"] * 60, draws=draws).standard_errors.mean() for draws in (4, 64)]
    assert wide[1] < wide[0] / 2
    assert (many.standard_errors > 0).all()
    assert np.array_equal(model.score(texts, draws=4).token_nll, few.token_nll)
    assert not np.array_equal(model.score(texts, draws=4, seed=1).token_nll, few.token_nll)
    assert np.isnan(model.score(texts, draws=1).standard_errors).all()
    assert few.likelihood == "bound"
    assert few.draw_nll.shape == few.draw_mask_ratio.shape == few.draw_masked.shape == few.draw_correct.shape == (4, 2)
    assert (few.draw_masked <= few.tokens).all()
    assert (few.draw_correct <= few.draw_masked).all()
    assert np.allclose(few.draw_nll.mean(axis=0), few.token_nll)
    assert np.allclose(few.nll, few.length_nll + few.token_nll)
    assert list(few.to_frame()["tokens"]) == [3, 4]


def test_a_score_does_not_depend_on_its_batch(model):
    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]
    together = model.score(texts, draws=4)
    model._engine.writer.batch_tokens = 1
    assert np.allclose(model.score(texts, draws=4).token_nll, together.token_nll, rtol=1e-5)


def test_a_head_of_zeros_predicts_the_uniform_distribution(build):
    """log 21 nats a token, and the length uniform over 12."""
    made = build()
    for name, parameter in made.model.model.named_parameters():
        if "head" in name:
            torch.nn.init.zeros_(parameter)
    scores = made.score(["w1 w2 w3"] * 200, draws=16)
    assert scores.length_nll == pytest.approx(math.log(12))
    assert scores.token_nll.mean() == pytest.approx(3 * math.log(21), rel=0.03)  # 20 words and [UNK]


# -- on the scripted model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 6, 100])
def test_a_text_is_scored_given_its_own_latent(batch_tokens: int) -> None:
    """Batches are made by length, so that the rows of a batch are not those of the request."""
    made = engine(batch_tokens=batch_tokens)
    raw = np.array([[2.0, 1.0], [3.0, 5.0], [4.0, 9.0], [2.0, 7.0]], np.float32)
    ids = [[1], [2, 2], [3, 3, 3], [4]]
    scoring.score(made, ids, ["a", "b", "c", "d"], latents=raw, draws=2, seed=7)
    asked = made.model.asked  # in any order, because threads compute several batches at a time
    given = [
        pair for latents, _, generator in asked for pair in zip(generator.rows.tolist(), latents.tolist(), strict=True)
    ]
    assert sorted(given) == list(enumerate((raw - 1).tolist()))
    assert {(draws, generator.seed) for _, draws, generator in asked} == {(2, 7)}


@pytest.mark.parametrize(
    ("use", "latents"), [("score", None), ("score_given_latent", np.array([[3.0, 1.0], [5.0, 2.0]]))]
)
def test_scores_with_and_without_latents_are_two_uses(use: Any, latents: Any) -> None:
    other = {"score": "score_given_latent", "score_given_latent": "score"}[use]
    for able in (use, other):
        made = engine(capabilities=dataclasses.replace(ABLE, uses=frozenset({able})))
        if able == use:
            assert len(scoring.score(made, [[1], [2]], ["a", "b"], latents=latents, draws=1, seed=0).nll) == 2
            continue
        with pytest.raises(SamplingError) as error:
            scoring.score(made, [[1], [2]], ["a", "b"], latents=latents, draws=1, seed=0)
        assert str(error.value) == made.capabilities.refusal(use)


@pytest.mark.parametrize("likelihood", ["exact", "bound"])
@pytest.mark.parametrize("draws", [1, 3])
def test_only_a_bound_has_errors(likelihood: str, draws: int) -> None:
    """An exact value has none, whatever the number of draws; one draw of a bound has no estimate of its own."""
    made = engine(capabilities=dataclasses.replace(ABLE, likelihood=likelihood))  # type: ignore[arg-type]
    found = scoring.score(made, [[1, 2], [3]], ["a", "b"], latents=None, draws=draws, seed=0)
    assert (found.likelihood, len(found.draw_nll)) == (likelihood, draws if likelihood == "bound" else 1)
    if likelihood == "exact":
        assert found.standard_errors.tolist() == [0, 0]
    else:
        assert np.isnan(found.standard_errors).all() == (draws == 1)
