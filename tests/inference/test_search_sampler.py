"""Search writes its first candidate with the given sampler, and all others at the temperature of the search."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.inference.writing import Writer
from mm_ldlm.models.base import DataShape
from mm_ldlm.sampling.denoising import TextSample
from mm_ldlm.sampling.registry import text_sampler


@pytest.mark.parametrize(("sampler", "search"), [(0.0, 0.7), (0.5, 1.3)])
def test_only_the_first_candidate_has_the_temperature_of_the_sampler(sampler: float, search: float) -> None:
    seen: list[float] = []

    def write(canvas: Any, open_BL: Any, *, latents_Bd: Any, sampler: Any, generator: Any) -> TextSample:
        seen.append(sampler.temperature)
        tokens, ones = torch.where(open_BL, len(seen), canvas), torch.ones(len(canvas), dtype=torch.long)
        return TextSample(tokens, torch.zeros(canvas.shape), torch.zeros_like(canvas), ones, 1)

    shape = DataShape(vocab_size=30, pad_id=28, mask_id=29, max_length=6, latent_dim=2)
    model: Any = SimpleNamespace(
        shape=shape, device=torch.device("cpu"), process=None, has_length=True, write=write,
        evaluating=contextlib.nullcontext,
    )  # fmt: skip
    config = SearchConfig(candidates=3, rounds=2, temperature=search, good_enough=2.0)
    written = Writer(model, batch_tokens=100).search(
        [[[29] * 4] * 3, [[29] * 4] * 3],
        latents_nd=torch.zeros(2, 2),
        cosines=lambda tokens, rows: [sum(ids) / 1000 for ids in tokens],
        sampler=text_sampler("confidence", steps=2, temperature=sampler),
        config=config,
        seed=0,
    )
    assert seen == [sampler, *[search] * 8]
    assert written.model_calls.tolist() == [9, 9]
