"""HDLM on texts of three words that can be enumerated: marginals, bound, reverse step and limits.

Levels are independent of the words, so the optimal denoiser does not depend on the time: the posterior of a word is
p(text) over all texts that fit the noisy text.

S noisy texts, L positions, I ids a position may hold, Q times.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.families.hdlm import process as hdlm
from mm_ldlm.families.hdlm.process import HdlmConfig, Levels
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.registry import text_sampler

WORDS, PAD, MASK, V, L = 3, 3, 4, 5, 3
TEXTS = torch.cartesian_prod(*[torch.arange(WORDS)] * L)
PAIRED, ONE_TOKEN, SINGLE = (0, 1, 0), (0, 1, 2), (0, 0, 0)
GAMMAS = (0.7, 1.0, 2.0, 3.5)


def process(clusters=PAIRED, **keys):
    config = parse_kind(TEXT_PROCESSES, {"kind": "hdlm", **keys}, at="process")
    return config.build(
        vocab_size=V, pad_id=PAD, mask_id=MASK, token_clusters=torch.tensor([*clusters, -1, -1])[:, None]
    )


@functools.cache
def probabilities():
    weights = torch.rand(len(TEXTS), generator=torch.Generator().manual_seed(1), dtype=torch.float64).pow(3) + 0.01
    return weights / weights.sum()


def ids(made):
    """(I,) every id that a position of a noisy text may hold: words, [MASK], clusters."""
    return torch.tensor([*range(WORDS), MASK, *range(V, V + made.noise_ids)])


def states(made):
    """(S, L) every noisy text."""
    return torch.cartesian_prod(*[ids(made)] * L)


def fits(made, noisy):
    """(…, WORDS) whether a word may have become the id `noisy`."""
    cluster_of = made.cluster_of_V[:WORDS]
    words = torch.arange(WORDS)
    at = noisy[..., None]
    return (at == words) | (at == MASK) | (at == V + cluster_of)


def optimal(made):
    """(S, L, V) log-posterior of each word given each noisy text; the ids of no word have finite logits."""
    fit_SLW = fits(made, states(made))
    p_ST = probabilities() * fit_SLW[:, torch.arange(L), TEXTS].all(-1)
    word_TLW = torch.nn.functional.one_hot(TEXTS, WORDS).double()
    post_SLW = torch.einsum("st,tlw->slw", p_ST, word_TLW)
    log_SLW = (post_SLW / post_SLW.sum(-1, keepdim=True)).log().nan_to_num(nan=0.0, neginf=-60.0)
    return torch.cat([log_SLW, torch.zeros(len(log_SLW), L, V - WORDS, dtype=torch.float64)], dim=-1)


def arbitrary(made, *, read=None, seed=0):
    """(S, L, V) random logits, which depend on each id of the noisy text as `read` maps it."""
    read = read or {}
    draw = torch.rand(40, 40, 40, L, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    mapped = torch.tensor([read.get(i, i) for i in range(40)])[states(made)]
    return draw[mapped[:, 0], mapped[:, 1], mapped[:, 2]]


def quadrature(nodes=80):
    """Times in (0, 1) and their weights, dense at both ends: t = (1 − cos πy)/2."""
    y, w = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(nodes))
    y, w = (y + 1) / 2, w / 2
    return (1 - torch.cos(math.pi * y)) / 2, w * math.pi / 2 * torch.sin(math.pi * y)


def bound(made, logits_SLV):
    """(T,) the NELBO of each text: every noisy text enumerated, the integral over time by quadrature."""
    t_Q, weight_Q = quadrature()
    noisy_SL = states(made)
    level = Levels.at(t_Q, gamma=made.gamma)
    found = []
    for text in TEXTS:
        possible = fits(made, noisy_SL).gather(2, text.expand(len(noisy_SL), L)[..., None])[..., 0].all(-1)
        noisy_PL, logits_PLV = noisy_SL[possible], logits_SLV[possible]
        kind_PL = torch.where(noisy_PL < WORDS, 0, torch.where(noisy_PL == MASK, 2, 1))
        q_QP = torch.stack(level, dim=-1)[:, kind_PL].prod(-1)
        scored_PL = made.scored(noisy_PL, torch.ones_like(noisy_PL, dtype=torch.bool))
        assert torch.equal(scored_PL, kind_PL > 0)
        row_M = scored_PL.nonzero()[:, 0]
        m, q = len(row_M), len(t_Q)
        losses = made.token_losses(
            logits_PLV[scored_PL].repeat(q, 1), text.expand_as(noisy_PL)[scored_PL].repeat(q),
            noisy_PL[scored_PL].repeat(q), t_Q.repeat_interleave(m),
        )  # fmt: skip
        each_QP = torch.zeros(q, len(noisy_PL), dtype=torch.float64)
        each_QP = each_QP.index_add(1, row_M, losses.weighted_M.double().view(q, m))
        found.append(float((weight_Q[:, None] * q_QP * each_QP).sum()))
    return torch.tensor(found, dtype=torch.float64)


def chain(made, logits_SLV, *, steps):
    """(T,) probability of each text at the end of the reverse process in so many steps, by matrix products."""
    noisy_SL = states(made)
    flat_M = noisy_SL.flatten()
    x0_MW = made.log_x0(logits_SLV.flatten(0, 1).clone(), flat_M)[:, :WORDS].double().softmax(-1)
    cluster_MC = torch.zeros(len(flat_M), made.noise_ids, dtype=torch.float64)
    cluster_MC = cluster_MC.index_add(1, made.cluster_of_V[:WORDS], x0_MW)
    p_S = (noisy_SL == MASK).all(-1).double()
    for step in range(steps):
        t, s = 1 - step / steps, 1 - (step + 1) / steps
        token_M, cluster_M = hdlm.reverse_probabilities(
            flat_M == MASK, t_M=torch.full(flat_M.shape, t).double(), s_M=torch.full(flat_M.shape, s).double(),
            gamma=made.gamma,
        )  # fmt: skip
        mask_M = 1 - token_M - cluster_M  # 0 from a cluster
        moved_MI = torch.cat([token_M[:, None] * x0_MW, mask_M[:, None], cluster_M[:, None] * cluster_MC], dim=1)
        step_MI = torch.where((flat_M < WORDS)[:, None], (flat_M[:, None] == ids(made)).double(), moved_MI)
        a, b, c = step_MI.view(len(noisy_SL), L, -1).unbind(1)
        p_S = torch.einsum("s,si,sj,sk->ijk", p_S, a, b, c).flatten()
    assert float(p_S.sum()) == pytest.approx(1)
    return p_S[(noisy_SL < WORDS).all(-1)]


# -- the forward process ----------------------------------------------------------------------------------------------


def transition(s, t, gamma):
    """(3, 3) P(level at t | level at s) as the matrix exponential of the rates γ/(1−t) and 1/(1−t)."""
    rates = torch.tensor([[-gamma, gamma, 0], [0, -1, 1], [0, 0, 0]], dtype=torch.float64)
    return torch.linalg.matrix_exp(rates * (math.log1p(-s) - math.log1p(-t)))


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_marginals_are_those_of_the_rates_and_of_the_closed_form(gamma):
    for t in (1e-4, 0.01, 0.3, 0.75, 0.999):
        found = torch.stack(Levels.at(torch.tensor(t, dtype=torch.float64), gamma=gamma))
        assert torch.allclose(found, transition(0.0, t, gamma)[0], rtol=1e-7, atol=1e-16)
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    if gamma == 1:
        log_u = torch.log(1 - t)
        assert torch.allclose(Levels.at(t, gamma=1).cluster, -(1 - t) * log_u)
        assert torch.allclose(Levels.at(t, gamma=1).mask, t + (1 - t) * log_u)
    assert torch.allclose(Levels.at(t, gamma=gamma).token, (1 - t) ** gamma)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_weights_are_rates_of_the_true_reverse_process(gamma):
    t = torch.linspace(0.002, 0.998, 60, dtype=torch.float64, requires_grad=True)
    at = Levels.at(t, gamma=gamma)
    token_prime, mask_prime = (torch.autograd.grad(x.sum(), t, retain_graph=True)[0] for x in (at.token, at.mask))
    mask_weight, cluster_weight = hdlm.weights(t.detach(), gamma=gamma)
    assert torch.allclose(mask_weight, mask_prime / at.mask, rtol=1e-6)
    assert torch.allclose(cluster_weight, -token_prime / at.cluster, rtol=1e-6)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_both_ends_of_time_are_exact_and_finite(gamma):
    zero, one = (Levels.at(torch.tensor(t), gamma=gamma) for t in (0.0, 1.0))
    assert [float(x) for x in zero] == [1, 0, 0]
    assert [float(x) for x in one] == [0, 0, 1]
    for t in (1e-12, 1e-7, 1 - 1e-7, 1.0):
        found = hdlm.weights(torch.tensor(t, dtype=torch.float64), gamma=gamma)
        assert all(0 < float(weight) < math.inf for weight in found)
    edge = torch.tensor([1 - 1e-9, 1 + 1e-9], dtype=torch.float64) * 1e-3  # where the series begins
    below, above = Levels.at(edge, gamma=gamma).mask
    assert float(above / below) == pytest.approx(1, rel=1e-7)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_corruption_draws_the_marginals_and_leaves_pads_alone(gamma):
    made, count, t = process(gamma=gamma), 40_000, 0.6
    tokens = torch.tensor([[0, 1, 2, PAD]]).expand(count, -1)
    noisy = made.corrupt(tokens, tokens != PAD, torch.full((count,), t), RowGenerator(3, torch.arange(count)))
    assert (noisy[:, 3] == PAD).all()
    levels = torch.stack(Levels.at(torch.tensor(t), gamma=gamma))
    for place, cluster in enumerate(PAIRED):
        found = torch.stack([(noisy[:, place] == i).double().mean() for i in (place, V + cluster, MASK)])
        assert float(found.sum()) == pytest.approx(1)
        assert ((found - levels).abs() < 4.5 * (levels * (1 - levels) / count).sqrt()).all()


def test_times_are_spread_over_the_interval_that_t_min_leaves():
    t = process(t_min=0.1).times(0.37, torch.arange(1000), 1000)
    assert float(t.min()) >= 0.1
    assert float(t.max()) <= 0.9
    assert float(t.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(process().times(0.0, torch.arange(4), 4).min()) == pytest.approx(1e-3)


# -- the bound --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [PAIRED, ONE_TOKEN, SINGLE])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_nelbo_of_the_optimal_denoiser_is_tight_for_every_text(gamma, clusters):
    made = process(clusters, gamma=gamma)
    assert torch.allclose(bound(made, optimal(made)), -probabilities().log(), rtol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_the_nelbo_is_above_the_exact_nll_of_any_denoiser(gamma):
    """The exact NLL is that of the texts which the reverse process of this denoiser generates."""
    made = process(gamma=gamma)
    for seed in range(2):
        logits = arbitrary(made, seed=seed)
        gap = bound(made, logits) + chain(made, logits, steps=150).log()
        assert (gap > 0).all()
        assert float(gap.mean()) > 0.2


def mdlm_bound(logits_SLV, made):
    """(T,) the NELBO of MDLM with this table of logits, at the noisy texts of words and masks."""
    absorbing = AbsorbingConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    m_Q, weight_Q = quadrature()
    noisy_SL, found = states(made), []
    for text in TEXTS:
        total = 0.0
        for pattern in itertools.product((False, True), repeat=L):
            masked_L = torch.tensor(pattern)
            row = int((noisy_SL == text.masked_fill(masked_L, MASK)).all(-1).nonzero())
            log_x0_LV = absorbing.log_x0(logits_SLV[row].clone(), torch.full((L,), MASK)).double()
            nll = -log_x0_LV.gather(1, text[:, None])[:, 0][masked_L].sum()
            k = sum(pattern)
            total += float((weight_Q * m_Q ** (k - 1) * (1 - m_Q) ** (L - k)).sum() * nll) if k else 0.0
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_with_one_token_per_cluster_it_is_mdlm(gamma):
    """For any denoiser that reads a cluster as its only token."""
    made = process(ONE_TOKEN, gamma=gamma)
    logits = arbitrary(made, read={V + i: i for i in range(WORDS)})
    assert torch.allclose(bound(made, logits), mdlm_bound(logits, made), rtol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_with_a_single_cluster_it_is_mdlm(gamma):
    """For any denoiser that reads the cluster as a mask."""
    made = process(SINGLE, gamma=gamma)
    logits = arbitrary(made, read={V: MASK})
    assert torch.allclose(bound(made, logits), mdlm_bound(logits, made), rtol=1e-5)


def lookup(made, logits_SLV):
    """`Predict` of a table."""
    place = torch.full((V + made.noise_ids,), -1)
    place[ids(made)] = torch.arange(len(ids(made)))

    def predict(noisy_BL, t_B, scored_BL):
        base = len(ids(made))
        row_B = (place[noisy_BL] * torch.tensor([base**2, base, 1])).sum(1)
        return logits_SLV[row_B][scored_BL]

    return predict


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_nelbo_draws_have_the_enumerated_mean(gamma):
    made, copies = process(gamma=gamma), 500
    texts, logits = TEXTS.repeat(copies, 1), arbitrary(made)
    rows = RowGenerator(0, torch.arange(len(texts)))
    found = made.nelbo(lookup(made, logits), texts, torch.ones_like(texts).bool(), draws=8, generator=rows)
    exact, each = bound(made, logits), found.nll_KB.mean(dim=0)
    error = float(each.std() / len(texts) ** 0.5)
    assert abs(float(each.mean() - exact.mean())) < 4.5 * error
    assert error < 0.015 * float(exact.mean())
    of_text = each.view(copies, len(TEXTS)).mean(dim=0)  # the draws of one text are few, and rare ones are large
    assert ((of_text - exact).abs() < 0.3 * exact).all()


def test_statistics_of_the_losses():
    made = process()
    logits = torch.tensor([[1.0, 0.5, 2.0, 9.0, 9.0]] * 2)
    found = made.token_losses(logits, torch.tensor([0, 0]), torch.tensor([MASK, V]), torch.tensor([0.5, 0.5]))
    words, inside = torch.tensor([1.0, 0.5, 2.0]), torch.tensor([1.0, 2.0])
    expected = torch.stack([words.logsumexp(0) - 1, inside.logsumexp(0) - 1])
    assert torch.allclose(found.nll_M, expected)
    assert found.best_M.tolist() == [2, 2]
    assert torch.allclose(found.log_norm_M, words.logsumexp(0).expand(2))
    alone = made.token_losses(torch.tensor([[1.0, 0.5, 2.0, 9.0, 9.0]]), torch.tensor([1]), torch.tensor([V + 1]),
                              torch.tensor([0.5]))  # fmt: skip
    assert float(alone.weighted_M) == 0
    assert alone.best_M.tolist() == [1]


# -- the reverse process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(("s", "t"), [(0.0, 0.3), (0.2, 0.5), (0.5, 0.98), (0.7, 1.0), (0.0, 1.0)])
def test_a_reverse_step_draws_from_the_exact_posterior(gamma, s, t):
    """Bayes' rule with transitions from the rates; the draws by a grid of uniform numbers, without sampling error."""
    made, grid = process(gamma=gamma), 300
    cells = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    uniform_M2 = torch.cartesian_prod(cells, cells)
    count = len(uniform_M2)
    prior = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    near_one = min(t, 1 - 1e-12)
    forward, marginal = transition(s, near_one, gamma), transition(0.0, s, gamma)[0]
    for noisy in (0, V, V + 1, MASK):
        if noisy != MASK and t == 1:
            continue
        level = 0 if noisy < WORDS else 2 if noisy == MASK else 1
        possible_W = fits(made, torch.tensor(noisy))
        x0_W = prior * possible_W / (prior * possible_W).sum()
        level_3 = marginal * forward[:, level]
        level_3 = level_3 / level_3.sum()
        expected = torch.zeros(V + made.noise_ids, dtype=torch.float64)
        expected[:WORDS] = level_3[0] * x0_W
        expected[MASK] = level_3[2]
        expected.index_add_(0, V + made.cluster_of_V[:WORDS], level_3[1] * x0_W)
        logits = torch.tensor([*prior.log().tolist(), 5.0, 5.0]).expand(count, -1).clone()
        noisy_M = torch.full((count,), noisy)
        drawn = made.reverse_step(
            made.log_x0(logits, noisy_M), noisy_M, t_M=torch.full((count,), t).double(),
            s_M=torch.full((count,), s).double(), uniform_M2=uniform_M2,
        )  # fmt: skip
        found = torch.bincount(drawn, minlength=len(expected)).double() / count
        assert (found - expected).abs().max() < 3 / grid, noisy


