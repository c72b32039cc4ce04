"""Processes with words as noise: rates, the NELBO, the reverse step and samples of an enumerable distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tables import JOINT, MASK, PAD, PAIRS, PROCESSES, STATES, V, best_logits, exact_nelbo, forward, gidd, uniform

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig

each_process = pytest.mark.parametrize("name", PROCESSES)
NLL = -JOINT.flatten().log()


def rows(count: int, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def at(process, time: float):
    return process.noise(torch.tensor(time, dtype=torch.float64))


def some_logits(seed: int, sharpness: float = 1.5):
    """A model of no relation to the distribution: logits by the state of the text and two periods of time."""
    table = torch.randn(3, V + 1, V + 1, 2, V + 2, generator=torch.Generator().manual_seed(seed)) * sharpness

    def model(noisy_BL, t_B):
        a, b, c = (x[noisy_BL[:, 0].clamp_max(V), noisy_BL[:, 1].clamp_max(V)] for x in table)
        t = t_B.float()[:, None, None]
        return a + b * t + c * torch.sin(3 * t)

    return model


# -- noise ------------------------------------------------------------------------------------------------------------


@each_process
def test_noise_is_a_distribution_and_its_rates_are_those_of_the_schedule(name):
    """ρ_t = (β_t π_t)' − (α_t'/α_t) β_t π_t ≥ 0, with the derivatives by autograd."""
    process = PROCESSES[name]
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    noise = process.noise(t)
    assert torch.allclose(noise.alpha + V * noise.word + noise.mask, torch.ones(50, dtype=torch.float64))
    alpha_prime = torch.autograd.grad(noise.alpha.sum(), t, retain_graph=True)[0]
    for part, rate in ((noise.word, noise.word_rate), (noise.mask, noise.mask_rate)):
        slope = torch.autograd.grad(part.sum(), t, retain_graph=True)[0] if part.grad_fn is not None else 0 * t
        rho = slope - alpha_prime / noise.alpha * part
        assert torch.allclose(rate * part, rho, rtol=1e-6, atol=1e-12)
        assert (rate >= 0).all()


@each_process
@pytest.mark.parametrize("time", [0.02, 0.5, 0.98])
def test_corruption_has_its_distribution_and_never_touches_pads(name, time):
    process, count = PROCESSES[name], 60_000
    tokens = torch.tensor([[1, 0, PAD]]).repeat(count, 1)
    noisy = process.corrupt(tokens, tokens != PAD, torch.full((count,), time), rows(count))
    expected = forward(at(process, time))
    for place, token in ((0, 1), (1, 0)):
        found = torch.bincount(noisy[:, place], minlength=V + 2).double() / count
        assert torch.allclose(found[: V + 1], expected[token], atol=4.5 * math.sqrt(0.25 / count))
    assert (noisy[:, 2] == PAD).all()
    assert not (noisy[:, :2] == PAD).any()
    correlation = torch.corrcoef((noisy[:, :2] == tokens[:, :2]).double().T)[0, 1]
    assert abs(float(correlation)) < 0.02, "positions are noised independently"


@pytest.mark.parametrize(("mask_id", "pad_id"), [(0, 1), (2, 0), (4, 3), (9, 1), (8, 9)])
def test_random_words_are_all_ids_but_mask_and_pad(mask_id, pad_id):
    process = replace(uniform(), vocab_size=5, mask_id=mask_id, pad_id=pad_id)
    words = process.words(rows(20_000).uniform())
    expected = [i for i in range(5) if i not in (mask_id, pad_id)]
    counts = torch.bincount(words, minlength=5)
    assert counts.nonzero().flatten().tolist() == expected
    assert process.num_words == len(expected)
    assert float(counts[expected].double().std() / counts[expected].double().mean()) < 0.03


def test_the_noise_of_a_text_does_not_depend_on_its_batch():
    tokens, t = torch.randint(0, V, (6, 9)), torch.linspace(0.1, 0.9, 6)
    for process in (uniform(), gidd()):
        whole = process.corrupt(tokens, torch.ones_like(tokens).bool(), t, rows(6))
        one = rows(6).select(torch.tensor([4]))
        alone = process.corrupt(tokens[4:5, :5], torch.ones(1, 5).bool(), t[4:5], one)
        assert torch.equal(alone[0], whole[4, :5])


# -- the NELBO --------------------------------------------------------------------------------------------------------


def ends(process) -> float:
    """What `exact_nelbo` leaves out where α_0 < 1 (geometric): the reconstruction, for x_0 of the other token known."""
    return 3e-3 if process is PROCESSES["uniform geometric"] else 2e-5


@each_process
def test_the_nelbo_of_the_best_prediction_is_tight(name):
    process = PROCESSES[name]
    found = exact_nelbo(process, lambda noisy, t: best_logits(process, noisy, t))
    assert torch.allclose(found, NLL, atol=ends(process))


@each_process
def test_the_nelbo_of_any_other_model_is_above_the_entropy(name):
    process, p = PROCESSES[name], JOINT.flatten()
    entropy = float((p * NLL).sum())
    for seed in range(2):
        assert float((p * exact_nelbo(process, some_logits(seed))).sum()) > entropy + 0.1
    for strength in (-0.3, 0.3):
        noise = some_logits(7, 1.0)
        close = exact_nelbo(process, lambda x, t, s=strength, n=noise: best_logits(process, x, t) + s * n(x, t))
        assert entropy + 1e-3 < float((p * close).sum()) < entropy + 0.5


@each_process
def test_nelbo_draws_have_the_enumerated_mean(name):
    """For a model that has nothing to do with the distribution, so that every term counts."""
    process, copies, model = PROCESSES[name], 1000, some_logits(3, 0.5)
    texts, shown = PAIRS.repeat(copies, 1), []

    def predict(noisy_BL, t_B, scored_BL):
        assert t_B.dtype == torch.float32
        shown.append(noisy_BL)
        return model(noisy_BL, t_B)[scored_BL]

    found = process.nelbo(predict, texts, torch.ones_like(texts).bool(), draws=8, generator=rows(len(texts)))
    each = found.nll_KB.mean(dim=0).view(copies, 9)
    error = each.std(dim=0) / copies**0.5
    exact = exact_nelbo(process, model)
    assert ((each.mean(dim=0) - exact).abs() < 4.5 * error + ends(process)).all()
    assert float((error / exact).median()) < 0.1
    assert all((noisy <= V).all() for noisy in shown)


@each_process
@pytest.mark.parametrize("t", [0.0, 1e-12, 1e-3, 0.5, 1 - 1e-6, 1.0])
def test_losses_and_gradients_are_finite_at_both_ends(name, t):
    process = PROCESSES[name]
    logits = (torch.randn(40, V + 2, generator=torch.Generator().manual_seed(1)) * 60).requires_grad_()
    noisy, targets = torch.arange(40) % (V + 1 if "gidd" in name else V), torch.arange(40) // 4 % V
    losses = process.token_losses(logits * 1, targets, noisy, torch.full((40,), t))
    (gradient,) = torch.autograd.grad(losses.weighted_M.sum(), logits)
    assert losses.weighted_M.isfinite().all()
    assert (losses.weighted_M >= -1e-5 / max(t, 1e-15)).all(), "up to the rounding of a float32 softmax"
    assert gradient.isfinite().all()
    assert (gradient[:, [MASK, PAD]] == 0).all()


def test_the_gradient_is_that_of_finite_differences():
    process = gidd(0.3)
    logits = torch.randn(8, V + 2, generator=torch.Generator().manual_seed(1)).requires_grad_()
    noisy, targets, t = torch.arange(8) % 4, torch.arange(8) % 3, torch.linspace(0.2, 0.8, 8)

    def loss(x):
        return process.token_losses(x * 1, targets, noisy, t).weighted_M.double()

    (gradient,) = torch.autograd.grad(loss(logits).sum(), logits)
    for column in range(V):
        step = torch.zeros(V + 2)
        step[column] = 1e-2
        with torch.no_grad():
            slope = (loss(logits + step) - loss(logits - step)) / 2e-2
        assert torch.allclose(gradient[:, column].double(), slope, atol=2e-3)


# -- the reverse step -------------------------------------------------------------------------------------------------


def chain(process, s: float, t: float) -> torch.Tensor:
    """q(x_t | x_s) = (α_t/α_s) x_s + β_t π_t − (α_t/α_s) β_s π_s as a matrix (V + 1, V + 1)."""
    now, then = at(process, t), at(process, s)
    step = now.alpha / then.alpha if s > 0 else now.alpha
    target = torch.cat([now.word.expand(V), now.mask[None]])
    start = torch.cat([then.word.expand(V), then.mask[None]]) if s > 0 else torch.zeros(V + 1, dtype=torch.float64)
    return step * torch.eye(V + 1, dtype=torch.float64) + (target - step * start)


@each_process
@pytest.mark.parametrize(("s", "t"), [(0.4, 0.7), (0.0, 0.3), (0.2, 1.0), (0.0, 1.0)])
def test_a_reverse_step_is_the_exact_posterior_of_the_enumerated_chain(name, s, t):
    """p(x_s of a token | x_t of both) from p(x_0) q(x_s | x_0) q(x_t | x_s), for every x_t."""
    process, count = PROCESSES[name], 10_000
    q_s = forward(at(process, s)) if s > 0 else torch.eye(V, V + 1, dtype=torch.float64)
    q_st, q_t = chain(process, s, t), forward(at(process, t))
    for text in STATES:
        seen = q_st[:, text[0]][:, None] * q_s.T  # x_s of the first, x_0 of the first
        joint = torch.einsum("sa,ab,b->s", seen, JOINT, q_t[:, text[1]])
        if float(joint.sum()) < 1e-12:
            continue
        expected = joint / joint.sum()
        t_M, s_M = (torch.full((count,), x, dtype=torch.float64) for x in (t, s))
        logits = best_logits(process, text[None], t_M[:1])[:, 0].expand(count, -1).clone()
        noisy = text[0].expand(count)
        drawn = process.reverse_step(
            process.log_x0(logits, noisy), noisy, t_M=t_M, s_M=s_M, uniform_M2=rows(count).uniform(2)
        )
        found = torch.bincount(drawn, minlength=V + 1).double() / count
        assert len(found) == V + 1, "never [PAD]"
        assert torch.allclose(found, expected, atol=4.5 * math.sqrt(0.25 / count)), text.tolist()


def test_the_chain_of_the_test_composes_to_the_marginal():
    for process in PROCESSES.values():
        whole = forward(at(process, 0.3)) @ chain(process, 0.3, 0.8)
        assert torch.allclose(whole, forward(at(process, 0.8)), atol=1e-9)
        assert (chain(process, 0.3, 0.8) >= -1e-12).all()


# -- samples ----------------------------------------------------------------------------------------------------------


def total_variation(process, *, count: int, steps: int) -> float:
    """Distance between the distribution and the samples of the best prediction."""
    generator = rows(count)
    masks = torch.full((count, 2), MASK)
    open_BL = torch.ones_like(masks).bool()
    canvas = process.prior(masks, open_BL, generator.fork("prior"))
    for step in range(steps):
        t_B, s_B = (torch.full((count,), 1 - k / steps, dtype=torch.float64) for k in (step, step + 1))
        state = canvas[:, 0] * (V + 1) + canvas[:, 1]
        table = best_logits(process, STATES, t_B[:1].expand(len(STATES)))
        for place in (0, 1):  # the logits are those of the texts before the step
            log_x0 = process.log_x0(table[:, place].clone(), STATES[:, place])[state]
            scored = process.scored(canvas[:, place], open_BL[:, 0])
            uniform_M2 = generator.fork(step).fork(place).uniform(2)
            drawn = process.reverse_step(log_x0, state // (V + 1) if place == 0 else state % (V + 1),
                                         t_M=t_B, s_M=s_B, uniform_M2=uniform_M2)  # fmt: skip
            canvas[:, place] = torch.where(scored, drawn, canvas[:, place])
    assert (canvas < V).all(), "neither [MASK] nor [PAD] is left"
    found = torch.bincount(canvas[:, 0] * V + canvas[:, 1], minlength=V * V).double() / count
    return float((found - JOINT.flatten()).abs().sum() / 2)


@each_process
def test_samples_follow_the_distribution(name):
    assert total_variation(PROCESSES[name], count=10_000, steps=48) < 0.03
    independent = JOINT.sum(1, keepdim=True) * JOINT.sum(0, keepdim=True)
    assert float((independent - JOINT).abs().sum() / 2) > 0.2, "independent words would be found out"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "gidd"])
def test_a_million_samples_follow_the_distribution(name):
    """Sampling noise is about 0.001; the rest is that 100 steps are not infinitely many."""
    assert total_variation(PROCESSES[name], count=1_000_000, steps=100) < 0.01


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "process",
    [
        {"kind": "uniform"},
        {"kind": "gidd"},
        {"kind": "gidd", "loss_weighting": "elbo"},
        {"kind": "gidd", "p_uniform": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_ten_steps_on_one_batch_lower_the_loss(process, fixed_shapes):
    shape = DataShape(vocab_size=V + 2, pad_id=PAD, mask_id=MASK, max_length=4)
    objective = parse_kind(OBJECTIVES, {"kind": "text_diffusion", "process": process}, at="objective")
    assert isinstance(objective, TextDiffusionConfig)
    made = objective.build(shape, fixed_shapes=fixed_shapes)
    tokens = torch.tensor([[0, 1, 2, 0], [1, 1, 2, PAD]] * 16)
    data = Batch(
        tokens_BL=tokens, valid_BL=tokens != PAD, fields={}, examples_B=torch.arange(32), position_B=torch.arange(32),
        global_size=32, global_tokens=int((tokens != PAD).sum()),
    )  # fmt: skip
    model = DiTConfig(dim=32, depth=2, heads=4).build(shape, generator=torch.Generator().manual_seed(0)).train()
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(11):
        losses = made(model, data, rows(32), kind=made.kinds[0], step=step)
        value, count = losses["text_nll"]
        if step == 0:
            assert float((value / count).detach()) == pytest.approx(made.expected_first_loss()["text_nll"], rel=1e-4)
        total = losses["text_loss"][0] / data.global_tokens
        optimizer.zero_grad()
        total.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        seen.append(float(total.detach()))
    assert seen[-1] < 0.7 * seen[0]
