"""The sampler `uncertainty`: both orders, and importance."""

import torch
from tests.sampling.toys import build, canvas, conforms, context, denoiser, sample

from mm_ldlm.families.atat.sampler import WeighingDenoiser
from mm_ldlm.sampling.registry import text_sampler

# entropies in nats: 1.97, 1.38, 1.20, 0.0
FLAT = [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
FOUR = [0.29, 0.25, 0.24, 0.22, 0, 0, 0, 0]
MIXED = [0.4, 0.4, 0.1, 0.1, 0, 0, 0, 0]
SURE = [1.0, 0, 0, 0, 0, 0, 0, 0]
ROWS = (FOUR, SURE, FLAT, MIXED)


def weighing(importance=None, table=ROWS):
    """A denoiser with these distributions at its positions, and an importance of each."""
    logits_LV = torch.tensor(table, dtype=torch.float64).log().float().clamp_min(-60)
    made = denoiser(lambda tokens_AL, t_A, rows_A: logits_LV[: tokens_AL.shape[1]].expand(len(tokens_AL), -1, -1))
    if importance is None:
        return made
    values_L = torch.tensor(importance)
    return WeighingDenoiser(logits=made.logits, importance=lambda tokens_AL, t_A: values_L.expand(len(tokens_AL), -1))


def order(denoise, **settings):
    """The positions in the order in which they are unmasked, one a step."""
    found = sample("uncertainty", denoise, canvas(4), steps=4, **settings)
    assert sorted(found.steps[0].tolist()) == [0, 1, 2, 3]
    return found.steps[0].argsort().tolist()


def test_the_most_certain_or_the_most_uncertain_tokens_come_first():
    assert order(weighing()) == [1, 3, 0, 2]
    assert order(weighing(), order="uncertain_first") == [2, 0, 3, 1]


def test_importance_multiplies_the_uncertainty():
    assert order(weighing([0.1, 1.0, 0.5, 1.0])) == [1, 0, 2, 3]
    assert order(weighing([0.1, 1.0, 0.5, 1.0]), order="uncertain_first") == [3, 2, 0, 1]
    assert order(weighing([0.3] * 4)) == order(weighing())


def test_importance_is_that_of_the_text_and_leaves_the_sampler_as_promised():
    plain = context()
    denoise = WeighingDenoiser(
        logits=plain.logits,
        importance=lambda tokens_AL, t_A: (tokens_AL.cumsum(1) % 11 + 1) / 12 * t_A[:, None].clamp_min(0.1),
    )
    conforms(text_sampler("uncertainty", order="uncertain_first"), denoise, build())


def test_without_importance_it_is_the_sampler_entropy():
    tokens_BL, denoise = canvas(12, 5, 9), context(timed=True)
    entropy_order = sample("entropy", denoise, tokens_BL, steps=5)
    found = sample("uncertainty", denoise, tokens_BL, steps=5)
    assert torch.equal(found.tokens, entropy_order.tokens)
    assert torch.equal(found.steps, entropy_order.steps)
