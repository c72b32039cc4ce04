"""Absorbing diffusion: SUBS, weights of the loss, and the probabilities of unmasking and remasking."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.diffusion.enumeration import TEXTS, VOCABULARY, V
from torch.nn import functional as F

from mm_ldlm.diffusion.masked import (
    CONSTANT,
    AbsorbingConfig,
    max_remask_ratio,
    remask_unmask_probability,
    unmask_probability,
)
from mm_ldlm.diffusion.process import TextProcess, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import Cosine, Geometric, LogLinear, MaskSchedule

PAD, MASK = VOCABULARY.pad_id, VOCABULARY.mask_id


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Geometric()], ids=lambda schedule: schedule.kind)
def test_the_loss_of_a_token_is_its_weighted_cross_entropy(schedule: MaskSchedule) -> None:
    logits, targets, t_M = torch.randn(20, V + 2), torch.randint(1, 5, (20,)), torch.rand(20).clamp(min=1e-3)
    masks_M, expected_M = torch.full((20,), MASK), F.cross_entropy(logits[:, 1:5], targets - 1, reduction="none")
    weights = {"elbo": -schedule.alpha_prime(t_M) / (1 - schedule.alpha(t_M)), "constant": CONSTANT}
    for weighting, weight_M in weights.items():
        process = AbsorbingConfig(schedule=schedule, loss_weighting=weighting).build(VOCABULARY)  # type: ignore[arg-type]
        found = process.token_losses(logits.clone(), targets, masks_M, t_M)
        torch.testing.assert_close(found.nll_M, expected_M)
        torch.testing.assert_close(found.weighted_M, expected_M * weight_M, rtol=1e-3, atol=1e-6)
        assert torch.equal(found.best_M, logits[:, 1:5].argmax(1) + 1)
        torch.testing.assert_close(found.log_norm_M, logits[:, 1:5].logsumexp(1))
        assert float(process.alpha(torch.zeros(()))) == 1, "the last step leaves no mask"


def test_both_weightings_have_the_same_mean_under_the_log_linear_schedule() -> None:
    """∫ w(t)(1 − α_t) dt, the weight that a token of a text gets on average, is 1 with both."""
    t, schedule = torch.linspace(1e-4, 1, 100_001, dtype=torch.float64), LogLinear()
    for weight in (schedule.weight(t), torch.full_like(t, CONSTANT)):
        assert float(torch.trapezoid(weight * schedule.mask_probability(t), t)) == pytest.approx(1, rel=2e-3)


def test_pitfall_11_subs_copies_unmasked_tokens_and_forbids_what_is_no_word() -> None:
    noisy_M = torch.tensor([MASK, 3, PAD, MASK])
    log_p = AbsorbingConfig().build(VOCABULARY).log_x0(torch.randn(4, V + 3) * 50, noisy_M)
    assert (log_p.dtype, log_p.shape) == (torch.float32, (4, V))
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(4))
    assert bool((log_p[[0, 3]][:, [PAD, MASK]] == -torch.inf).all())
    assert [float(log_p[1, 3]), float(log_p[2, PAD])] == [0, 0]
    outside = AbsorbingConfig().build(Vocabulary(vocab_size=V, pad_id=V, mask_id=V + 1))
    found = outside.log_x0(torch.zeros(2, V), torch.tensor([V + 1, V]))
    torch.testing.assert_close(found[0].exp(), torch.full((V,), 1 / V))
    assert bool((found[1] == -torch.inf).all())


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_the_bound_by_mask_ratio_is_the_integral_over_time_of_any_model(epsilon: float) -> None:
    """Also where the schedule keeps a fraction ε: the bound itself does not depend on the schedule."""
    copies, rows = 2000, RowGenerator(0, torch.arange(2000 * len(TEXTS)))
    table, tokens_BL, times_KB = torch.randn(V, V, 2, V) * 2, TEXTS.repeat(copies, 1), list[torch.Tensor]()

    def predict(noisy_BL: torch.Tensor, t_B: torch.Tensor, scored_BL: torch.Tensor) -> torch.Tensor:
        times_KB.append(t_B)
        return table[noisy_BL[:, 0], noisy_BL[:, 1]][scored_BL]

    by_ratio = AbsorbingConfig(schedule=LogLinear(epsilon=epsilon)).build(VOCABULARY)
    by_time = AbsorbingConfig(schedule=LogLinear(epsilon=0.0)).build(VOCABULARY)
    found = [
        nelbo(process, predict, tokens_BL, tokens_BL > 0, draws=4, generator=rows.fork(process.schedule.epsilon))
        for process, nelbo in ((by_ratio, type(by_ratio).nelbo), (by_time, TextProcess.nelbo))
    ]
    ratios_KB = found[0].mask_ratio_KB
    torch.testing.assert_close(torch.stack(times_KB[:4]), by_ratio.schedule.time_of_mask_ratio(ratios_KB).float())
    means = [each.nll_KB.mean(0) for each in found]
    error = sum(float(mean.var()) / len(mean) for mean in means) ** 0.5
    assert float(means[0].mean()) == pytest.approx(float(means[1].mean()), abs=4 * error)
    assert error < 0.02 * float(means[0].mean())


@given(st.floats(0, 1), st.floats(0, 1))
def test_unmasking_composes(a: float, b: float) -> None:
    """Staying masked from t to u and from u to s is staying masked from t to s."""
    alpha_t, alpha_u = (torch.tensor(x, dtype=torch.float64) for x in sorted((a, b)))
    alpha_s = (1 + alpha_u) / 2
    stay = (1 - unmask_probability(alpha_t, alpha_u)) * (1 - unmask_probability(alpha_u, alpha_s))
    assert float(stay) == pytest.approx(float(1 - unmask_probability(alpha_t, alpha_s)), abs=1e-9)
    assert 0 <= float(unmask_probability(alpha_t, alpha_u)) <= 1
    if alpha_t < 1:
        assert float(unmask_probability(alpha_t, torch.tensor(1.0, dtype=torch.float64))) == 1


@given(st.floats(0.01, 0.98), st.floats(0, 1), st.floats(0, 1))
def test_remasking_keeps_the_marginal(kept: float, gap: float, eta: float) -> None:
    """Unmasked tokens that stay plus masked ones that are unmasked are the fraction α_s, for every σ ≤ σ_max."""
    alpha_t = torch.tensor(kept, dtype=torch.float64)
    alpha_s = alpha_t + (1 - alpha_t) * gap
    most = max_remask_ratio(alpha_t, alpha_s)
    known = alpha_t * (1 - eta * most) + (1 - alpha_t) * remask_unmask_probability(alpha_t, alpha_s, eta * most)
    assert float(known) == pytest.approx(float(alpha_s), abs=1e-9)
    zero = remask_unmask_probability(alpha_t, alpha_s, torch.zeros_like(most))
    assert torch.allclose(zero, unmask_probability(alpha_t, alpha_s))
    every_mask = remask_unmask_probability(alpha_t, alpha_s, most)
    assert float(every_mask) == pytest.approx(1.0) or float(most) == 1.0, "no larger ratio keeps the marginal"


def test_where_nothing_is_kept_every_token_may_be_masked_again() -> None:
    nothing, some = torch.tensor([0.0, 0.0, 1e-3, 1.0]).double(), torch.tensor([0.0, 0.4, 0.4, 1.0]).double()
    assert max_remask_ratio(nothing, some).tolist() == [1.0, 1.0, 1.0, 0.0]
