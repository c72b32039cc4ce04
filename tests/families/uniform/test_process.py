"""Uniform noise and GIDD: the published integrand, rates, terms at the ends, weights, and MDLM as a special case."""

from typing import Any

import pytest
import torch
from tests.diffusion.enumeration import MASK, TEXTS, VOCABULARY, WORDS, Enumeration, V, W
from tests.families.uniform.cases import LAWS
from torch import Tensor
from torch.nn.functional import pad

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.masked import AbsorbingConfig
from mm_ldlm.diffusion.process import TextProcess, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, Geometric, LogLinear
from mm_ldlm.families.uniform.gidd import Gidd, GiddConfig
from mm_ldlm.families.uniform.uniform import Interpolating, Uniform, UniformConfig

MDLM = AbsorbingConfig(schedule=LogLinear(epsilon=0.0)).build(VOCABULARY)


def uniform(schedule: Any = LogLinear(), **options: Any) -> Uniform:  # noqa: B008 - immutable
    return UniformConfig(schedule=schedule, **options).build(VOCABULARY)


def gidd(p_uniform: float = 0.2, loss_weighting: Any = "elbo", **options: Any) -> Gidd:
    return GiddConfig(p_uniform=p_uniform, loss_weighting=loss_weighting, **options).build(VOCABULARY)


def rows(count: int) -> RowGenerator:
    return RowGenerator(0, torch.arange(count))


def positions(count: int = 400) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, targets, noisy tokens and times."""
    noisy = torch.cat([WORDS, torch.tensor([MASK])]).repeat(count)[:count]
    targets = WORDS.repeat_interleave(5).repeat(count)[:count]
    return torch.randn(count, V) * 2, targets, noisy, torch.rand(count, dtype=torch.float64) * 0.98 + 0.01


@pytest.mark.parametrize("process", [uniform(), uniform(Geometric()), gidd(), gidd(0.5, gamma=2.0), gidd(0.0)])
def test_rates_are_those_of_the_noise(process: Interpolating) -> None:
    """ρ_t = (β_t π_t)' − (α_t'/α_t) β_t π_t ≥ 0, with the derivatives by autograd."""
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    noise = process.noise(t)
    torch.testing.assert_close(noise.alpha + W * noise.word + noise.mask, torch.ones_like(t))
    alpha_prime = torch.autograd.grad(noise.alpha.sum(), t, retain_graph=True)[0]
    for part, rate in ((noise.word, noise.word_rate), (noise.mask, noise.mask_rate)):
        slope = torch.autograd.grad(part.sum(), t, retain_graph=True)[0] if part.grad_fn is not None else 0 * t
        assert torch.allclose(rate * part, slope - alpha_prime / noise.alpha * part, rtol=1e-6, atol=1e-12)
        assert bool((rate >= 0).all())


@pytest.mark.parametrize("schedule", MASK_SCHEDULES.known)
def test_the_loss_is_the_integrand_of_udlm(schedule: str) -> None:
    """−α'/(N α) [N/x̄_i − N/x̄θ_i − Σ_j (x̄_j/x̄_i) log((x̄θ_i x̄_j)/(x̄θ_j x̄_i))], x̄ = N α x + 1 − α, x_t = i."""
    process = uniform(parse_kind(MASK_SCHEDULES, {"kind": schedule}, at="schedule"))
    logits, targets, noisy, t = positions()
    noisy = torch.where(noisy == MASK, targets, noisy)
    alpha, model = process.schedule.alpha(t)[:, None], logits[:, WORDS].double().softmax(-1)
    clean = (targets[:, None] == WORDS).double()
    bar, bar_model = (W * alpha * x + 1 - alpha for x in (clean, model))
    at, at_model = (x.gather(1, noisy[:, None] - 1) for x in (bar, bar_model))
    inner = W / at - W / at_model - ((bar / at) * (at_model * bar / (bar_model * at)).log()).sum(1, keepdim=True)
    expected = (process.schedule.alpha_prime(t)[:, None] / (W * alpha) * inner)[:, 0]
    found = process.token_losses(logits, targets, noisy, t)
    assert torch.allclose(found.weighted_M.double(), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.best_M, WORDS[model.argmax(1)])
    torch.testing.assert_close(found.log_norm_M, logits[:, WORDS].logsumexp(1))


@pytest.mark.parametrize(("mask_id", "pad_id"), [(0, 1), (2, 0), (4, 3), (9, 1), (8, 9)])
def test_random_words_are_all_ids_but_mask_and_pad(mask_id: int, pad_id: int) -> None:
    process = UniformConfig().build(Vocabulary(vocab_size=5, mask_id=mask_id, pad_id=pad_id))
    words = process.words(rows(20_000).uniform())
    expected = [i for i in range(5) if i not in (mask_id, pad_id)]
    fractions = torch.bincount(words, minlength=5) / 20_000
    assert fractions.nonzero().flatten().tolist() == expected
    assert fractions[expected].tolist() == pytest.approx([1 / len(expected)] * len(expected), abs=0.02)


def mean_bound(process: TextProcess, *, inherited: bool = False, copies: int = 500) -> tuple[Tensor, Tensor]:
    """The bound of the best model and its error (N,); `inherited` is the integral alone."""
    found, tokens_BL = Enumeration(process, LAWS["uniform"]), pad(TEXTS.repeat(copies, 1), (0, 1))
    nelbo = TextProcess.nelbo if inherited else type(process).nelbo
    draws = nelbo(
        process, lambda noisy, t, scored: found.output(noisy[:, :2], t)[scored[:, :2]].float(), tokens_BL,
        tokens_BL > 0, draws=2, generator=rows(len(tokens_BL)),
    )  # fmt: skip
    each_KN = draws.nll_KB.mean(0).view(copies, -1)
    return each_KN.mean(0), each_KN.std(0) / copies**0.5