def test_a_mask_may_become_a_word_in_one_step():
    token, cluster = hdlm.reverse_probabilities(
        torch.tensor([True]), t_M=torch.tensor([0.9]), s_M=torch.tensor([0.4]), gamma=1.0
    )
    assert float(token) > 0.1
    assert float(cluster) > 0.1


@pytest.mark.parametrize("clusters", [PAIRED, ONE_TOKEN, SINGLE])
def test_the_reverse_process_of_the_optimal_denoiser_ends_in_the_distribution(clusters):
    """The error of finite steps, which draw the positions of a step independently, falls with their number."""
    made = process(clusters)
    errors = [float((chain(made, optimal(made), steps=n) - probabilities()).abs().max()) for n in (10, 40, 160)]
    assert errors[2] < 1.5e-3
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_ancestral_samples_have_the_enumerated_distribution(count):
    """Of the optimal denoiser in 12 steps; `chain` contains the error of finite steps, so only draws differ."""
    made, steps = process(), 12
    predict = lookup(made, optimal(made))

    def logits(tokens_AL, t_A, rows_A, asked_AL):
        return predict(tokens_AL, t_A, asked_AL)

    sample = text_sampler("ancestral", steps=steps).sample(
        TextDenoiser(logits=logits, mask_id=MASK, pad_id=PAD, vocab_size=V), torch.full((count, L), MASK),
        process=made, generator=RowGenerator(0, torch.arange(count)),
    )  # fmt: skip
    assert (sample.tokens < WORDS).all()
    found = torch.bincount((sample.tokens * torch.tensor([9, 3, 1])).sum(1), minlength=len(TEXTS)).double() / count
    expected = chain(made, optimal(made), steps=steps)
    assert ((found - expected).abs() < 4.5 * (expected * (1 - expected) / count).sqrt()).all()


