"""Uncertain tokens, and texts that are lengthened or shortened there."""

from __future__ import annotations

import pytest
import torch
from mm_ldlm.sampling.uncertainty import Draft, least_certain, resized

MASK, PAD = 8, 9
LOG_PROBS = torch.tensor([[-1.0, -5.0, -2.0, 0.0, -9.0]])
WRITABLE = torch.tensor([[True, True, True, True, False]])


def draft(text, log_probs=None, writable=None):
    tokens = torch.tensor([text])
    log_probs = torch.zeros(tokens.shape) - 0.1 if log_probs is None else torch.tensor([log_probs])
    return Draft(tokens, log_probs, tokens != PAD if writable is None else torch.tensor([writable]))


def many(one, count):
    return Draft(*(part.expand(count, -1) for part in one))


def sized(one, rows, count=400, fraction=0.5, noise=0.0):
    return resized(many(one, count), fraction=fraction, noise=noise, mask_id=MASK, pad_id=PAD, generator=rows(count))


def test_least_certain_takes_the_lowest_and_never_a_given_one(rows):
    one = Draft(torch.zeros(1, 5, dtype=torch.long), LOG_PROBS, WRITABLE)
    chosen = least_certain(one, fraction=0.5, noise=0.0, generator=rows(1))
    assert chosen[0].tolist() == [False, True, True, False, False]
    assert least_certain(one, fraction=0.0, noise=0.0, generator=rows(1)).sum() == 1
    nothing = one._replace(writable_TL=torch.zeros_like(WRITABLE))
    assert least_certain(nothing, fraction=0.5, noise=1.0, generator=rows(1)).sum() == 0


@pytest.mark.parametrize(
    ("fraction", "count"), [(0.1, 1), (0.35, 1), (0.4, 2), (0.6, 2), (0.65, 3), (0.9, 4), (1.0, 4)]
)
def test_the_nearest_whole_number_of_tokens_is_chosen(fraction, count, rows):
    one = Draft(torch.zeros(1, 5, dtype=torch.long), LOG_PROBS, WRITABLE)
    assert int(least_certain(one, fraction=fraction, noise=0.0, generator=rows(1)).sum()) == count


def test_half_of_the_fraction_shrinks_and_half_grows_at_the_most_uncertain_token(rows):
    got = sized(draft([1, 2, 2, 3, PAD, PAD], [-0.1, -0.1, -3.0, -0.2, 0.0, 0.0]), rows)
    texts = [tuple(row) for row in got.tokens_TL.tolist()]
    shorter, longer, same = (1, 2, 3, PAD, PAD, PAD), (1, 2, 2, MASK, 3, PAD), (1, 2, 2, 3, PAD, PAD)
    assert set(texts) == {shorter, longer, same}
    assert 70 <= texts.count(shorter) <= 130
    assert 70 <= texts.count(longer) <= 130
    assert torch.equal(got.writable_TL, got.tokens_TL != PAD)
    grown = got.log_probs_TL[texts.index(longer)]
    assert grown.tolist() == [-0.10000000149011612, -0.10000000149011612, -3.0, -torch.inf, -0.20000000298023224, 0.0]
    again = least_certain(got, fraction=0.0, noise=1.0, generator=rows(400))
    assert torch.equal(again[texts.index(longer)].nonzero().flatten(), torch.tensor([3]))  # the new one is written


def test_what_cannot_change_its_length_keeps_it(rows):
    for one in (
        draft([1, 7, 2, PAD], writable=[True, False, True, False]),  # a given token
        draft([PAD, PAD, PAD, PAD]),
    ):
        assert torch.equal(sized(one, rows, fraction=1.0).tokens_TL, one.tokens_TL.expand(400, -1))
    full = sized(draft([1, 2, 3, 4]), rows, fraction=1.0).tokens_TL
    assert {int((row != PAD).sum()) for row in full} == {3, 4}
    assert {tuple(row) for row in full.tolist() if row[-1] != PAD} == {(1, 2, 3, 4)}  # no room to grow
    single = sized(draft([1, PAD, PAD]), rows, fraction=1.0).tokens_TL
    assert {int((row != PAD).sum()) for row in single} == {1, 2}  # never empty
