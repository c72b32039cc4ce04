"""The noise on uncertainties is Gumbel noise: the most uncertain token has the probability of a softmax."""

from __future__ import annotations

import pytest
import torch
from mm_ldlm.sampling.uncertainty import Draft, least_certain, uncertainties

from mm_ldlm.diffusion.random import RowGenerator


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_the_first_token_follows_the_softmax_of_the_uncertainties(noise: float) -> None:
    """argmax(u + noise·G) has the distribution softmax(u/noise) for Gumbel noise G, and for no other sign of it."""
    rows, uncertainty = 20_000, torch.tensor([0.2, 1.0, 2.5, 0.0])
    writable = torch.tensor([True, True, True, False]).expand(rows, -1)
    draft = Draft(torch.zeros(rows, 4, dtype=torch.long), -uncertainty.expand(rows, -1), writable)
    generator = RowGenerator(3, torch.arange(rows))
    first = uncertainties(draft, noise=noise, generator=generator).argmax(dim=1)
    found = torch.bincount(first, minlength=4) / rows
    expected = torch.softmax(uncertainty[:3] / noise, dim=0)
    assert found[:3].tolist() == pytest.approx(expected.tolist(), abs=0.015)
    assert found[3] == 0, "a given token is never rewritten"


def test_without_noise_the_least_certain_are_taken() -> None:
    draft = Draft(
        torch.zeros(1, 4, dtype=torch.long), -torch.tensor([[0.2, 1.0, 2.5, 9.0]]), torch.tensor([[True] * 3 + [False]])
    )
    for fraction, expected in ((0.01, [2]), (0.34, [2]), (0.6, [1, 2]), (1.0, [0, 1, 2])):
        again = least_certain(draft, fraction=fraction, noise=0.0, generator=RowGenerator(0, torch.arange(1)))
        assert again[0].nonzero().squeeze(1).tolist() == expected, fraction
