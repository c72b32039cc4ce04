"""Checkpoints of SEDD's trainers have the outputs and the score entropy of the paper here."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extras.foreign_checkpoints import ddit
from tests.extras.foreign_checkpoints.ddit import MASK, V

ABSORBING = {
    "graph": {"type": "absorb"},
    "noise": {"type": "loglinear"},
    "model": {"n_heads": 2, "scale_by_sigma": True},
}
UNIFORM = {
    "graph": {"type": "uniform"}, "model": {"n_heads": 2, "scale_by_sigma": False},
    "noise": {"type": "geometric", "sigma_min": 1e-3, "sigma_max": 5.0},
}  # fmt: skip
OTHER: dict[str, Any] = {"algo": {"name": "sedd", "parameterization": "score", "time_conditioning": True}, **ABSORBING}


@pytest.mark.parametrize("settings", [ABSORBING, {k: v for k, v in OTHER.items() if k != "graph"}])
def test_absorbing_scores_and_their_loss(settings: dict[str, Any], tmp_path: Path) -> None:
    clean, t = ddit.clean_and_times()
    sigma = -torch.log(1 - 0.999 * t.double())
    noisy = ddit.masked(clean, t[:, None])
    logits = ddit.reference(ddit.weights(), noisy, sigma.float())
    odds = 1 / torch.expm1(sigma)[:, None, None]
    score = odds * logits.double().exp()[..., :MASK] / (V - 1)
    ratio = odds * torch.nn.functional.one_hot(clean, V - 1)
    each = ddit.score_entropy(score, ratio, clean.masked_fill(noisy == MASK, 0)) * (noisy == MASK)
    each = each + (noisy == MASK) * (score - torch.xlogy(ratio, score) + torch.xlogy(ratio, ratio) - ratio)[..., 0]
    loss = each * (0.999 / (1 - 0.999 * t))[:, None]
    config = ddit.proves(tmp_path, settings, tokens=noisy, clean=clean, sigma=sigma, logits=logits, loss=loss)
    assert config["objective"]["process"]["graph"] == "absorbing"


def test_uniform_scores_and_their_loss(tmp_path: Path) -> None:
    clean, t = ddit.clean_and_times()
    sigma = 1e-3 * 5e3 ** t.double()
    draw = torch.Generator().manual_seed(1)
    moved = torch.rand(clean.shape, generator=draw) < -torch.expm1(-sigma)[:, None]
    noisy = torch.where(moved, torch.randint(0, V, clean.shape, generator=draw), clean)
    logits = ddit.reference(ddit.weights(), noisy, sigma.float())
    other = -torch.expm1(-sigma)[:, None, None] / V
    chance = other + torch.exp(-sigma)[:, None, None] * torch.nn.functional.one_hot(clean, V)
    ratio = chance / chance.gather(2, noisy[..., None])
    slope = sigma * math.log(5e3)
    loss = ddit.score_entropy(logits.double().exp(), ratio, noisy) / V * slope[:, None]
    config = ddit.proves(
        tmp_path, UNIFORM, tolerance=1e-3, tokens=noisy, clean=clean, t=t.double(), logits=logits, loss=loss
    )
    assert config["objective"]["process"]["graph"] == "uniform"
