"""ReMDM against enumerated distributions; the mask ratio follows the schedule while tokens are masked again."""

import itertools
from typing import Any

import pytest
import torch
from tests.sampling.toys import MASK, Exact, agrees, build, canvas, context, denoiser, sample

from mm_ldlm.core import ConfigurationError
from mm_ldlm.diffusion.masked import max_remask_ratio, remask_unmask_probability
from mm_ldlm.sampling.registry import text_sampler

EXACT = Exact(torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64))
KINDS = ["remdm_cap", "remdm_rescale", "remdm_conf", "remdm_loop"]


def watched(length: int, words: tuple[float, ...] = (0.5, 0.3, 0.2)) -> tuple[Any, list[Any]]:
    """A denoiser of these words, and the canvases of 500 texts that it sees; finished texts have word −1."""
    seen: list[Any] = []
    log_probs_V = torch.tensor([*words, *[1e-30] * (8 - len(words))]).log()

    def logits(tokens_AL: Any, t_A: Any, rows_A: Any) -> Any:
        seen.append(torch.full((500, length), -1).index_copy(0, rows_A, tokens_AL))
        return log_probs_V.expand(*tokens_AL.shape, 8)

    return denoiser(logits), seen


def returned(before: Any, after: Any, word: int | None = None) -> int:
    """The number of words that are masked again from one canvas to the next."""
    return int(((before == word if word is not None else before < MASK) & (before >= 0) & (after == MASK)).sum())


def compare_with_enumeration(kind: str, steps: int, count: int, eta: float) -> None:
    alpha = build().mask_schedule.alpha(torch.linspace(1, 0, steps + 1).double())
    largest = max_remask_ratio(alpha[:-1], alpha[1:])
    sigma = largest.clamp_max(eta) if kind == "remdm_cap" else eta * largest
    unmask = remask_unmask_probability(alpha[:-1], alpha[1:], sigma)
    sigma[-1], unmask[-1] = 0.0, 1.0
    expected = EXACT.after(steps, unmask=lambda step: float(unmask[step]), remask=lambda step: float(sigma[step]))
    made = sample(kind, EXACT.denoiser(), canvas(*[2] * count), steps=steps, eta=eta)
    agrees(EXACT.frequencies(made.tokens), expected, count=count)


@pytest.mark.parametrize(("kind", "eta"), [("remdm_cap", 0.3), ("remdm_cap", 1.0), ("remdm_rescale", 0.6)])
def test_samples_have_the_enumerated_distribution(kind: str, eta: float) -> None:
    compare_with_enumeration(kind, steps=4, count=20_000, eta=eta)


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
@pytest.mark.parametrize(("kind", "eta"), [("remdm_cap", 0.2), ("remdm_rescale", 1.0)])
def test_the_mask_ratio_stays_that_of_the_schedule(kind: str, eta: float, schedule: str) -> None:
    steps, count, length = 10, 500, 30
    denoise, seen = watched(length)
    sample(kind, denoise, canvas(*[length] * count), steps=steps, schedule=schedule, eta=eta)
    alpha = build(schedule=schedule).mask_schedule.alpha(torch.linspace(1, 0, steps + 1).double())[:-1]
    expected = (1 - alpha) / (1 - alpha[0])
    found = torch.tensor([float((tokens == MASK).sum()) for tokens in seen]) / (count * length)
    # the tokens of a text are not independent: allow more than the standard errors of independent ones
    agrees(found, expected, count=count * length, errors=7)


def test_loop_holds_the_mask_ratio_and_masks_again_between_its_two_times_only() -> None:
    steps, count, length, t_on, t_off = 20, 500, 30, 0.75, 0.25
    denoise, seen = watched(length)
    sample("remdm_loop", denoise, canvas(*[length] * count), steps=steps, eta=0.3, t_on=t_on, t_off=t_off, alpha_on=0.8)
    inside = [step for step in range(steps) if t_off < 1 - step / steps <= t_on]
    ratios = torch.tensor([float((tokens == MASK).sum()) for tokens in seen]) / (count * length)
    assert (ratios[inside[1:]] - 0.2).abs().max() < 0.02
    assert ratios[0] == 1
    again = [step for step, pair in enumerate(itertools.pairwise(seen)) if returned(*pair)]
    assert again == inside


@pytest.mark.parametrize("length", [40, 80])
def test_confidence_decides_which_token_of_a_text_returns(length: int) -> None:
    """Uncertain tokens return up to e times as often as certain ones; on average one of a text where σ_max is 1."""
    denoise, seen = watched(length + 30, words=(0.98, 0.02))
    sample("remdm_conf", denoise, canvas(*[length] * 400, width=length + 30), steps=8)  # pads have no part in it
    rates = [
        sum(returned(before, after, word) for before, after in itertools.pairwise(seen))
        / sum(int((before == word).sum()) for before in seen[:-1])
        for word in (0, 1)
    ]
    assert 1.5 < rates[1] / rates[0] < 3.5
    alpha = build().mask_schedule.alpha(torch.linspace(1, 0, 9).double())
    largest = max_remask_ratio(alpha[:-1], alpha[1:])[1:-1]  # nothing is written before the first step
    again = torch.tensor([float(returned(*pair)) for pair in itertools.pairwise(seen)])[1:]
    assert ((again / 400 - largest).abs() < 5 * (largest / 400).sqrt()).all()


@pytest.mark.parametrize("kind", ["remdm_cap", "remdm_rescale", "remdm_conf"])
def test_without_remasking_it_is_ancestral_sampling(kind: str) -> None:
    tokens_BL = canvas(9, 5, 7)
    tokens_BL[0, :4] = 3
    for how in ({"timestep": "schedule"}, {"timestep": "mask_ratio", "skip_idle": True}):
        plain = sample("ancestral", context(timed=True), tokens_BL, steps=16, **how)
        made = sample(kind, context(timed=True), tokens_BL, steps=16, eta=0.0, **how)
        whole = torch.tensor([1, 2])  # of a text with given tokens, ReMDM stretches the schedule to its masks
        assert torch.equal(made.tokens[whole], plain.tokens[whole])
        assert torch.equal(made.calls_per_row[whole], plain.calls_per_row[whole])


def test_a_probability_above_1_and_times_in_the_wrong_order_are_refused() -> None:
    for wrong in ({"kind": "remdm_conf", "eta": 1.1}, {"kind": "remdm_loop", "t_on": 0.2, "t_off": 0.2}):
        with pytest.raises(ConfigurationError):
            text_sampler(**wrong)
