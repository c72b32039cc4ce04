"""D3PM for the conformance suites: absorbing noise on a grid, whose bound has a gap that falls with the steps."""

from typing import Any

import torch
from tests.diffusion.enumeration import JOINT, NLL, Interpolation
from torch import Tensor


def masking_to_the_end(process: Any, t: Tensor) -> tuple[Tensor, Tensor]:
    alpha = torch.where(t < 1, process.schedule.alpha(t), 0.0)
    mask_I = torch.nn.functional.one_hot(torch.tensor(JOINT.shape[0]), JOINT.shape[0] + 1)
    return alpha, (1 - alpha)[..., None] * mask_I


class Discrete(Interpolation):
    continuous = False

    def bound(self, process: Any) -> Tensor:
        """Σ over the steps of (α_s − α_t)/(1 − α_t) E[Σ over masks of −log p(x_0 | the unmasked word)] (D3PM eq. 1)."""
        t = torch.arange(process.traits.steps + 1).double() / process.traits.steps
        alpha, _ = masking_to_the_end(process, t)
        alpha = torch.cat([torch.ones(1).double(), alpha[1:]])
        alone = -(JOINT.sum(1, keepdim=True) * JOINT.sum(0, keepdim=True)).log().flatten()
        given = 2 * NLL - alone  # −log p(a | b) − log p(b | a)
        masked, weight = 1 - alpha[1:, None], ((alpha[:-1] - alpha[1:]) / (1 - alpha[1:]))[:, None]
        return (weight * (masked**2 * alone + masked * (1 - masked) * given)).sum(0)


OPTIONS = {("text_processes", "d3pm"): [{"steps": 7, "schedule": {"kind": "cosine"}}, {"steps": 1000}]}
LAWS = {"d3pm": Discrete(masking_to_the_end)}
