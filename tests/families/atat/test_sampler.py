"""The sampler `uncertainty`: measures, both orders, importance, and steps that adapt to the text."""

import pytest
import torch
from tests.sampling.toys import build, canvas, conforms, context, denoiser, sample

from mm_ldlm.families.atat.sampler import WeighingDenoiser
from mm_ldlm.sampling.denoising import Prediction
from mm_ldlm.sampling.registry import text_sampler

# by entropy (nats): 1.97, 1.38, 1.20, 0.0; by 1 − max p: 0.70, 0.71, 0.60, 0.0; by 1 − Σp²: 0.81, 0.74, 0.68, 0.0
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


@pytest.mark.parametrize(
    ("measure", "expected"), [("entropy", [1, 3, 0, 2]), ("variance", [1, 3, 0, 2]), ("max_probability", [1, 3, 2, 0])]
)
def test_the_most_certain_or_the_most_uncertain_tokens_come_first(measure, expected):
    assert order(weighing(), measure=measure) == expected
    assert order(weighing(), measure=measure, order="uncertain_first") == expected[::-1]


def test_the_measures_are_as_defined():
    p = torch.tensor(ROWS, dtype=torch.float64)
    log_probs = p.log().float()
    prediction = Prediction(
        torch.ones(1, 4, dtype=torch.bool), log_probs, torch.zeros(4, dtype=torch.long), torch.arange(1), torch.ones(1)
    )
    expected = {
        "entropy": torch.special.entr(p).sum(1), "variance": 1 - p.square().sum(1), "max_probability": 1 - p.amax(1)
    }  # fmt: skip
    for measure, values in expected.items():
        found = text_sampler("uncertainty", measure=measure).uncertainty(prediction)[0]
        torch.testing.assert_close(found.double(), values, rtol=1e-5, atol=1e-6)


def test_importance_multiplies_the_uncertainty():
    assert order(weighing([0.1, 1.0, 0.5, 1.0])) == [1, 0, 2, 3]
    assert order(weighing([0.1, 1.0, 0.5, 1.0]), order="uncertain_first") == [3, 2, 0, 1]
    assert order(weighing([0.3] * 4)) == order(weighing())


def test_importance_is_that_of_the_text_and_leaves_the_sampler_as_promised():
    plain = context()
    denoise = WeighingDenoiser(
        logits=plain.logits,
        importance=lambda tokens_AL, t_A: ((tokens_AL.cumsum(1) % 11 + 1) * 40 * t_A[:, None]).sin().square(),
    )
    conforms(text_sampler("uncertainty", order="uncertain_first"), denoise, build())


def test_without_importance_it_is_the_sampler_entropy():
    tokens_BL, denoise = canvas(12, 5, 9), context(timed=True)
    entropy_order = sample("entropy", denoise, tokens_BL, steps=5)
    found = sample("uncertainty", denoise, tokens_BL, steps=5)
    assert torch.equal(found.tokens, entropy_order.tokens)
    assert torch.equal(found.steps, entropy_order.steps)


def test_the_number_of_calls_adapts_to_the_text():
    """Certain tokens are kept at once, and a text that is ahead of the count schedule skips steps."""
    easy, hard = [SURE] * 8, [FLAT] * 8
    for table, adaptive in ((easy, 1), (hard, 8)):
        plain, quick = (
            sample("uncertainty", weighing(table=table), canvas(8), steps=8, measure="max_probability", certain=certain)
            for certain in (None, 0.0)
        )
        assert int(plain.calls_per_row[0]) == 8
        assert int(quick.calls_per_row[0]) == adaptive
    half = sample("uncertainty", weighing(table=[SURE] * 4 + [FLAT] * 4), canvas(8), steps=8, certain=0.5)
    assert int(half.calls_per_row[0]) == 5
    assert (half.tokens < 8).all()


def test_certain_compares_the_uncertainty_without_importance():
    low = sample("uncertainty", weighing([0.01] * 4), canvas(4), steps=4, certain=0.5)
    assert int(low.calls_per_row[0]) == 4  # only the position of entropy 0 is certain, and it is the first one anyway
