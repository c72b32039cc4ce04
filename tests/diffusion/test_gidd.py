"""GIDD: its schedule, its weights, and masked diffusion as the case without random words."""

from __future__ import annotations

import math

import pytest
import torch
from tables import IDS, MASK, PAIRS, V, gidd

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import MaskSchedule

MDLM = AbsorbingConfig(schedule=MaskSchedule(epsilon=0.0)).build(**IDS)


def rows(count: int) -> RowGenerator:
    return RowGenerator(0, torch.arange(count))


def some_positions(count: int = 400):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(count, V + 2, generator=draw) * 2
    noisy, targets = torch.arange(count) % (V + 1), torch.arange(count) // (V + 1) % V
    return logits, targets, noisy, torch.rand(count, generator=draw, dtype=torch.float64) * 0.98 + 0.01


def test_the_process_is_chosen_by_its_kind():
    built = parse_kind(TEXT_PROCESSES, {"kind": "gidd", "p_uniform": 0.3, "gamma": 1.5}, at="process").build(**IDS)
    assert (built.p_uniform, built.gamma, built.mask_schedule) == (0.3, 1.5, None)
    for key, value in (("p_uniform", 1.0), ("gamma", 2.5), ("gamma", 0.9), ("t_min", 1.0)):
        with pytest.raises(ConfigurationError, match=f"{key} must be"):
            parse_kind(TEXT_PROCESSES, {"kind": "gidd", key: value}, at="process")
    with pytest.raises(ConfigurationError, match="loss_weighting"):
        parse_kind(TEXT_PROCESSES, {"kind": "gidd", "loss_weighting": "none"}, at="process")


