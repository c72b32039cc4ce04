"""Text diffusion on a distribution small enough to enumerate: the NELBO of the optimal denoiser is −log p, exactly."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.autoregressive.model import CausalConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig, Output
from mm_ldlm.objectives.base import Batch, Objective
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig

WORDS, PAD, MASK, N = (0, 1, 2), 3, 4, 3
SHAPE = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=N)
TEXTS = [text for length in (1, 2, 3) for text in itertools.product(WORDS, repeat=length)]


def probabilities() -> list[float]:
    """Of each of the 39 texts; dependent words, and lengths that are not equally probable."""
    weights = torch.rand(len(TEXTS), generator=torch.Generator().manual_seed(0), dtype=torch.float64).pow(3) + 0.01
    return (weights / weights.sum()).tolist()


P = dict(zip(TEXTS, probabilities(), strict=True))
LENGTHS = [sum(p for text, p in P.items() if len(text) == length) for length in (1, 2, 3)]


class OptimalDenoiser(nn.Module):
    """A text denoiser by table: the posterior of each masked token given the unmasked ones and the length."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def posterior(self, seen: tuple[int, ...], position: int) -> list[float]:
        fits = [
            (text, p) for text, p in P.items()
            if len(text) == len(seen) and all(s in (MASK, x) for s, x in zip(seen, text, strict=True))
        ]  # fmt: skip
        total = sum(p for _, p in fits)
        return [sum(p for text, p in fits if text[position] == word) / total for word in WORDS]

    def forward(self, tokens_BL: Tensor, *, valid_BL: Tensor, t_B: Tensor, logits_at: Tensor | None = None) -> Output:
        rows_UL, index_B = tokens_BL.unique(dim=0, return_inverse=True)
        logits_ULV = torch.zeros(*rows_UL.shape, 5)  # [PAD] and [MASK] have logits too, which the process must ignore
        for row, tokens in enumerate(rows_UL.tolist()):
            seen = tuple(x for x in tokens if x != PAD)
            for position in range(len(seen)):
                logits_ULV[row, position, :3] = torch.tensor(self.posterior(seen, position)).log()
        logits = logits_ULV[index_B]
        return Output(logits if logits_at is None else logits[logits_at], self.length_logits())

    def length_logits(self) -> Tensor:
        return torch.tensor(LENGTHS).log()


def batch(texts: list[tuple[int, ...]]) -> Batch:
    tokens = torch.tensor([[*text, *[PAD] * (N - len(text))] for text in texts])
    return Batch(
        tokens_BL=tokens,
        valid_BL=tokens != PAD,
        fields={},
        examples_B=torch.arange(len(texts)),
        position_B=torch.arange(len(texts)),
        global_size=len(texts),
        global_tokens=sum(map(len, texts)),
    )


def objective(**keys: Any) -> Any:
    return parse(TextDiffusionConfig, keys, at="objective").build(SHAPE)


def rows(count: int, *, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def conditional_nll(text: tuple[int, ...]) -> float:
    """−log p(text | length)."""
    return -math.log(P[text] / LENGTHS[len(text) - 1])


@pytest.mark.parametrize("schedule", [{"name": "log_linear", "epsilon": 0.0}, {"name": "cosine", "epsilon": 0.0}])
def test_the_nelbo_of_the_optimal_denoiser_is_exact_for_every_text(schedule):
    """∫ dt Σ over patterns of masks P(pattern) Σ over masked tokens of w(t)·CE = −log p(text | length), text by text:
    every order of unmasking gives the same product of conditionals. By quadrature, so without any error of draws."""
    made = objective(process={"kind": "absorbing", "schedule": schedule})
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(40))
    t_Q, weights_Q = (nodes + 1) / 2, weights / 2
    mask_Q = made.process.schedule.mask_probability(t_Q)
    for text in TEXTS:
        data, bound = batch([text]), 0.0
        for pattern in itertools.product((False, True), repeat=len(text)):
            masked_BL = torch.tensor([[*pattern, *[False] * (N - len(text))]])
            noisy_BL = data.tokens_BL.masked_fill(masked_BL, MASK)
            scored_BL = made.process.scored(noisy_BL, data.valid_BL)
            assert torch.equal(scored_BL, masked_BL)
            if not any(pattern):
                continue
            logits_MV = OptimalDenoiser()(noisy_BL, valid_BL=data.valid_BL, t_B=None, logits_at=scored_BL).logits
            k, q = sum(pattern), len(t_Q)
            weighted_QM = made.process.token_losses(
                logits_MV.repeat(q, 1), data.tokens_BL[scored_BL].repeat(q), noisy_BL[scored_BL].repeat(q),
                t_Q.float().repeat_interleave(k),
            )[0].double().view(q, k)  # fmt: skip
            probability_Q = mask_Q**k * (1 - mask_Q) ** (len(text) - k)
            bound += float((weights_Q * probability_Q * weighted_QM.sum(1)).sum())
        assert bound == pytest.approx(conditional_nll(text), rel=1e-4), text


