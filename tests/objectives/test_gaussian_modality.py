"""The Gaussian modality of an objective: its noise, its loss, and the modes of its steps."""

from collections import Counter
from typing import Any

import pytest
import torch
from tests.components import random_batch, root_of

from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.gaussian_modality import GaussianModality, value_times

each_parameterisation = pytest.mark.parametrize(
    "options",
    [
        {"parameterisation": kind, "latent_loss": loss}
        for kind in ("eps", "x0", "v")
        for loss in ("uniform", "min_snr")
    ] + [{"parameterisation": "flow", "latent_schedule": {"kind": "flow"}}],
    ids=str,
)  # fmt: skip


def modality_of(options: dict[str, Any]) -> GaussianModality:
    found: GaussianModality = root_of("multimodal", options).objective.modality
    return found


@each_parameterisation
def test_pitfall_07_the_loss_sees_the_magnitude_of_the_prediction(options: dict[str, Any]) -> None:
    """It is 0 for the target alone; of its double, it is the weighted square of the target."""
    modality, batch = modality_of(options), random_batch(examples=6)
    noisy = modality.corrupt(batch, RowGenerator(0, batch.position_B))
    target_Bd = gaussian.target(modality.parameterisation, noisy.x0_Bd, noisy.noise_Bd, noisy.scales)
    torch.testing.assert_close(modality.x0(target_Bd, noisy.x_t_Bd, noisy.t_B), noisy.x0_Bd, rtol=1e-2, atol=1e-2)

    def loss(prediction_Bd: torch.Tensor) -> float:
        total, count = modality.losses(prediction_Bd, noisy, batch.real_B)["latent_loss"]
        assert int(count) == 6
        return float(total)

    assert loss(target_Bd) == 0
    unit = loss(target_Bd + 1)
    assert loss(target_Bd + 3) == pytest.approx(9 * unit, rel=1e-4)
    if options.get("latent_loss") == "uniform":
        assert unit == pytest.approx(6, rel=1e-4)
        assert loss(2 * target_Bd) == pytest.approx(float(target_Bd.square().mean(1).sum()), rel=1e-4)


def test_times_of_the_values_are_spread_over_the_batch_whatever_the_order_of_the_texts() -> None:
    batch = random_batch(examples=16)
    for seed in range(5):
        t_B = value_times(batch, RowGenerator(seed, batch.position_B), t_min=1e-3)
        cells = ((t_B - 1e-3) / (1 - 1e-3) * 8).long().clamp(max=7)
        assert Counter(cells.tolist()) == dict.fromkeys(range(8), 2)
        assert not torch.equal(t_B.argsort(), torch.arange(16))


@pytest.mark.parametrize(
    "weights", [{"l2t": 1, "t2l": 3, "unconditional": 0}, {"l2t": 1, "t2l": 1, "unconditional": 2}]
)
def test_the_modes_of_the_steps_have_their_frequencies(weights: dict[str, int]) -> None:
    objective = root_of("multimodal", {"mode": "mixed", "loss_type_weights": weights}).objective
    position_B = torch.arange(2)
    drawn = Counter(objective.kind(RowGenerator(seed, position_B), step=0) for seed in range(2000))
    for mode, weight in weights.items():
        assert drawn[mode] / 2000 == pytest.approx(weight / sum(weights.values()), abs=0.04)