@pytest.mark.parametrize("p_uniform", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("gamma", [1.0, 1.4, 2.0])
def test_p_uniform_is_the_fraction_of_random_words_at_half_time(p_uniform, gamma):
    noise = gidd(p_uniform, gamma=gamma).noise(torch.tensor([0.0, 0.5, 1.0]))
    assert float(V * noise.word[1]) == pytest.approx(p_uniform)
    assert float(noise.alpha[1]) == pytest.approx((1 - p_uniform) / 2)
    assert float(noise.alpha[0]) == pytest.approx(1, abs=1e-2)
    assert float(noise.mask[2]) == pytest.approx(1, abs=1e-2)


def test_gamma_moves_random_words_to_half_time():
    word = [float(gidd(0.3, gamma=gamma).noise(torch.tensor(0.05)).word) for gamma in (1.0, 1.5, 2.0)]
    assert word[0] > 1.2 * word[1] > 1.6 * word[2]


def test_t_min_bounds_the_times_of_training():
    times = gidd(t_min=0.2).times(0.0, torch.arange(4), 4)
    assert torch.allclose(times, torch.tensor([0.2, 0.4, 0.6, 0.8]))


def test_the_weights_of_the_elbo_are_those_of_the_paper():
    """For γ = 1: 1/(t(1−t)) at masks, half of it at random words, and (c_t/N)/(1 − t + c_t/N) of that at the token."""
    process = gidd(0.2)
    t = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
    noise, targets = process.noise(t), torch.zeros(10).long()
    weights = [process.weight(targets, torch.full((10,), token), noise) for token in (MASK, 1, 0)]
    c = 0.5 * (t * (1 - t)).sqrt()
    assert torch.allclose(weights[0], 1 / (t * (1 - t)))
    assert torch.allclose(weights[1], 0.5 / (t * (1 - t)))
    assert torch.allclose(weights[2] / weights[1], (c / V) / (1 - t + c / V))


def test_loss_weightings_change_the_training_loss_alone():
    positions = some_positions()
    found = {
        name: gidd(0.2, loss_weighting=name).token_losses(positions[0].clone(), *positions[1:])
        for name in ("elbo", "clip", "dynamic")
    }
    elbo, clip, dynamic = (found[name].weighted_M for name in ("elbo", "clip", "dynamic"))
    noise, (_, targets, noisy, _) = gidd(0.2).noise(positions[3]), positions
    weight = gidd(0.2).weight(targets, noisy, noise)
    divergence = elbo.double() / weight
    assert torch.allclose(clip.double(), divergence * weight.clamp_max(2.0), rtol=1e-5)
    other = (noisy != MASK) & (noisy != targets)
    assert torch.allclose(dynamic[other].double(), divergence[other], rtol=1e-5)
    assert torch.allclose(dynamic[noisy == MASK].double(), 2 * divergence[noisy == MASK], rtol=1e-5)
    own = noisy == targets
    expected = (0.5 / V * ((1 - noise.alpha) / noise.alpha).sqrt()).clamp_max(2.0)
    assert torch.allclose(dynamic[own].double(), (divergence * expected)[own], rtol=1e-5)
    halved = gidd(0.2, loss_weighting="clip", max_weight=1.0).token_losses(positions[0].clone(), *positions[1:])
    assert torch.allclose(halved.weighted_M.double(), divergence * weight.clamp_max(1.0), rtol=1e-5)
    for name in ("clip", "dynamic"):
        assert torch.equal(found[name].nll_M, found["elbo"].nll_M)


def test_the_likelihood_has_the_weights_of_the_elbo_under_every_weighting():
    def predict(noisy_BL, t_B, scored_BL):
        return torch.zeros(int(scored_BL.sum()), V + 2)

    found = [
        gidd(0.2, loss_weighting=name).nelbo(predict, PAIRS, PAIRS >= 0, draws=4, generator=rows(9)).nll_KB
        for name in ("elbo", "clip", "dynamic")
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    inherited = TextProcess.nelbo(
        gidd(0.2, loss_weighting="dynamic"), predict, PAIRS, PAIRS >= 0, draws=4, generator=rows(9)
    )
    assert not torch.equal(found[0], inherited.nll_KB)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("most", [0.05, 1.4, 9.0])
def test_dynamic_weights_are_two_for_masks_one_for_random_words_and_small_for_the_token_itself(gamma, most):
    process = gidd(0.2, gamma=gamma, loss_weighting="dynamic", max_weight=most)
    _, targets, noisy, t = some_positions()
    noise = process.noise(t)
    log_snr = torch.log(noise.alpha / (1 - noise.alpha))
    own = process.B / V * torch.exp(-gamma / 2 * log_snr)
    expected = torch.where(noisy == targets, own, torch.ones_like(own))
    expected = torch.where(noisy == MASK, torch.full_like(own, 2.0), expected).clamp(max=most)
    torch.testing.assert_close(process.weight(targets, noisy, noise), expected)
    assert float(own.min()) < 0.05 < float(own.max())


# -- without random words it is MDLM ----------------------------------------------------------------------------------


def test_without_random_words_noise_and_loss_are_those_of_masked_diffusion():
    process = gidd(0.0)
    tokens, t = torch.randint(0, V, (500, 12)), torch.linspace(0.01, 1, 500)
    valid = torch.arange(12) < 10
    noisy = [p.corrupt(tokens, valid.expand(500, -1), t, rows(500)) for p in (process, MDLM)]
    assert torch.equal(*noisy)
    scored = [p.scored(noisy[0], valid.expand(500, -1)) for p in (process, MDLM)]
    assert torch.equal(*scored)
    logits = torch.randn(int(scored[0].sum()), V + 2, generator=torch.Generator().manual_seed(0)) * 30
    arguments = (tokens[scored[0]], noisy[0][scored[0]], t[:, None].expand(-1, 12)[scored[0]])
    ours, theirs = (p.token_losses(logits.clone(), *arguments) for p in (process, MDLM))
    for name in ours._fields:
        assert torch.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-5), name
    assert process.mask_schedule == MDLM.mask_schedule


def test_without_random_words_the_nelbo_is_that_of_masked_diffusion():
    table = torch.randn(V + 1, V + 1, 2, V + 2, generator=torch.Generator().manual_seed(1))

    def predict(noisy_BL, t_B, scored_BL):
        return table[noisy_BL[:, 0], noisy_BL[:, 1]][scored_BL]

    texts = PAIRS.repeat(800, 1)
    arguments = (predict, texts, texts >= 0)
    found = gidd(0.0).nelbo(*arguments, draws=8, generator=rows(len(texts)))
    same_draws = TextProcess.nelbo(MDLM, *arguments, draws=8, generator=rows(len(texts)))
    assert torch.allclose(found.nll_KB, same_draws.nll_KB, rtol=1e-5)
    own = MDLM.nelbo(*arguments, draws=8, generator=rows(len(texts)).fork("other"))
    means = [x.nll_KB.mean(0).view(800, 9) for x in (found, own)]
    error = math.sqrt(sum(float(x.mean(1).var()) / 800 for x in means))
    assert abs(float(means[0].mean() - means[1].mean())) < 4 * error


@pytest.mark.parametrize(("s", "t"), [(0.0, 0.5), (0.3, 0.8), (0.9, 1.0)])
def test_without_random_words_a_reverse_step_is_that_of_masked_diffusion(s, t):
    count = 4000
    noisy = torch.where(torch.arange(count) % 3 == 0, torch.arange(count) % V, MASK)
    logits = torch.randn(count, V + 2, generator=torch.Generator().manual_seed(0))
    steps = {
        "t_M": torch.full((count,), t).double(),
        "s_M": torch.full((count,), s).double(),
        "uniform_M2": rows(count).uniform(2),
    }
    drawn = [
        p.reverse_step(p.log_x0(logits.clone(), torch.full((count,), MASK)), noisy, **steps) for p in (gidd(0.0), MDLM)
    ]
    assert torch.equal(*drawn)