def test_log_x0_forbids_what_is_no_word_or_not_in_the_cluster():
    made = process()
    logits = torch.randn(4, V)
    found = made.log_x0(logits.clone(), torch.tensor([MASK, V, V + 1, 2]))
    assert torch.isneginf(found[:, [PAD, MASK]]).all()
    assert found.exp().sum(-1).tolist() == pytest.approx([1] * 4)
    assert torch.isneginf(found).tolist()[1:] == [
        [False, True, False, True, True], [True, False, True, True, True], [True, True, False, True, True],
    ]  # fmt: skip
    assert torch.allclose(found[0, :3], logits[0, :3].log_softmax(0))


# -- configuration ----------------------------------------------------------------------------------------------------


def test_the_ids_of_the_noise_follow_those_of_the_tokenizer():
    made = process()
    shape = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=L, noise_ids=made.noise_ids)
    assert (made.first_noise_id, made.noise_ids, shape.first_noise_id, shape.num_ids) == (V, 2, V, V + 2)
    assert made.mask_schedule is None
    assert made.initial_nll() is None
    assert HdlmConfig.stores == ("token_clusters",)
    beyond = HdlmConfig().build(vocab_size=2, pad_id=2, mask_id=3, token_clusters=torch.tensor([[0], [0]]))
    assert beyond.first_noise_id == 4
    sparse = HdlmConfig().build(vocab_size=4, pad_id=0, mask_id=3, token_clusters=torch.tensor([[-1], [4], [1], [-1]]))
    assert sparse.noise_ids == 5, "up to the largest cluster, whether the others have words or not"


