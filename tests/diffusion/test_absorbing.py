"""Absorbing diffusion: forward moments, SUBS, the NELBO on an enumerable distribution, the reverse step."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.absorbing import (
    CONSTANT,
    Absorbing,
    AbsorbingConfig,
    max_remask_ratio,
    remask_unmask_probability,
    unmask_probability,
)
from mm_ldlm.diffusion.distributions import categorical, forbid_
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.registry import text_sampler

PAD, MASK, V = 0, 1, 7
SCHEDULES = [MaskSchedule(name=name) for name in ("log_linear", "cosine", "geometric")]


def process(schedule: MaskSchedule | None = None, **ids: int) -> Absorbing:
    return AbsorbingConfig(schedule=schedule or MaskSchedule()).build(
        **({"vocab_size": V, "pad_id": PAD, "mask_id": MASK} | ids)
    )


def batch(B: int = 4000, L: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(2, V).repeat(B * L)[: B * L].view(B, L).clone()
    valid = torch.arange(L)[None] < (torch.arange(B)[:, None] % L) + 1
    return tokens.masked_fill(~valid, PAD), valid


def test_the_process_is_chosen_by_its_kind():
    found = parse_kind(TEXT_PROCESSES, {"kind": "absorbing", "schedule": {"name": "cosine"}}, at="process")
    built = found.build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    assert built.kind == "absorbing"
    assert built.mask_schedule == MaskSchedule(name="cosine")
    with pytest.raises(ConfigurationError, match=r"process\.t_mni' is not known.*kind, schedule, t_min"):
        parse_kind(TEXT_PROCESSES, {"kind": "absorbing", "t_mni": 0.1}, at="process")
    with pytest.raises(ConfigurationError, match="t_min must be below 1"):
        parse_kind(TEXT_PROCESSES, {"kind": "absorbing", "t_min": 1.0}, at="process")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("time", [0.05, 0.5, 0.95])
def test_forward_process_masks_the_ratio_of_its_schedule(schedule, time):
    tokens, valid = batch()
    t = torch.full((len(tokens),), time)
    noisy = process(schedule).corrupt(tokens, valid, t, RowGenerator(0, torch.arange(len(tokens))))
    masked = noisy == MASK
    n, p = int(valid.sum()), 1 - float(schedule.alpha(t[:1]))
    assert abs(float(masked[valid].float().mean()) - p) < 5 * math.sqrt(p * (1 - p) / n) + 1e-7
    assert torch.equal(noisy[~masked], tokens[~masked])
    assert torch.equal(process(schedule).scored(noisy, valid), masked)


def test_positions_are_masked_independently():
    """The number masked in a text is binomial: its variance is L·p(1−p), not that of a text masked all at once."""
    tokens = torch.full((20_000, 8), 3)
    noisy = process(MaskSchedule(epsilon=0.0)).corrupt(
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        torch.full((20_000,), 0.4),
        RowGenerator(3, torch.arange(20_000)),
    )
    counts = (noisy == MASK).sum(1).double()
    assert float(counts.var()) == pytest.approx(8 * 0.4 * 0.6, rel=0.05)


def test_pitfall_05_masking_is_blind_to_neighbours_and_padding():
    tokens, valid = batch(16, 12)
    t = torch.linspace(0.1, 1, 16)
    rows = torch.arange(100, 116)
    whole = process().corrupt(tokens, valid, t, RowGenerator(5, rows))
    for i in (0, 7, 15):
        L = int(valid[i].sum())
        one = slice(i, i + 1)
        alone = process().corrupt(tokens[one, :L], valid[one, :L], t[one], RowGenerator(5, rows[one]))
        assert torch.equal(alone[0], whole[i, :L])


def test_pitfall_09_pads_are_never_masked_and_never_scored():
    tokens, valid = batch(500)
    absorbing = process(MaskSchedule(epsilon=0.0))
    noisy = absorbing.corrupt(tokens, valid, torch.ones(500), RowGenerator(0, torch.arange(500)))
    assert (noisy[~valid] == PAD).all()
    assert (noisy[valid] == MASK).all()
    assert torch.equal(absorbing.scored(noisy, valid), valid)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_loss_of_a_token_is_its_weighted_cross_entropy(schedule):
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(20, V + 2, generator=generator), torch.randint(2, V, (20,), generator=generator)
    t = torch.rand(20, generator=generator).clamp(min=1e-3)
    found = process(schedule).token_losses(logits.clone(), targets, torch.full((20,), MASK), t)
    expected = F.cross_entropy(logits[:, 2:V], targets - 2, reduction="none")
    assert torch.allclose(found.nll_M, expected, atol=1e-5)
    assert torch.allclose(found.weighted_M, expected * -schedule.alpha_prime(t) / (1 - schedule.alpha(t)), rtol=1e-3)
    assert torch.equal(found.best_M, logits[:, 2:V].argmax(1) + 2)
    assert torch.allclose(found.log_norm_M, logits[:, 2:V].logsumexp(1), atol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_constant_weighting_counts_every_masked_token_twice_at_all_times(schedule):
    logits, targets = torch.randn(20, V), torch.randint(2, V, (20,))
    t, noisy = torch.linspace(0.01, 1, 20), torch.full((20,), MASK)
    plain = process(schedule)
    constant = AbsorbingConfig(schedule=schedule, loss_weighting="constant").build(
        vocab_size=V, pad_id=PAD, mask_id=MASK
    )
    found, usual = (which.token_losses(logits.clone(), targets, noisy, t) for which in (constant, plain))
    assert torch.equal(found.weighted_M, 2 * found.nll_M)
    assert torch.equal(found.nll_M, usual.nll_M)
    assert not torch.allclose(found.weighted_M, usual.weighted_M)


def test_the_constant_weight_has_the_mean_of_the_elbo_under_the_log_linear_schedule():
    """∫ w(t)(1 − α_t) dt, the weight that a token of a text gets on average, is 1 with both."""
    t, schedule = torch.linspace(1e-4, 1, 100_001, dtype=torch.float64), MaskSchedule()
    masked = schedule.mask_probability(t)
    for weight in (schedule.weight(t), torch.full_like(t, CONSTANT)):
        assert float(torch.trapezoid(weight * masked, t)) == pytest.approx(1, rel=2e-3)


def test_the_likelihood_does_not_depend_on_the_weighting_of_the_loss():
    tokens, valid = batch(8, 3)
    built = [
        AbsorbingConfig(loss_weighting=name).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
        for name in ("elbo", "constant")
    ]
    draws = [
        each.nelbo(_predict_by_pattern, tokens, valid, draws=4, generator=RowGenerator(0, torch.arange(8)))
        for each in built
    ]
    first, second = (vars(each) for each in draws)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_training_times_form_a_comb_from_t_min_to_one():
    times = AbsorbingConfig(t_min=0.2).build(vocab_size=V, pad_id=PAD, mask_id=MASK).times(0.0, torch.arange(4), 4)
    assert torch.allclose(times, torch.tensor([0.2, 0.4, 0.6, 0.8]))


# -- SUBS ----------------------------------------------------------------------------------------------------------


def test_subs_is_a_distribution_that_copies_unmasked_tokens():
    noisy = torch.tensor([MASK, 3, PAD, MASK])
    log_p = process().log_x0(torch.randn(4, V + 3) * 50, noisy)
    assert log_p.dtype == torch.float32
    assert log_p.shape == (4, V)
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(4))
    assert (log_p[[0, 3]][:, [PAD, MASK]] == -torch.inf).all()
    assert log_p[1, 3] == 0
    assert log_p[2, PAD] == 0
    assert not torch.isnan(log_p).any()


def test_subs_accepts_mask_and_pad_ids_outside_the_head():
    log_p = process(mask_id=V + 1, pad_id=V).log_x0(torch.randn(2, V), torch.tensor([V + 1, V]))
    assert torch.allclose(log_p[0].exp().sum(), torch.tensor(1.0))
    assert (log_p[1] == -torch.inf).all()
    assert (forbid_(torch.zeros(1, V), mask_id=V + 1, pad_id=V) == 0).all()


# -- the NELBO -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_nelbo_is_exact_on_an_enumerable_distribution(schedule):
    """E_t w(t) Σ_masked CE is the true entropy when x_θ is the true conditional distribution (the NELBO is tight).

    Two positions, three symbols, every mask pattern and every text enumerated; the integral over t by quadrature.
    """
    g = torch.Generator().manual_seed(0)
    distribution = torch.rand(3, 3, generator=g, dtype=torch.float64) + 0.05
    distribution /= distribution.sum()
    entropy = float(-(distribution * distribution.log()).sum())

    nodes, weights = (torch.tensor(x) for x in _gauss_legendre(400))
    low = 0.0 if schedule.name == "geometric" else 1e-7
    t = low + (1 - low) * (nodes + 1) / 2
    m = 1 - schedule.alpha(t)
    bound = 0.0
    for pattern in itertools.product((False, True), repeat=2):
        probability = torch.ones_like(t)
        for masked in pattern:
            probability = probability * (m if masked else 1 - m)
        loss = 0.0
        for a, b in itertools.product(range(3), repeat=2):
            ce = 0.0
            if pattern[0]:
                ce -= float(
                    torch.log(distribution.sum(1)[a] if pattern[1] else distribution[a, b] / distribution[:, b].sum())
                )
            if pattern[1]:
                ce -= float(
                    torch.log(distribution.sum(0)[b] if pattern[0] else distribution[a, b] / distribution[a].sum())
                )
            loss += float(distribution[a, b]) * ce
        bound += float((weights / 2 * (1 - low) * schedule.weight(t) * probability).sum()) * loss
    # What the schedule leaves out: texts kept at t = 1 (ε) and masked at t = 0 (geometric).
    assert bound == pytest.approx(entropy, rel=3e-3)


def test_the_training_loss_is_unbiased():
    """corrupt and token_losses together estimate −log p of independent tokens; texts without a mask count as 0."""
    B, L = 40_000, 3
    logits_V = torch.tensor([0.0, 0, 0.3, -1.0, 2.0, 0.5, 0.1])
    tokens = torch.tensor([[2, 4, 3]]).expand(B, L)
    valid = torch.ones(B, L, dtype=torch.bool)
    generator = RowGenerator(11, torch.arange(B))
    absorbing = process(MaskSchedule(epsilon=0.0))
    t = generator.uniform(dtype=torch.float64).float().clamp(min=1e-4)
    noisy = absorbing.corrupt(tokens, valid, t, generator)
    scored = absorbing.scored(noisy, valid)
    losses = absorbing.token_losses(
        logits_V.repeat(int(scored.sum()), 1), tokens[scored], noisy[scored], t[:, None].expand(B, L)[scored]
    )
    per_text = torch.zeros(B).index_add(0, scored.nonzero()[:, 0], losses.weighted_M).double()
    truth = float(-F.log_softmax(logits_V[2:], 0)[torch.tensor([0, 2, 1])].sum())
    error = float(per_text.std()) / math.sqrt(B)
    assert abs(float(per_text.mean()) - truth) < 4 * error
    assert error < 0.1 * truth
    assert (scored.sum(1) == 0).any()


def _pattern_table() -> torch.Tensor:
    """(8, 3, V) logits: a distribution for each pattern of masks, of no relation to any joint distribution."""
    return torch.randn(8, 3, V, generator=torch.Generator().manual_seed(0)) * 2


def _predict_by_pattern(noisy, t, scored):
    assert t.dtype == torch.float32
    pattern = ((noisy == MASK) * torch.tensor([1, 2, 4])).sum(1)
    return _pattern_table()[pattern][scored]


@pytest.mark.parametrize("schedule", [*SCHEDULES, MaskSchedule(epsilon=0.2)], ids=lambda s: f"{s.name} {s.epsilon}")
def test_nelbo_draws_are_unbiased_whatever_the_model_and_schedule(schedule):
    """∫ (1/m) E[Σ] dm = Σ over patterns of k masks of (k−1)!(L−k)!/L! · Σ −log p, for any model."""
    text, exact = torch.tensor([3, 5, 2]), 0.0
    for pattern in itertools.product([False, True], repeat=3):
        masked = torch.tensor(pattern)
        if count := sum(pattern):
            logits = _pattern_table()[int((masked * torch.tensor([1, 2, 4])).sum())]
            log_p = F.log_softmax(logits[:, 2:], dim=-1).gather(1, text[:, None] - 2)[:, 0]
            exact -= math.factorial(count - 1) * math.factorial(3 - count) / 6 * float(log_p[masked].sum())
    rows = 4000
    found = process(schedule).nelbo(
        _predict_by_pattern,
        text.expand(rows, -1),
        torch.ones(rows, 3, dtype=torch.bool),
        draws=4,
        generator=RowGenerator(0, torch.arange(rows)),
    )
    each = found.nll_KB.mean(dim=0)
    error = float(each.std() / rows**0.5)
    assert abs(float(each.mean()) - exact) < 4 * error
    assert error < 0.03 * exact
    assert ((found.noise_KB > 0) & (found.noise_KB <= 1)).all()
    assert ((found.noise_KB * 4).ceil().sort(dim=0).values == torch.arange(1, 5)[:, None]).all(), "one draw a quarter"
    assert (found.correct_KB <= found.scored_KB).all()
    assert found.nll_KB.dtype == torch.float64


def test_nelbo_by_mask_ratio_and_by_time_agree():
    """The estimator that every process inherits integrates over t and finds the same value for absorbing diffusion."""
    rows = 4000
    arguments = (_predict_by_pattern, torch.tensor([[3, 5, 2]]).expand(rows, -1), torch.ones(rows, 3, dtype=torch.bool))
    absorbing = process(MaskSchedule(epsilon=0.0))
    results = [
        nelbo(absorbing, *arguments, draws=8, generator=RowGenerator(seed, torch.arange(rows))).nll_KB.mean(dim=0)
        for seed, nelbo in enumerate((Absorbing.nelbo, TextProcess.nelbo))
    ]
    error = math.sqrt(sum(float(each.var()) / rows for each in results))
    assert abs(float(results[0].mean() - results[1].mean())) < 4 * error


def _gauss_legendre(n):
    import numpy as np

    return np.polynomial.legendre.leggauss(n)


# -- the reverse step -------------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.floats(0, 1))
def test_unmask_probability_composes(a, b):
    """Staying masked from t to u and from u to s is staying masked from t to s."""
    alpha_t, alpha_u = (torch.tensor(x, dtype=torch.float64) for x in sorted((a, b)))
    alpha_s = (1 + alpha_u) / 2
    stay = (1 - unmask_probability(alpha_t, alpha_u)) * (1 - unmask_probability(alpha_u, alpha_s))
    assert float(stay) == pytest.approx(float(1 - unmask_probability(alpha_t, alpha_s)), abs=1e-9)
    assert 0 <= float(unmask_probability(alpha_t, alpha_u)) <= 1
    if alpha_t < 1:
        assert float(unmask_probability(alpha_t, torch.tensor(1.0, dtype=torch.float64))) == 1


@given(st.floats(0.01, 0.98), st.floats(0, 1), st.floats(0, 1))
def test_remasking_keeps_the_marginal(alpha_t, gap, eta):
    """Unmasked tokens that stay plus masked ones that are unmasked are the fraction α_s, for every σ ≤ σ_max."""
    alpha_t = torch.tensor(alpha_t, dtype=torch.float64)
    alpha_s = alpha_t + (1 - alpha_t) * gap
    sigma = eta * max_remask_ratio(alpha_t, alpha_s)
    known = alpha_t * (1 - sigma) + (1 - alpha_t) * remask_unmask_probability(alpha_t, alpha_s, sigma)
    assert float(known) == pytest.approx(float(alpha_s), abs=1e-9)
    zero = remask_unmask_probability(alpha_t, alpha_s, torch.zeros_like(sigma))
    assert torch.allclose(zero, unmask_probability(alpha_t, alpha_s))
    most = max_remask_ratio(alpha_t, alpha_s)
    every_mask = remask_unmask_probability(alpha_t, alpha_s, most)
    assert float(every_mask) == pytest.approx(1.0) or float(most) == 1.0, "no larger ratio keeps the marginal"


def test_where_nothing_is_kept_every_token_may_be_masked_again():
    nothing, some = torch.tensor([0.0, 0.0, 1e-3, 1.0]).double(), torch.tensor([0.0, 0.4, 0.4, 1.0]).double()
    assert max_remask_ratio(nothing, some).tolist() == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_a_reverse_step_unmasks_by_the_posterior_and_the_last_leaves_no_mask(schedule):
    count = 60_000
    absorbing, uniform = process(schedule), RowGenerator(0, torch.arange(count)).uniform(2)
    probs = torch.tensor([0.0, 0.0, 0.2, 0.0, 0.5, 0.3, 0.0])

    def step(noisy, t, s):
        times = {"t_M": torch.full((count,), t).double(), "s_M": torch.full((count,), s).double()}
        return absorbing.reverse_step(probs.log().expand(count, -1), noisy, uniform_M2=uniform, **times)

    masks = torch.full((count,), MASK)
    alpha_t, alpha_s = (float(schedule.alpha(torch.tensor(t).double())) for t in (0.8, 0.3))
    unmasked = (alpha_s - alpha_t) / (1 - alpha_t)
    found = torch.bincount(step(masks, 0.8, 0.3), minlength=V) / count
    expected = probs * unmasked + torch.nn.functional.one_hot(torch.tensor(MASK), V) * (1 - unmasked)
    assert torch.allclose(found, expected, atol=0.01)
    assert (step(masks, 0.1, 0.0) != MASK).all()
    assert (step(torch.full((count,), 3), 0.8, 0.0) == 3).all(), "an unmasked token is final"


@pytest.mark.parametrize(
    ("count", "steps", "tolerance"),
    [(30_000, 40, 0.02), pytest.param(1_000_000, 100, 0.006, marks=pytest.mark.slow)],
)
def test_ancestral_samples_follow_the_distribution(table, count, steps, tolerance):
    texts = table(2, "absorbing")
    found = texts.sampled(text_sampler("ancestral", steps=steps), process(vocab_size=5, mask_id=2), count=count)
    assert 0.5 * float((found - texts.p).abs().sum()) < tolerance
    one_step = texts.sampled(text_sampler("ancestral", steps=1), process(vocab_size=5, mask_id=2), count=30_000)
    assert 0.5 * float((one_step - texts.p).abs().sum()) > 5 * tolerance, "words drawn independently of one another"


def test_the_prior_masks_what_is_open():
    tokens = torch.tensor([[2, 3, PAD]])
    noise = process().prior(tokens, torch.tensor([[True, False, False]]), RowGenerator(0, torch.arange(1)))
    assert noise.tolist() == [[MASK, 3, PAD]]


def test_categorical_draws_its_distribution_and_never_an_impossible_id():
    probs = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    u = RowGenerator(0, torch.arange(50_000)).uniform()
    drawn = categorical(probs.expand(50_000, -1), u)
    fraction = torch.bincount(drawn, minlength=6) / 50_000
    assert torch.allclose(fraction, probs, atol=0.01)
    assert fraction[0] == fraction[2] == fraction[5] == 0
    edges = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert categorical(probs.expand(2, -1), edges).tolist() == [1, 4]
    assert categorical(torch.tensor([[0.1] * 10]) * 3, torch.tensor([1.0])).tolist() == [9]
