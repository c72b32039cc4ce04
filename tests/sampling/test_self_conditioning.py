"""The previous estimate of a latent: the same for both sides of guidance, and none at the start of every draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.gaussian import LatentDenoiser
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, latent_sampler


@pytest.mark.parametrize("kind", LATENT_SAMPLERS.known)
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_every_draw_begins_without_an_estimate_and_guidance_gives_one_to_both_sides(
    kind: str, guidance: float, rows: Any
) -> None:
    seen: list[tuple[str, float | None, float]] = []

    def predict(side: str, value: float) -> Any:
        def prediction(x_Bd: Tensor, t_B: Tensor, previous_Bd: Tensor | None) -> Tensor:
            found = value + 0.25 * len(seen)
            seen.append((side, None if previous_Bd is None else float(previous_Bd[0, 0]), found))
            return torch.full_like(x_Bd, found)

        return prediction

    denoise = LatentDenoiser(
        predict=predict("given", 1.0), unconditional=predict("null", -1.0), parameterisation="x0",
        schedule=GaussianSchedule(), self_condition=True,
    )  # fmt: skip
    steps = {} if kind == "one_step" else {"steps": 3}
    latent_sampler(kind, draws=2, guidance=guidance, **steps).sample(denoise, dim=2, generator=rows(1))
    sides = ["given"] if guidance == 1.0 else ["given", "null"]
    calls = [seen[i : i + len(sides)] for i in range(0, len(seen), len(sides))]
    assert [[side for side, _, _ in call] for call in calls] == [sides] * len(calls)
    half = len(calls) // 2
    before: float | None = None
    for number, call in enumerate(calls):
        expected = None if number in (0, half) else before
        for _, previous, _ in call:
            assert previous == (None if expected is None else pytest.approx(expected))
        found = [value for _, _, value in call]
        before = found[0] if guidance == 1.0 else found[1] + guidance * (found[0] - found[1])
