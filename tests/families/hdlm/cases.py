"""HDLM for the conformance suites: its rates, and clusters of the words."""

from typing import Any

import torch
from tests.diffusion.enumeration import Law, W
from torch import Tensor

CLUSTERS = torch.tensor([[-1], [0], [1], [0], [1], [-1]])


class Hierarchy(Law):
    """Words become clusters at rate γ/(1−t), and clusters [MASK] at rate 1/(1−t)."""

    def levels(self, process: Any, s: Tensor, t: Tensor) -> Tensor:
        """P(level at t | level at s) (…, 3, 3); levels are word, cluster and [MASK]."""
        rates = torch.tensor([[-process.gamma, process.gamma, 0], [0, -1, 1], [0, 0, 0]], dtype=torch.float64)
        passed = torch.log1p(-s) - torch.log1p(-t.clamp(max=1 - 1e-12))
        return torch.linalg.matrix_exp(passed[..., None, None] * rates)

    def matrix(self, process: Any, s: Tensor, t: Tensor) -> Tensor:
        """q(x_t | x_s) (…, I, I); the ids are words, [MASK] and clusters."""
        levels = self.levels(process, s, t)[..., None, None]
        C = process.noise_ids
        members_WC = (CLUSTERS[1 : W + 1] == torch.arange(C)).double()
        found = levels.new_zeros(*t.shape, W + 1 + C, W + 1 + C)
        found[..., :W, :W] = levels[..., 0, 0, :, :] * torch.eye(W).double()
        found[..., :W, W] = levels[..., 0, 2, :, 0]
        found[..., :W, W + 1 :] = levels[..., 0, 1, :, :] * members_WC
        found[..., W, W] = 1
        found[..., W + 1 :, W] = levels[..., 1, 2, :, 0]
        found[..., W + 1 :, W + 1 :] = levels[..., 1, 1, :, :] * torch.eye(C).double()
        return found

    def marginal(self, process: Any, t: Tensor) -> Tensor:
        return self.matrix(process, torch.zeros_like(t), t)[..., :W, :]

    def transition(self, process: Any, s: Tensor, t: Tensor) -> Tensor:
        return self.matrix(process, s, t)


OPTIONS = {("text_processes", "hdlm"): [{}, {"gamma": 2.0}]}
STORES = {"token_clusters": CLUSTERS}
LAWS = {"hdlm": Hierarchy()}
