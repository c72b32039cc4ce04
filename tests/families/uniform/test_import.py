"""Checkpoints of Duo and UDLM have the outputs and the bound of the paper here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extras.foreign_checkpoints import ddit
from tests.extras.foreign_checkpoints.ddit import V
from torch.nn.functional import one_hot

from mm_ldlm import MMLDLM
from mm_ldlm.families.uniform.trainers import DUO

(THEIRS,) = DUO["when"]["parameterization"]


@pytest.mark.parametrize(
    ("conditioned", "trainer"),
    [
        (True, {"algo": {"name": "duo", "time_conditioning": True, "ignore_bos": False}}),
        (False, {"algo": {"name": "udlm", "time_conditioning": False, "ignore_bos": False}}),
        (True, {"diffusion": "uniform", "parameterization": THEIRS, "guidance": None, "time_conditioning": True}),
        (True, {"model_type": "udlm", "cfg": False, "cfg_num_classes": -1, "time_conditioning": True}),
    ],
    ids=["Duo", "UNI-D2", "UDLM", "UDLM on the hub"],
)
def test_logits_and_the_integrand_of_the_bound(conditioned: bool, trainer: dict[str, Any], tmp_path: Path) -> None:
    """The integrand is the score entropy of the ratios that x_θ implies, at the rate −α'/(α V)."""
    clean, t = ddit.clean_and_times()
    alpha = 1 - 0.999 * t.double()
    draw = torch.Generator().manual_seed(1)
    moved = torch.rand(clean.shape, generator=draw) > alpha[:, None]
    noisy = torch.where(moved, torch.randint(0, V, clean.shape, generator=draw), clean)
    logits = ddit.reference(ddit.weights(), noisy, -alpha.log().float() * conditioned)

    def ratios(x0: torch.Tensor) -> torch.Tensor:
        chance = alpha[:, None, None] * x0 + (1 - alpha)[:, None, None] / V
        return chance / chance.gather(2, noisy[..., None])

    entropy = ddit.score_entropy(ratios(logits.double().softmax(-1)), ratios(one_hot(clean, V)), noisy)
    loss = entropy * (0.999 / alpha / V)[:, None]
    settings = {"model": {"n_heads": 2}, "noise": {"type": "log-linear", "eps": 1e-3}, **trainer}
    ddit.proves(tmp_path, settings, tokens=noisy, clean=clean, t=t.double(), logits=logits, loss=loss)
    made = MMLDLM.from_run(tmp_path / "run", device="cpu")
    assert len(made.generate(2, length=5, seed=0).texts) == 2
    assert made.score(["w1 w2"]).likelihood == "given_length"
