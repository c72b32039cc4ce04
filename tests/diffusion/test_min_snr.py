"""Weights of the Gaussian loss: the same error in x_0 has the same weight in every parameterisation."""

from typing import Any, get_args

import pytest
import torch

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.gaussian import Parameterisation, to_x0_and_eps
from mm_ldlm.diffusion.min_snr import loss_weight
from mm_ldlm.diffusion.registry import GAUSSIAN_SCHEDULES


@pytest.mark.parametrize("schedule", GAUSSIAN_SCHEDULES.known)
@pytest.mark.parametrize("kind", get_args(Parameterisation))
def test_min_snr_weighs_the_same_error_in_x0_alike(schedule: str, kind: Any) -> None:
    """weight(kind)·‖Δ prediction‖² = min(SNR, γ)·‖Δ x_0‖² for every kind (v: where variance preserving)."""
    if kind == "v" and schedule == "flow":
        return
    times = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    at = parse_kind(GAUSSIAN_SCHEDULES, {"kind": schedule}, at="schedule").build().scales(times)
    x_t, prediction, change = torch.randn(3, 19, 5, dtype=torch.float64)
    moved = to_x0_and_eps(prediction + change, kind, x_t, at)[0] - to_x0_and_eps(prediction, kind, x_t, at)[0]
    weighted = loss_weight("min_snr", at.snr_B, parameterisation=kind, gamma=3.0) * change.square().sum(1)
    assert torch.allclose(weighted, at.snr_B.clamp(max=3.0) * moved.square().sum(1), rtol=1e-6)


def test_loss_weights_by_hand() -> None:
    snr_B = torch.tensor([0.0, 1.0, 5.0, 50.0, torch.inf])
    expected: dict[Any, list[float]] = {
        "x0": [0, 1, 5, 5, 5], "eps": [1, 1, 1, 0.1, 0], "v": [0, 1 / 2, 5 / 6, 5 / 51, 0],
    }  # fmt: skip
    for kind, weights in expected.items():
        assert loss_weight("min_snr", snr_B, parameterisation=kind).tolist() == pytest.approx(weights)
        assert loss_weight("uniform", snr_B, parameterisation=kind).tolist() == [1] * 5
