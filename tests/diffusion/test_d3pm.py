"""D3PM: its grid, its bound on an enumerable distribution, which falls to that of MDLM, and its samples."""

from __future__ import annotations

import itertools

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.d3pm.process import D3pm
from mm_ldlm.sampling.ancestral import reverse_process
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import text_sampler

PAD, MASK, V = 0, 2, 5
SCHEDULES = ("log_linear", "cosine", "geometric")


def process(steps: int, schedule: str = "log_linear", **settings: float) -> D3pm:
    given = {"kind": "d3pm", "steps": steps, "schedule": {"name": schedule, **settings}}
    return parse_kind(TEXT_PROCESSES, given, at="process").build(vocab_size=V, pad_id=PAD, mask_id=MASK)


def rows(count: int, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def exact_bound(table, d3pm: D3pm) -> torch.Tensor:
    """Σ over the steps of the loss of each text (N,), with the exact posterior as x_θ; every x_t enumerated."""
    bound = torch.zeros(len(table.texts), dtype=torch.float64)
    for i in range(1, d3pm.steps + 1):
        t = torch.tensor(i / d3pm.steps, dtype=torch.float64)
        alpha = float(d3pm.alpha(t))

        def losses(output, targets, noisy, t=t):
            return d3pm.token_losses(output, targets, noisy, t.expand(len(targets))).weighted_M

        bound += table.expected(table.output(alpha, scores=False), alpha, losses) / d3pm.steps
    return bound


def chain(table, d3pm: D3pm) -> torch.Tensor:
    """p_θ(x_0) (N,) of the reverse chain itself, from [MASK] everywhere: the product of its transition matrices."""
    states = table.states
    now_S = (states == MASK).all(-1).double()
    for i in range(d3pm.steps, 0, -1):
        t, s = (torch.tensor(x / d3pm.steps, dtype=torch.float64) for x in (i, i - 1))
        alpha_t, alpha_s = float(d3pm.alpha(t)), float(d3pm.alpha(s))
        x0_SLV = table.posterior(alpha_t).nan_to_num() if alpha_t > 0 else table.posterior(1e-9).nan_to_num()
        unmask = (alpha_s - alpha_t) / (1 - alpha_t)
        step_SLV = torch.nn.functional.one_hot(states, V).double()
        masked_SL = states == MASK
        step_SLV[masked_SL] = (1 - unmask) * step_SLV[masked_SL] + unmask * x0_SLV[masked_SL]
        each_SS = step_SLV[:, None].expand(-1, len(states), -1, -1).gather(3, states[None, ..., None].expand(
            len(states), -1, -1, 1
        ))[..., 0].prod(-1)  # fmt: skip
        now_S = now_S @ each_SS
    index = (states[None] == table.texts[:, None]).all(-1).long().argmax(1)
    return now_S[index]


def test_the_process_is_chosen_by_its_kind():
    made = process(7, "cosine")
    assert (made.kind, made.steps, made.mask_schedule) == ("d3pm", 7, MaskSchedule(name="cosine"))
    default = parse_kind(TEXT_PROCESSES, {"kind": "d3pm"}, at="process")
    assert default.steps == 1000
    with pytest.raises(ConfigurationError, match=r"process\.t_min' is not known.*kind, schedule, steps"):
        parse_kind(TEXT_PROCESSES, {"kind": "d3pm", "t_min": 0.1}, at="process")
    with pytest.raises(ConfigurationError, match=r"process\.steps"):
        parse_kind(TEXT_PROCESSES, {"kind": "d3pm", "steps": 0}, at="process")


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_training_times_are_grid_points_each_as_often_as_the_others(steps):
    times = process(steps).times(0.3701, torch.arange(3 * steps), 3 * steps)
    assert times.dtype == torch.float32
    counts = torch.bincount((times.double() * steps).round().long(), minlength=steps + 1)
    assert torch.allclose(times.double(), (times.double() * steps).round() / steps, atol=1e-6)
    assert counts.tolist() == [0] + [3] * steps
    for u in (0.0, 1.0 - 2**-53):
        ends = process(steps).times(u, torch.arange(5), 5)
        assert ((ends > 0) & (ends <= 1)).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_chain_begins_at_the_text_and_ends_in_masks(schedule):
    """With α_0 = 1 and α_1 = 0 the bound has no further terms at its ends."""
    d3pm = process(5, schedule, epsilon=0.2)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert d3pm.alpha(ends).tolist() == [1, 0]
    tokens = torch.full((200, 3), 3)
    assert (d3pm.corrupt(tokens, torch.ones_like(tokens).bool(), torch.ones(200), rows(200)) == MASK).all()
    t = torch.full((20_000,), 0.4)
    some = d3pm.corrupt(tokens.repeat(100, 1), torch.ones(20_000, 3).bool(), t, rows(20_000)) == MASK
    assert float(some.double().mean()) == pytest.approx(1 - float(d3pm.schedule.alpha(t[:1])), abs=0.01)


@pytest.mark.parametrize("steps", [11, 1000])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_weight_of_a_time_of_training_is_that_of_its_grid_point(schedule, steps):
    """Times are float32, in which many of the i/T lie below the grid point."""
    d3pm = process(steps, schedule)
    grid = torch.arange(1, steps + 1).double() / steps
    assert bool((grid.float().double() * steps).floor().ne((grid * steps).round()).any())
    torch.testing.assert_close(d3pm.weight(grid.float()), d3pm.weight(grid), rtol=1e-12, atol=0)
    found = d3pm.weight(grid) / steps
    earlier = torch.where(grid > 1 / steps, d3pm.alpha(grid - 1 / steps), 1.0)
    torch.testing.assert_close(found, (earlier - d3pm.alpha(grid)) / (1 - d3pm.alpha(grid)), rtol=1e-6, atol=1e-9)


def test_the_weight_by_hand():
    """Four log-linear steps: α = 1, .75, .5, .25 and 0 (not ε)."""
    weights = process(4, epsilon=0.0).weight(torch.tensor([0.25, 0.5, 0.75, 1.0]))
    assert weights.tolist() == pytest.approx([4.0, 2.0, 4 / 3, 1.0])
    assert float(process(4, epsilon=0.1).weight(torch.ones(1))) == pytest.approx(4 * (1 - 0.9 * 0.75))
    assert float(process(1000).weight(torch.full((1,), 1e-3))) == pytest.approx(1000)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bound_falls_to_that_of_mdlm_and_is_never_below(table, schedule):
    """With the exact x_θ the bound of MDLM is the entropy. The gap is the dependence of words unmasked together."""
    texts = table(3, "absorbing")
    entropy = float((texts.p * texts.nll).sum())
    bounds = [float((texts.p * exact_bound(texts, process(steps, schedule))).sum()) for steps in (1, 2, 4, 8, 16, 128)]
    assert all(a > b for a, b in itertools.pairwise(bounds))
    assert all(bound > entropy for bound in bounds)
    assert bounds[0] > entropy + 0.1
    assert bounds[-1] < entropy + 0.15 * (bounds[2] - entropy)


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_the_bound_is_above_the_likelihood_of_its_own_chain(table, steps):
    """−log p_θ of every text, p_θ by matrix products; with one step there is no gap."""
    texts = table(3, "absorbing")
    p_chain = chain(texts, process(steps))
    bound = exact_bound(texts, process(steps))
    assert float(p_chain.sum()) == pytest.approx(1)
    assert (bound > -p_chain.log() - 1e-5).all()
    if steps == 1:
        assert torch.allclose(bound, -p_chain.log(), rtol=1e-5)
    else:
        assert float((bound + p_chain.log()).max()) > 0.01


@pytest.mark.parametrize(("steps", "draws"), [(3, 1), (5, 4)])
def test_nelbo_draws_have_the_enumerated_mean(table, steps, draws):
    texts, d3pm, copies = table(2, "absorbing"), process(steps, "cosine"), 3000
    tokens = texts.texts.repeat(copies, 1)
    exact = texts.denoiser(d3pm, scores=False).logits

    def predict(noisy_BL, t_B, scored_BL):
        found = torch.zeros(*noisy_BL.shape, V, dtype=torch.float64)
        for t in t_B.unique():
            here = t_B == t
            found[here] = exact(noisy_BL[here], t_B[here], None, torch.ones_like(scored_BL[here]))[:].view(
                int(here.sum()), -1, V
            )
        return found[scored_BL]

    found = d3pm.nelbo(predict, tokens, torch.ones_like(tokens).bool(), draws=draws, generator=rows(len(tokens)))
    each = found.nll_KB.mean(0).view(copies, -1)
    error = each.std(0) / copies**0.5
    assert ((each.mean(0) - exact_bound(texts, d3pm)).abs() < 4.5 * error).all()
    assert (error < 0.05 * each.mean(0)).all()
    i = torch.arange(1, steps + 1).double() / steps
    levels = found.noise_KB.unique()
    assert torch.allclose(levels, d3pm.mask_probability(i))
    assert (found.cross_entropy_KB >= 0).all()
    assert (found.scored_KB <= 2).all()


def test_reverse_steps_draw_from_the_chain_of_the_bound(table):
    """Three steps of `reverse_step` from the prior have the distribution of the chain, which is not the data's."""
    texts, d3pm, count = table(3, "absorbing"), process(3), 60_000
    denoise = texts.denoiser(d3pm, scores=False)
    canvas = torch.full((count, 3), MASK)
    sample = reverse_process(denoise, canvas, process=d3pm, steps=3, generator=rows(count), draw=Draw())
    found, expected = texts.frequencies(sample.tokens), chain(texts, d3pm)
    assert 0.5 * float((found - expected).abs().sum()) < 0.012
    assert 0.5 * float((texts.p - expected).abs().sum()) > 0.03


@pytest.mark.parametrize(
    ("count", "steps", "tolerance"),
    [(30_000, 40, 0.02), pytest.param(1_000_000, 100, 0.006, marks=pytest.mark.slow)],
)
def test_ancestral_samples_follow_the_distribution(table, count, steps, tolerance):
    texts, d3pm = table(2, "absorbing"), process(1000)
    found = texts.sampled(text_sampler("ancestral", steps=steps), d3pm, count=count)
    distance = 0.5 * float((found - texts.p).abs().sum())
    assert distance < tolerance
    independent = texts.p.view(3, 3).sum(1, keepdim=True) * texts.p.view(3, 3).sum(0)
    assert 0.5 * float((independent.flatten() - texts.p).abs().sum()) > 5 * tolerance


def test_a_step_from_the_output_of_a_model_of_x0_is_the_step_from_x0():
    d3pm, count = process(10), 500
    output, noisy = torch.randn(count, V), torch.tensor([MASK, 3]).repeat(250)
    times = {"t_M": torch.full((count,), 0.7).double(), "s_M": torch.full((count,), 0.3).double()}
    uniform = rows(count).uniform(2)
    expected = d3pm.reverse_step(d3pm.log_x0(output.clone(), noisy), noisy, **times, uniform_M2=uniform)
    assert torch.equal(d3pm.score_step(output, noisy, **times, uniform_M2=uniform), expected)
    assert (expected != noisy).any()