def test_the_divergence_of_the_prior_is_part_of_the_bound() -> None:
    """Where α_1 = 0.3, x_1 still shows the text."""
    process = uniform(LogLinear(epsilon=0.3))
    q = torch.full((W,), 0.7 / W, dtype=torch.float64) + 0.3 * (torch.arange(W) == 0)
    one = float((q * (q * W).log()).sum())
    whole_N, integral_N = mean_bound(process, copies=20)[0], mean_bound(process, copies=20, inherited=True)[0]
    torch.testing.assert_close(whole_N - integral_N, torch.full_like(whole_N, 2 * one))


def test_the_reconstruction_is_part_of_the_bound_where_the_noise_does_not_end_at_zero() -> None:
    """geometric with σ_min = 0.2: α_0 = 0.82."""
    process = uniform(Geometric(sigma_min=0.2))
    found, zero_S = Enumeration(process, LAWS["uniform"]), torch.zeros(len(TEXTS))
    others_NLW, _, own_NLW = found.seen(TEXTS, zero_S)
    posterior_NLW = others_NLW * own_NLW / (others_NLW * own_NLW).sum(-1, keepdim=True)
    cost_NN = -posterior_NLW[:, [[0], [1]], (TEXTS - 1).T].log().sum(1)  # x_t, x_0
    chance_NN = own_NLW[:, 0][:, TEXTS[:, 0] - 1] * own_NLW[:, 1][:, TEXTS[:, 1] - 1]  # q(x_t | x_0)
    reconstruction_N = (chance_NN * cost_NN).sum(0)
    whole_N, error_N = mean_bound(process)
    integral_N, _ = mean_bound(process, inherited=True)
    assert bool(((whole_N - integral_N - reconstruction_N - 2 * process.prior_kl()).abs() < 4.5 * error_N).all())


def test_the_last_step_leaves_no_noise_also_where_the_schedule_begins_with_some() -> None:
    log_x0 = torch.where(torch.arange(V) == 2, 0.0, -torch.inf).expand(9, -1)
    uniform_M2 = torch.tensor([0.01, 0.5, 0.9999]).double().repeat(3)[:, None].expand(-1, 2)
    found = uniform(Geometric(sigma_min=0.2)).reverse_step(
        log_x0, torch.tensor([1, 3, 4]).repeat_interleave(3), uniform_M2=uniform_M2,
        t_M=torch.tensor([1.0, 0.5, 1e-3]).double().repeat_interleave(3), s_M=torch.zeros(9).double(),
    )  # fmt: skip
    assert found.tolist() == [2] * 9


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("most", [0.05, 1.4, 9.0])
def test_weightings_of_the_training_loss(gamma: float, most: float) -> None:
    """clip bounds the weights of the ELBO; dynamic is 2 at masks, 1 at random words, and small at the token itself."""
    (_, targets, noisy, t), elbo = positions(), gidd(gamma=gamma)
    noise = elbo.noise(t)
    weight = elbo.weight(targets, noisy, noise)
    ratio = noise.word / (noise.word + torch.where(noisy == targets, noise.alpha, 0.0))
    expected = torch.where(noisy == MASK, noise.mask_rate, noise.word_rate * ratio)
    torch.testing.assert_close(weight, expected)
    clipped = gidd(gamma=gamma, loss_weighting="clip", max_weight=most).weight(targets, noisy, noise)
    torch.testing.assert_close(clipped, weight.clamp(max=most))
    own = elbo.B / W * torch.exp(-gamma / 2 * torch.log(noise.alpha / (1 - noise.alpha)))
    expected = torch.where(noisy == targets, own, 1.0).where(noisy != MASK, 2.0).clamp(max=most)
    dynamic = gidd(gamma=gamma, loss_weighting="dynamic", max_weight=most)
    torch.testing.assert_close(dynamic.weight(targets, noisy, noise), expected)


def test_without_random_words_gidd_is_masked_diffusion() -> None:
    process, tokens_BL, t_B = gidd(0.0), WORDS[torch.randint(W, (500, 12))], torch.linspace(0.01, 1, 500)
    valid_BL = (torch.arange(12) < 10).expand(500, -1)
    noisy_BL, theirs_BL = (each.corrupt(tokens_BL, valid_BL, t_B, rows(500)) for each in (process, MDLM))
    assert torch.equal(noisy_BL, theirs_BL)
    scored_BL = process.scored(noisy_BL, valid_BL)
    assert torch.equal(scored_BL, MDLM.scored(noisy_BL, valid_BL))
    logits, t_M = torch.randn(int(scored_BL.sum()), V) * 30, t_B[:, None].expand(-1, 12)[scored_BL]
    given = (tokens_BL[scored_BL], noisy_BL[scored_BL], t_M)
    for ours, theirs in zip(*(each.token_losses(logits.clone(), *given) for each in (process, MDLM)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for s, t in ((0.0, 0.5), (0.3, 0.8), (0.9, 1.0)):
        step = {"t_M": torch.full_like(t_M, t).double(), "s_M": torch.full_like(t_M, s).double()}
        drawn = [
            each.reverse_step(each.log_x0(logits.clone(), given[1]), given[1], uniform_M2=rows(len(t_M)).uniform(2),
                              **step)
            for each in (process, MDLM)
        ]  # fmt: skip
        assert torch.equal(*drawn)
    assert process.mask_schedule == MDLM.mask_schedule
