"""Uniform noise and GIDD for the conformance suites. Their best x_θ does not see the token at its own position."""

from typing import Any

import torch
from tests.diffusion.enumeration import Interpolation, W, replacing
from torch import Tensor


def mixture(process: Any, t: Tensor) -> tuple[Tensor, Tensor]:
    """(1 − t) x_0 + t [MASK] + c_t u, normalised (GIDD §4)."""
    given = process.traits
    c = 2**given.gamma * given.p_uniform / (1 - given.p_uniform) * (t * (1 - t)) ** (given.gamma / 2)
    word = (c / W)[..., None].expand(*t.shape, W)
    return (1 - t) / (1 + c), torch.cat([word, t[..., None]], dim=-1) / (1 + c)[..., None]


class Others(Interpolation):
    def best(self, process: Any, others_BLW: Tensor, q_BWI: Tensor, own_BLW: Tensor) -> Tensor:
        return others_BLW.log()


OPTIONS = {
    ("text_processes", "uniform"): [{}, {"schedule": {"kind": "cosine"}}],
    ("text_processes", "gidd"): [
        {"p_uniform": 0.0},
        {"p_uniform": 0.3, "loss_weighting": "elbo"},
        {"p_uniform": 0.5, "gamma": 2.0},
    ],
    ("objectives", "duo"): [{}, {"curriculum": 1.0, "temperature": 0.1}, {"curriculum": 1.0, "temperature": 0.0}],
    ("objectives", "duo_distillation"): [
        {"rounds": rounds, "_stirred": True}
        for rounds in (4, 5)  # step 50 of 100 begins the third of four rounds
    ],
}
LAWS = {"uniform": Others(replacing), "gidd": Others(mixture)}
