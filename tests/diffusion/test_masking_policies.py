"""Mask probabilities and weights of adaptive masking: expected mask ratio, derivatives, the bound by enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.atat.masking_policies import LOWEST, MaskingPolicy, mask_rates, sharpen

POLICIES: tuple[Any, ...] = get_args(MaskingPolicy)
SCHEDULES = [MaskSchedule(name="log_linear"), MaskSchedule(name="cosine"), MaskSchedule(name="geometric")]


def importances(count: int = 50, length: int = 12) -> tuple[Tensor, Tensor]:
    """Importance (B, L), from flat to extreme, and the valid positions of texts of 1 to L tokens."""
    generator = torch.Generator().manual_seed(1)
    spread_B1 = torch.logspace(-1, 1, count)[:, None]
    importance_BL = torch.sigmoid(torch.randn(count, length, generator=generator) * spread_B1)
    lengths_B1 = torch.randint(1, length + 1, (count, 1), generator=generator)
    return importance_BL, torch.arange(length) < lengths_B1


def rates(policy: Any, importance_BL: Tensor, valid_BL: Tensor, t_B: Tensor, **keys: Any) -> Any:
    return mask_rates(policy, importance_BL, valid_BL, t_B, **{"schedule": SCHEDULES[0], **keys})


@pytest.mark.parametrize("sharpened", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_pitfall_21_the_expected_mask_ratio_of_balanced_masking_is_the_schedules(schedule, sharpened):
    importance_BL, valid_BL = importances()
    for t in (1e-3, 0.02, 0.3, 0.5, 0.9, 1.0):
        t_B = torch.full((len(importance_BL),), t)
        found = rates("balanced", importance_BL, valid_BL, t_B, schedule=schedule, time_sharpening=sharpened)
        ratio_B = found.probability_BL.sum(1) / valid_BL.sum(1)
        torch.testing.assert_close(ratio_B, schedule.mask_probability(t_B.double()), rtol=1e-9, atol=0)
        assert float(found.probability_BL.min()) >= 0
        assert float(found.probability_BL.max()) <= 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(1e-3, 1))
@settings(max_examples=100, deadline=None)
def test_balanced_masking_keeps_the_order_and_the_sum_for_any_importance(values, t):
    importance_BL = torch.tensor([values])
    found = rates("balanced", importance_BL, torch.ones_like(importance_BL, dtype=torch.bool), torch.tensor([t]))
    assert float(found.probability_BL.sum()) == pytest.approx(len(values) * (1 - 1e-3) * t, rel=1e-5)
    assert bool(torch.isfinite(found.weight_BL).all())
    order = importance_BL[0].argsort()
    assert bool((found.probability_BL[0][order].diff() >= -1e-9).all())


@pytest.mark.parametrize("sharpened", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_weight_is_that_of_each_tokens_own_schedule(policy, schedule, sharpened):
    """w = ρ'/ρ, by central differences in t; where a token is held at 1 the weight is 0."""
    importance_BL, valid_BL = importances(length=6)
    keys = {"schedule": schedule, "time_sharpening": sharpened, "temperature": 1.7}
    compared = 0
    for t in (0.05, 0.2, 0.5, 0.8):
        h = 1e-6
        before, now, after = (
            rates(policy, importance_BL, valid_BL, torch.full((len(valid_BL),), t + d, dtype=torch.float64), **keys)
            for d in (-h, 0.0, h)
        )
        growth_BL = (after.probability_BL - before.probability_BL) / (2 * h) / now.probability_BL
        kink_BL = (before.weight_BL == 0) ^ (after.weight_BL == 0)
        chosen_BL = valid_BL & ~kink_BL.any(1, keepdim=True)
        torch.testing.assert_close(now.weight_BL[chosen_BL], growth_BL[chosen_BL], rtol=1e-4, atol=1e-5)
        compared += int(chosen_BL.sum())
    assert compared > 0.9 * 4 * int(valid_BL.sum())


def test_the_policies_are_as_defined():
    importance_BL, t_B = torch.tensor([[0.2, 0.5, 0.9]]), torch.tensor([0.5], dtype=torch.float64)
    valid_BL = torch.ones_like(importance_BL, dtype=torch.bool)
    r, s_L = (1 - 1e-3) * 0.5, importance_BL[0].double() ** (1 / 0.6)
    torch.testing.assert_close(sharpen(importance_BL, t_B)[0], s_L)

    def found(policy: Any, **keys: Any) -> Tensor:
        return rates(policy, importance_BL, valid_BL, t_B, **keys).probability_BL[0]

    torch.testing.assert_close(found("uniform"), torch.full((3,), r, dtype=torch.float64))
    torch.testing.assert_close(found("importance"), r * s_L)
    torch.testing.assert_close(found("importance", temperature=2.0), r * s_L**0.5)
    torch.testing.assert_close(found("importance", time_sharpening=False), r * importance_BL[0].double())
    torch.testing.assert_close(found("inverse"), r * (1 - s_L))
    torch.testing.assert_close(found("inverse", temperature=2.0), r * (1 - s_L) ** 0.5)
    # 3·r·s/Σs is 1.06 for the last token, which is held at 1: the others share what is left in proportion to s
    rest = (3 * r - 1) / float(s_L[:2].sum())
    torch.testing.assert_close(found("balanced"), torch.tensor([rest * s_L[0], rest * s_L[1], 1.0]).double())


