"""SEDD: its score entropy against the definition, and what normalised scores and their total are for."""

import math
from typing import Any

import pytest
import torch
from tests.diffusion.enumeration import MASK, VOCABULARY, WORDS, V, W
from torch import Tensor

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.distributions import categorical
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES
from mm_ldlm.families.sedd.process import Sedd, SeddConfig

both_graphs = pytest.mark.parametrize("graph", ["absorbing", "uniform"])


def process(graph: Any, schedule: str = "log_linear", **options: float) -> Sedd:
    made = parse_kind(MASK_SCHEDULES, {"kind": schedule, **options}, at="schedule")
    return SeddConfig(graph=graph, schedule=made).build(VOCABULARY)  # type: ignore[return-value]


def rows(count: int) -> RowGenerator:
    return RowGenerator(0, torch.arange(count))


def drawn_words(count: int) -> Tensor:
    return WORDS[torch.randint(W, (count,))]


@pytest.mark.parametrize("schedule", MASK_SCHEDULES.known)
@both_graphs
def test_the_loss_is_its_definition(graph: str, schedule: str) -> None:
    """σ'(t) Σ over y ≠ x_t of Q(x_t, y)(s_y − r_y log s_y + K(r_y)), in float64, with the scores of the paper."""
    sedd, count = process(graph, schedule), 300
    t, targets, output = torch.rand(count, dtype=torch.float64) * 0.98 + 0.01, drawn_words(count), torch.randn(count, V)
    noisy = torch.full((count,), MASK)
    if graph == "uniform":
        noisy = torch.where(torch.arange(count) % 2 == 0, targets, drawn_words(count))
    alpha, rate = sedd.schedule.alpha(t)[:, None], -sedd.schedule.alpha_prime(t) / sedd.schedule.alpha(t)
    log_s, one_hot, here = output.double()[:, WORDS], (targets[:, None] == WORDS).double(), noisy[:, None] == WORDS
    if graph == "absorbing":
        log_s, r, Q = log_s - ((1 - alpha) / alpha).log() - math.log(W), one_hot * alpha / (1 - alpha), torch.ones(W)
    else:
        q = alpha * one_hot + (1 - alpha) / W
        r, Q = q / q[here][:, None], (~here) / W
    each = log_s.exp() - r * log_s + torch.where(r > 0, r * (r.clamp_min(1e-300).log() - 1), 0.0)
    found = sedd.token_losses(output.clone(), targets, noisy, t.float())
    assert torch.allclose(found.weighted_M.double(), rate * (Q * each).sum(1), rtol=2e-4)
    words = output[:, WORDS].masked_fill(here, 0.0)
    torch.testing.assert_close(found.log_norm_M, words.logsumexp(1))
    torch.testing.assert_close(found.nll_M, words.logsumexp(1) - words[one_hot.bool()])
    assert torch.equal(found.best_M, WORDS[words.argmax(1)])


@both_graphs
@pytest.mark.parametrize("offset", [-1e4, -60.0, 60.0])
def test_pitfall_12_the_loss_of_large_outputs_is_finite(graph: str, offset: float) -> None:
    targets = torch.tensor([3, 3, 1])
    noisy = torch.full((3,), MASK) if graph == "absorbing" else torch.tensor([3, 4, 4])
    output = (torch.randn(3, V) * 3 + offset).requires_grad_()
    loss = process(graph).token_losses(output * 1, targets, noisy, torch.tensor([1e-3, 0.5, 1.0])).weighted_M
    (gradient,) = torch.autograd.grad(loss.sum(), output)
    assert bool(loss.isfinite().all())
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e30])
@pytest.mark.parametrize("t", [1.0, 1e-6])
@pytest.mark.parametrize("schedule", [{}, {"epsilon": 0.0}, {"schedule": "geometric", "sigma_min": 0.3}], ids=str)
@both_graphs
def test_any_output_gives_a_distribution_over_words_and_a_word_and_the_last_step_is_a_draw_of_it(
    graph: str, schedule: dict[str, Any], t: float, scale: float
) -> None:
    sedd, count = process(graph, **schedule), 60
    output, noisy = torch.randn(count, V) * scale, torch.full((count,), MASK)
    if graph == "uniform":
        noisy = drawn_words(count)
    t_M = torch.full((count,), t, dtype=torch.float64)
    log_x0 = sedd.log_x0(sedd.x0_logits(output, noisy, t_M), noisy)
    assert torch.allclose(log_x0.exp().sum(1), torch.ones(count), atol=1e-5)
    for s in (0.0, t / 2):
        times = {"t_M": t_M, "s_M": torch.full_like(t_M, s), "uniform_M2": rows(count).uniform(2)}
        for drawn in (sedd.score_step(output, noisy, **times), sedd.reverse_step(log_x0, noisy, **times)):
            assert bool((torch.isin(drawn, WORDS) | (drawn == MASK) & (s > 0)).all())
            assert s > 0 or torch.equal(drawn, categorical(log_x0.double().exp(), times["uniform_M2"][:, 1]))


def test_the_analytic_step_reads_the_total_of_the_scores_at_masks() -> None:
    """A mask is unmasked with (e^{Δσ} − 1)·Σ s, whereas the step from x_θ takes the total of the true scores."""
    sedd, count = process("absorbing", epsilon=0.0), 40_000
    given = {"t_M": torch.full((count,), 0.8).double(), "s_M": torch.full((count,), 0.6).double()}
    noisy, uniform = torch.full((count,), MASK), rows(count).uniform(2)
    for offset, expected in ((0.0, 0.25), (0.5, 0.25 * math.exp(0.5)), (-1.0, 0.25 * math.exp(-1)), (5.0, 1.0)):
        output = torch.full((count, V), offset)
        drawn = sedd.score_step(output, noisy, **given, uniform_M2=uniform)
        assert float((drawn != MASK).double().mean()) == pytest.approx(expected, abs=0.01)
        log_x0 = sedd.log_x0(sedd.x0_logits(output, noisy, given["t_M"]), noisy)
        drawn = sedd.reverse_step(log_x0, noisy, **given, uniform_M2=uniform)
        assert float((drawn != MASK).double().mean()) == pytest.approx(0.25, abs=0.01)


def test_the_bound_of_the_uniform_graph_contains_the_divergence_of_its_prior() -> None:
    q = torch.full((W,), 0.7 / W, dtype=torch.float64) + 0.3 * (torch.arange(W) == 0)
    sedd, tokens_BL = process("uniform", epsilon=0.3), torch.tensor([[1, 1], [1, 0]])
    found = sedd.prior_term(tokens_BL > 0)
    one = float((q * (q * W).log()).sum())
    assert found.tolist() == pytest.approx([2 * one, one])
    given: Any = (lambda noisy, t, scored: torch.zeros(int(scored.sum()), V), tokens_BL, tokens_BL > 0)
    whole_KB = sedd.nelbo(*given, draws=2, generator=rows(2)).nll_KB
    vars(sedd)["prior_term"] = lambda valid_BL: 0 * found
    torch.testing.assert_close(whole_KB - sedd.nelbo(*given, draws=2, generator=rows(2)).nll_KB, found.expand(2, -1))