@pytest.mark.parametrize("clusters", [[0, 1, 0, -1], [0, 1, 0, 0, -1], [0, 1, -1, -1, -1]])
def test_clusters_of_another_vocabulary_are_refused(clusters):
    with pytest.raises(ConfigurationError, match=r"expected a cluster for each of the 3 words of a vocabulary of 5"):
        HdlmConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK, token_clusters=torch.tensor(clusters)[:, None])


@pytest.mark.parametrize("gamma", [0.1, 0.49, 17.0, 1e5])
def test_a_gamma_whose_fractions_are_not_exact_is_refused(gamma):
    """At 0.1 the last time before 1 still has 2.5 % of the tokens; at 1e5 the series at t < 1e-3 exceeds 1."""
    with pytest.raises(ConfigurationError, match=r"gamma must be between 0\.5 and 16"):
        parse_kind(TEXT_PROCESSES, {"kind": "hdlm", "gamma": gamma}, at="process")


def test_the_fractions_of_the_largest_and_the_smallest_gamma_are_exact():
    for t in (1e-5, 9.99e-4, 0.2):
        u = 1 - Fraction(t)
        mask = float(1 - u**16 - 16 * (u - u**16) / 15)
        assert float(Levels.at(torch.tensor(t).double(), gamma=16.0).mask) == pytest.approx(mask, rel=1e-6)
    assert float(Levels.at(torch.tensor(1 - 2.0**-53).double(), gamma=0.5).token) < 2e-8


def test_t_min_leaves_an_interval():
    with pytest.raises(ConfigurationError, match=r"t_min must be below 0\.5"):
        process(t_min=0.5)