@pytest.mark.parametrize("schedule", [{"name": "log_linear"}, {"name": "cosine"}])
def test_scoring_estimates_the_entropy_of_the_distribution(schedule):
    """Inference draws masks; their mean over the distribution, and the length's, is −Σ p log p."""
    copies = 300
    texts = TEXTS * copies
    generation = objective(process={"kind": "absorbing", "schedule": schedule}).generative_model(OptimalDenoiser())
    with generation.evaluating():
        draws = generation.likelihood(batch(texts).tokens_BL, latents_Bd=None, draws=16, generator=rows(len(texts)))
        length_log_p = generation.length_log_probs(None, rows=1)[0]
    assert draws.nll_KB.dtype == torch.float64
    p = torch.tensor([P[text] for text in TEXTS], dtype=torch.float64)
    length_nll = -sum(P[text] * float(length_log_p[len(text) - 1]) for text in TEXTS)
    each = (p * draws.nll_KB.mean(0).view(copies, -1)).sum(1) + length_nll
    entropy, error = -float((p * p.log()).sum()), float(each.std() / copies**0.5)
    assert abs(float(each.mean()) - entropy) < 4 * error
    assert error < 0.01 * entropy


def test_the_training_loss_of_the_optimal_denoiser_estimates_the_same_bound():
    texts = [text for text in TEXTS for _ in range(round(3000 * P[text]))]
    data, made = batch(texts), objective()
    sums, tokens, cases = 0.0, 0, 4
    for seed in range(cases):
        losses = made(OptimalDenoiser(), data, rows(len(texts), seed=seed), kind=made.kinds[0], step=0)
        sums += float(losses["text_loss"][0])
        tokens += int(losses["text_loss"][1])
        assert float(losses["length_loss"][0] / losses["length_loss"][1]) == pytest.approx(
            -sum(math.log(LENGTHS[len(text) - 1]) for text in texts) / len(texts), rel=1e-4
        )
    exact = sum(map(conditional_nll, texts)) / data.global_tokens
    assert tokens == cases * data.global_tokens
    assert sums / tokens == pytest.approx(exact, rel=0.04)


def test_a_worse_denoiser_has_a_larger_bound():
    class Uniform(OptimalDenoiser):
        def posterior(self, seen, position):
            return [1 / 3] * 3

    texts = TEXTS * 40
    p = torch.tensor([P[text] for text in TEXTS], dtype=torch.float64)
    found = []
    for model in (OptimalDenoiser(), Uniform()):
        generation = objective().generative_model(model)
        with generation.evaluating():
            nll = generation.likelihood(
                batch(texts).tokens_BL, latents_Bd=None, draws=8, generator=rows(len(texts))
            ).nll_KB  # fmt: skip
        found.append(float((p * nll.mean(0).view(40, -1).mean(0)).sum()))
    assert found[1] > found[0] + 0.1


def test_dit_starts_at_the_announced_loss_and_learns_one_batch():
    data = batch([(0, 1, 2)] * 8)
    made = objective(length_weight=1.0)
    model = DiTConfig(dim=32, depth=2, heads=4).build(SHAPE, generator=torch.Generator().manual_seed(0)).train()
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=5e-3), []
    for step in range(50):
        losses = made(model, data, rows(8, seed=step), kind=made.kinds[0], step=step)
        if step == 0:
            value, count = losses["text_nll"]
            assert float((value / count).detach()) == pytest.approx(made.expected_first_loss()["text_nll"], rel=1e-4)
            assert float((losses["length_loss"][0] / 8).detach()) == pytest.approx(math.log(3), rel=1e-4)
        total = losses["text_loss"][0] / data.global_tokens + losses["length_loss"][0] / 8
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        seen.append(float(losses["text_nll"][0].detach() / losses["text_nll"][1].clamp(min=1)))
    assert sum(seen[-20:]) < 0.5 * sum(seen[:20])
    assert all(p.grad is not None for p in model.parameters())


def test_capabilities_and_protocol():
    config = TextDiffusionConfig()
    found = config.capabilities(DiTConfig())
    assert {"unconditional", "score"} <= found.uses
    assert found.likelihood == "bound"
    assert not found.reads_latents
    assert config.fields == ()
    assert isinstance(config.build(SHAPE), Objective)
    with pytest.raises(ConfigurationError, match="trains a model of interface 'text_denoiser'"):
        config.capabilities(CausalConfig())
