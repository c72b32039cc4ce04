"""Draws of the NELBO: the time that the model receives with a masked text, and noise of its own for every draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_traits import IDS, STORES
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.absorbing import Absorbing
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import MaskSchedule


@pytest.mark.parametrize("name", ["log_linear", "cosine", "geometric"])
def test_the_bound_asks_at_the_time_of_its_mask_ratio(name: Any) -> None:
    schedule = MaskSchedule(name=name, epsilon=0.0)
    process = Absorbing(schedule=schedule, t_min=1e-3, vocab_size=6, pad_id=4, mask_id=5)
    asked: list[Tensor] = []

    def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        asked.append(t_B)
        return torch.zeros(int(scored_BL.sum()), 6)

    tokens = torch.zeros(50, 3, dtype=torch.long)
    found = process.nelbo(
        predict, tokens, torch.ones_like(tokens, dtype=torch.bool), draws=4, generator=RowGenerator(0, torch.arange(50))
    )
    expected = schedule.time_of_mask_ratio(found.noise_KB)
    torch.testing.assert_close(torch.stack(asked), expected.float())
    torch.testing.assert_close(schedule.mask_probability(expected), found.noise_KB, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", TEXT_PROCESSES.known)
@pytest.mark.parametrize("options", [{}, {"graph": "uniform"}], ids=str)
def test_every_draw_of_the_bound_has_noise_of_its_own(kind: str, options: dict[str, str]) -> None:
    """With the noise of another draw, the tokens of the lower level would all be among those of the higher one."""
    if options and kind != "sedd":
        return
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    process = config.build(**IDS, **{name: STORES[name] for name in config.stores})
    changed: list[Tensor] = []
    tokens = torch.randint(1, 5, (8, 60), generator=torch.Generator().manual_seed(0))

    def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        changed.append(noisy_BL != tokens)
        return torch.zeros(int(scored_BL.sum()), 6)

    process.nelbo(
        predict, tokens, torch.ones_like(tokens, dtype=torch.bool), draws=4, generator=RowGenerator(0, torch.arange(8))
    )
    for first, second in ((0, 1), (1, 2), (2, 3)):
        alone = [(changed[a] & ~changed[b]).any(dim=1) for a, b in ((first, second), (second, first))]
        assert bool((alone[0] & alone[1]).any())


def test_every_draw_of_the_reconstruction_has_noise_of_its_own() -> None:
    """Uniform noise that does not end at zero adds a term at t = 0, which is drawn as often as the integral."""
    schedule = {"name": "geometric", "sigma_min": 0.5}
    process = parse_kind(TEXT_PROCESSES, {"kind": "uniform", "schedule": schedule}, at="process").build(**IDS)
    tokens, asked = torch.full((3, 50), 2), list[Tensor]()

    def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
        asked.extend([noisy_BL] * bool((t_B == 0).all()))
        return torch.zeros(int(scored_BL.sum()), 6)

    process.nelbo(predict, tokens, tokens > 0, draws=4, generator=RowGenerator(0, torch.arange(3)))
    assert len(asked) == 4
    for first, second in ((0, 1), (1, 2), (2, 3), (0, 3)):
        assert bool((asked[first] != asked[second]).any(dim=1).all())
