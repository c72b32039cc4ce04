"""Likelihoods through `MMLDLM.score`, on a distribution that can be enumerated, and their errors."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.inference.runs import make

from mm_ldlm.core import SamplingError, parse_kind
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.loading import Parts
from mm_ldlm.models.base import DataShape, TextAndLatentOutput
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel, Likelihood

MASK, PAD = 3, 4
SHAPE = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=2, fields={"latents": (2,)})
PAIRS = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64)
"""p(first word, second word)"""
COPIES = 600
WORDS: Any = SimpleNamespace(
    vocab_size=5, pad_id=PAD, mask_id=MASK, unk_id=-1, max_length=2,
    encode=lambda texts: [["abc".index(word) for word in text.split()] for text in texts],
)  # fmt: skip


class Posterior(torch.nn.Module):
    """The exact posterior of each of two words given the visible one; lengths 1 and 2 have 1/4 and 3/4."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def length_logits(self, latents_Bd: Any, null_latent_B: Any = None) -> Any:
        return torch.tensor([[1.0, 3.0]]).log().expand(len(latents_Bd), -1)

    def forward(self, tokens_BL: Any, *, logits_at: Any = None, **_: Any) -> TextAndLatentOutput:
        first, second = tokens_BL[:, 0].clamp_max(2), tokens_BL[:, 1].clamp_max(2)
        rows, columns = PAIRS / PAIRS.sum(1, keepdim=True), PAIRS / PAIRS.sum(0, keepdim=True)
        out = torch.full((*tokens_BL.shape, 5), -torch.inf, dtype=torch.float64)
        out[:, 0, :3] = torch.where((tokens_BL[:, 1] < 3)[:, None], columns.T[second], PAIRS.sum(1)).log()
        out[:, 1, :3] = torch.where((tokens_BL[:, 0] < 3)[:, None], rows[first], PAIRS.sum(0)).log()
        return TextAndLatentOutput(out[logits_at], None, None)


@pytest.mark.parametrize(
    ("schedule", "t_min", "given"),
    [
        ({"kind": "log_linear"}, 1e-3, True), ({"kind": "log_linear"}, 1e-3, False), ({"kind": "cosine"}, 1e-3, False),
        ({"kind": "log_linear", "epsilon": 0.2}, 0.3, False),
    ],
)  # fmt: skip
def test_the_bound_of_an_exact_model_is_the_likelihood(schedule: dict[str, Any], t_min: float, given: bool) -> None:
    """With the exact posterior the NELBO is tight for any schedule and any times of training."""
    process = {"kind": "absorbing", "schedule": schedule, "t_min": t_min}
    objective = parse_kind(OBJECTIVES, {"kind": "multimodal", "process": process}, at="objective").build(SHAPE)
    uses = frozenset({"score", "score_given_latent"})
    able = Capabilities(uses=uses, fields=frozenset({"latents"}), trained_as="the exact posterior")
    same: Any = SimpleNamespace(standardise=lambda raw_nd: raw_nd, dim=2)
    model = MMLDLM(Parts(objective.generative_model(Posterior()), able, WORDS, {"normaliser": same}))
    texts = [f"{a} {b}" for a in "abc" for b in "abc"] * COPIES
    scores = model.score(texts, latents=np.ones((len(texts), 2)) if given else None, draws=32)
    assert scores.likelihood == "bound"
    assert scores.length_nll == pytest.approx(-math.log(3 / 4), abs=1e-6)
    each, exact = torch.from_numpy(scores.token_nll).view(COPIES, 9).mean(0), -PAIRS.flatten().log()
    assert float(((each - exact) * PAIRS.flatten()).sum()) == pytest.approx(0, abs=0.02)
    assert torch.allclose(each, exact, atol=0.15)


class Chain(GenerativeModel):
    """An exact model with an end token: p(word) = 1/4, 1/8 and 1/8 for a, b and c, and p(end) = 1/2 after each."""

    has_length = False

    def default_sampler(self, *, conditional: bool) -> Any:
        raise AssertionError

    def write(self, *arguments: Any, **more: Any) -> Any:
        raise AssertionError

    def likelihood(self, tokens_BL: Any, *, latents_Bd: Any, draws: int, generator: Any) -> Likelihood:
        assert draws == 1
        costs = torch.tensor([4.0, 8.0, 8.0, 1.0, 1.0], dtype=torch.float64).log()
        return Likelihood((costs[tokens_BL].sum(1) + math.log(2))[None])


def test_an_exact_likelihood_is_one_draw_without_an_error() -> None:
    able = Capabilities(uses=frozenset({"score"}), likelihood="exact", trained_as="next tokens")
    shape = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=2)
    scores = MMLDLM(Parts(Chain(Posterior(), shape), able, WORDS)).score(["a", "b c", "a a"], draws=8)
    assert scores.nll == pytest.approx(np.log([8, 128, 32]))
    assert not scores.standard_errors.any()
    assert not scores.length_nll.any()
    assert scores.draw_mask_ratio is None


def test_the_error_is_that_of_the_mean_of_the_draws_and_one_has_none(model: MMLDLM) -> None:
    assert np.isnan(model.score(["w1"], draws=1).standard_errors).all()
    scores = model.score(["w1 w2 w3", "w4 w5 w6 w7"], draws=4)
    assert (model.score(scores.texts, draws=4, seed=1).draw_nll != scores.draw_nll).any()
    assert scores.standard_errors == pytest.approx(scores.draw_nll.std(axis=0, ddof=1) / 2), "the root of their number"
    assert (scores.draw_masked <= scores.tokens).all()
    assert (scores.draw_correct <= scores.draw_masked).all()
    assert scores.nll == pytest.approx(scores.length_nll + scores.draw_nll.mean(axis=0))


def test_an_embedding_has_norm_1_also_as_the_mean_of_several_draws(model: MMLDLM) -> None:
    found = model.embed(["w1 w2 w3", "w4"], draws=3)
    assert np.linalg.norm(found.latents, axis=1) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(found.latents, found.draws.mean(0), atol=1e-3), "whose mean is shorter"


def test_a_text_is_scored_given_its_own_latent(model: MMLDLM, unit_latents: Any) -> None:
    latents, texts = unit_latents(3), ["w1 w2 w3", "w4", "w5 w6"]
    together = make(batch_tokens=3).score(texts, latents=latents, draws=2)
    assert together.nll == pytest.approx(model.score(texts, latents=latents, draws=2).nll, rel=1e-4)
    swapped = model.score(texts, latents=latents[::-1], draws=2)
    for part in ("token_nll", "length_nll"):
        assert not np.allclose(getattr(together, part)[[0, 2]], getattr(swapped, part)[[0, 2]]), part
    with pytest.raises(SamplingError, match="3 vectors"):
        model.score(texts, latents=unit_latents(4))
