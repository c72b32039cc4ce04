"""Uniform diffusion: the published form of its NELBO, the terms at its ends, and its configuration."""

from __future__ import annotations

import pytest
import torch
from tables import IDS, JOINT, MASK, PAIRS, V, best_logits, exact_nelbo, forward, uniform

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.uniform.uniform import UniformConfig


def test_the_process_is_chosen_by_its_kind():
    built = parse_kind(TEXT_PROCESSES, {"kind": "uniform", "schedule": {"name": "cosine"}}, at="process").build(**IDS)
    assert built.schedule == MaskSchedule(name="cosine")
    assert built.mask_schedule is None
    with pytest.raises(ConfigurationError, match="t_min must be below 1"):
        parse_kind(TEXT_PROCESSES, {"kind": "uniform", "t_min": 1.0}, at="process")


def test_t_min_bounds_the_times_of_training():
    times = uniform(t_min=0.2).times(0.0, torch.arange(4), 4)
    assert torch.allclose(times, torch.tensor([0.2, 0.4, 0.6, 0.8]))


@pytest.mark.parametrize("schedule", ["log_linear", "cosine", "geometric"])
def test_the_loss_is_the_integrand_of_udlm(schedule):
    """−α'/(N α) [N/x̄_i − N/x̄θ_i − Σ_j (x̄_j/x̄_i) log((x̄θ_i x̄_j)/(x̄θ_j x̄_i))], x̄ = N α x + 1 − α, x_t = i."""
    process, draw = uniform(schedule, epsilon=0.1), torch.Generator().manual_seed(0)
    logits = torch.randn(60, V + 2, generator=draw)
    noisy, targets = torch.arange(60) % V, torch.arange(60) // V % V
    t = torch.rand(60, generator=draw, dtype=torch.float64) * 0.9 + 0.05
    alpha = process.schedule.alpha(t)[:, None]
    model = logits[:, :V].double().softmax(-1)
    clean = torch.nn.functional.one_hot(targets, V).double()
    bar, bar_model = (V * alpha * x + 1 - alpha for x in (clean, model))
    at, at_model = (x.gather(1, noisy[:, None]) for x in (bar, bar_model))
    inner = V / at - V / at_model - ((bar / at) * (at_model * bar / (bar_model * at)).log()).sum(1, keepdim=True)
    expected = (process.schedule.alpha_prime(t)[:, None] / (V * alpha) * inner)[:, 0]
    found = process.token_losses(logits, targets, noisy, t)
    assert torch.allclose(found.weighted_M.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.best_M, model.argmax(1))
    assert torch.allclose(found.log_norm_M, logits[:, :V].logsumexp(1), atol=1e-5)


def test_the_prior_is_uniform_over_the_words_and_leaves_the_rest():
    tokens = torch.tensor([[MASK, 2, MASK]]).repeat(9000, 1)
    drawn = uniform().prior(tokens, tokens == MASK, RowGenerator(0, torch.arange(9000)))
    assert (drawn[:, 1] == 2).all()
    assert torch.allclose(torch.bincount(drawn[:, 0]) / 9000, torch.full((V,), 1 / 3), atol=0.025)


def _mean_of_draws(process, model, *, copies: int, inherited: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    texts = PAIRS.repeat(copies, 1)
    nelbo = TextProcess.nelbo if inherited else type(process).nelbo
    found = nelbo(
        process,
        lambda noisy, t, scored: model(noisy, t)[scored],
        texts,
        torch.ones_like(texts).bool(),
        draws=2,
        generator=RowGenerator(0, torch.arange(len(texts))),
    ).nll_KB.mean(0)
    each = found.view(copies, 9)
    return each.mean(0), each.std(0) / copies**0.5


def test_the_kl_to_the_prior_is_part_of_the_nelbo():
    """Where α_1 = 0.3, x_1 still shows the text; without the term the value would be below −log p."""
    process = uniform(epsilon=0.3)
    q = torch.tensor([0.3 + 0.7 / 3, 0.7 / 3, 0.7 / 3], dtype=torch.float64)
    assert process.prior_kl() == pytest.approx(float((q * (q * 3).log()).sum()), rel=1e-9)
    assert uniform(epsilon=0.0).prior_kl() == pytest.approx(0, abs=1e-12)

    def model(noisy, t):
        return best_logits(process, noisy, t)

    whole, _ = _mean_of_draws(process, model, copies=2)
    inherited, _ = _mean_of_draws(process, model, copies=2, inherited=True)
    assert torch.allclose(whole - inherited, torch.full((9,), 2 * process.prior_kl(), dtype=torch.float64))
    nll, integral = -JOINT.flatten().log(), exact_nelbo(process, model)
    entropy = float((JOINT.flatten() * nll).sum())
    assert float((JOINT.flatten() * integral).sum()) < entropy - 0.05
    assert float((JOINT.flatten() * (integral + 2 * process.prior_kl())).sum()) > entropy


def test_the_reconstruction_is_part_of_the_nelbo_where_the_noise_does_not_end_at_zero():
    """geometric with σ_min = 0.2: α_0 = 0.82, and the integral alone is below the entropy."""
    process = UniformConfig(schedule=MaskSchedule(name="geometric", sigma_min=0.2)).build(**IDS)

    def model(noisy, t):
        return best_logits(process, noisy, t)

    noise = process.noise(torch.zeros((), dtype=torch.float64))
    q_VV = forward(noise)[:, :V]
    logits = model(PAIRS, torch.zeros(9))[..., :V].double()
    posterior = (logits + q_VV[:, PAIRS].permute(1, 2, 0).log()).log_softmax(-1)  # x_t, place, x_0
    chance = q_VV[PAIRS[:, 0]][:, PAIRS[:, 0]] * q_VV[PAIRS[:, 1]][:, PAIRS[:, 1]]  # x_0, x_t
    cost = -torch.stack([posterior[:, place, PAIRS[:, place]] for place in (0, 1)]).sum(0).T  # x_0, x_t
    exact = (chance * cost).sum(1)

    p = JOINT.flatten()
    entropy, integral = float(-(p * p.log()).sum()), exact_nelbo(process, model)
    assert float((p * integral).sum()) < entropy - 0.3
    assert entropy < float((p * (integral + exact)).sum()) < entropy + 0.2
    whole, error = _mean_of_draws(process, model, copies=500)
    inherited, _ = _mean_of_draws(process, model, copies=500, inherited=True)
    assert ((whole - inherited - exact - 2 * process.prior_kl()).abs() < 4.5 * error).all()
    assert (error < 0.1).all()


@pytest.mark.parametrize("choice", [0.01, 0.5, 0.9, 0.9999])
def test_the_last_step_leaves_no_noise_also_where_the_schedule_begins_with_some(choice):
    """Under this geometric schedule 18 % of the words are random at t = 0; a text ends at α = 1."""
    made = UniformConfig(schedule=MaskSchedule(name="geometric", sigma_min=0.2)).build(
        vocab_size=6, pad_id=0, mask_id=5
    )
    log_x0 = torch.full((3, 6), -torch.inf)
    log_x0[:, 2] = 0.0
    found = made.reverse_step(
        log_x0, torch.tensor([1, 3, 4]), t_M=torch.tensor([1.0, 0.5, 1e-3]).double(), s_M=torch.zeros(3).double(),
        uniform_M2=torch.tensor([[choice, 0.5]]).double().expand(3, -1),
    )  # fmt: skip
    assert found.tolist() == [2, 2, 2]
