"""The time that the model receives with a masked text is the time of that mask ratio, whatever the schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.diffusion.absorbing import Absorbing
from mm_ldlm.diffusion.random import RowGenerator
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