def test_what_is_not_valid_is_never_masked_and_weighs_nothing():
    importance_BL, valid_BL = importances()
    valid_BL[3] = False
    for policy in POLICIES:
        found = rates(policy, importance_BL, valid_BL, torch.rand(len(valid_BL)).clamp_min(1e-3))
        assert not found.probability_BL[~valid_BL].any()
        assert not found.weight_BL[~valid_BL].any()
        assert bool(torch.isfinite(found.weight_BL).all())


# -- the bound ---------------------------------------------------------------------------------------------------------

WORDS, N = 3, 3
TEXTS = list(itertools.product(range(WORDS), repeat=N))


def joint() -> Tensor:
    weights = torch.rand(len(TEXTS), generator=torch.Generator().manual_seed(0), dtype=torch.float64).pow(3) + 0.01
    return (weights / weights.sum()).view(*[WORDS] * N)


def nll_of_masked(text: tuple[int, ...], masked: tuple[int, ...]) -> float:
    """−log p(masked tokens | the others)."""
    kept = joint()[tuple(slice(None) if place in masked else word for place, word in enumerate(text))]
    return float(torch.log(kept.sum()) - torch.log(joint()[text]))


def cross_entropy(text: tuple[int, ...], masked: tuple[int, ...], place: int) -> float:
    """−log p(token at `place` | unmasked tokens)."""
    return nll_of_masked(text, masked) - nll_of_masked(text, tuple(x for x in masked if x != place))


def importance_of(text: tuple[int, ...]) -> Tensor:
    """An importance that depends on the token, its place and its neighbours."""
    return torch.tensor([[0.1 + 0.25 * word + 0.1 * place + 0.05 * text[place - 1] for place, word in enumerate(text)]])


PATTERNS = [pattern for n in range(N + 1) for pattern in itertools.combinations(range(N), n)]


def probability_of(pattern: tuple[int, ...], rho_TL: Tensor) -> Tensor:
    inside = torch.tensor([place in pattern for place in range(N)])
    return torch.where(inside, rho_TL, 1 - rho_TL).prod(dim=1)


@pytest.mark.parametrize("sharpened", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_bound_of_the_optimal_denoiser_is_exact_for_every_text(policy, sharpened):
    """∫ dt Σ over patterns P(pattern) Σ over masked tokens of w_l(t)·CE_l is F(ρ(1)), text by text, by quadrature.

    For policies that mask everything at t = 1 it is −log p(text): the weights of single tokens leave no bias.
    """
    schedule, points = MaskSchedule(epsilon=0.0), 20_000
    t_T = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    for text in TEXTS[::4]:
        both = rates(
            policy, importance_of(text).expand(points, -1), torch.ones(points, N, dtype=torch.bool), t_T,
            schedule=schedule, time_sharpening=sharpened,
        )  # fmt: skip
        bound = 0.0
        for pattern in PATTERNS:
            for place in pattern:
                ce = cross_entropy(text, pattern, place)
                bound += float((probability_of(pattern, both.probability_BL) * both.weight_BL[:, place]).mean()) * ce
        end_1L = rates(
            policy, importance_of(text), torch.ones(1, N, dtype=torch.bool), torch.ones(1).double(),
            schedule=schedule, time_sharpening=sharpened,
        ).probability_BL  # fmt: skip
        expected = sum(float(probability_of(p, end_1L)) * nll_of_masked(text, p) for p in PATTERNS)
        assert bound == pytest.approx(expected, rel=2e-3), text
        whole = -math.log(float(joint()[text]))
        if policy in ("uniform", "balanced"):
            assert expected == pytest.approx(whole, rel=1e-9)
        else:
            assert expected < 0.97 * whole


def test_one_weight_for_all_tokens_would_be_biased():
    """The fault that the test above exists for: balanced masks with the schedule's weight 1/t."""
    points = 4000
    t_T = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    gaps = []
    for text in TEXTS[::4]:
        both = rates("balanced", importance_of(text).expand(points, -1), torch.ones(points, N, dtype=torch.bool), t_T)
        bound = sum(
            float((probability_of(pattern, both.probability_BL) / t_T).mean()) * cross_entropy(text, pattern, place)
            for pattern in PATTERNS for place in pattern
        )  # fmt: skip
        gaps.append(abs(bound / -math.log(float(joint()[text])) - 1))
    assert max(gaps) > 0.05


def test_every_token_can_be_masked_however_small_its_importance():
    assert float(sharpen(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0])).min()) == pytest.approx(LOWEST ** (1 / 1.1))


def test_the_lowest_and_the_highest_importance_are_a_thousandth_from_the_ends():
    """So that every token is masked at times, and every token is kept at times."""
    importance, t = torch.tensor([[0.0, 1e-3, 0.5, 0.999, 1.0]]), torch.tensor([0.9])
    torch.testing.assert_close(sharpen(importance, t), torch.tensor([[1e-3, 1e-3, 0.5, 0.999, 0.999]]))
    valid = torch.ones_like(importance, dtype=torch.bool)
    ratio = float(SCHEDULES[0].mask_probability(t.double()))
    expected = torch.tensor([[1e-3, 1e-3, 0.5, 0.999, 0.999]]).double()
    for policy, share in (("importance", expected), ("inverse", 1 - expected)):
        found = rates(policy, importance, valid, t, time_sharpening=False)
        torch.testing.assert_close(found.probability_BL, ratio * share, rtol=1e-4, atol=0)
