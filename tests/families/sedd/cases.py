"""SEDD for the conformance suites: both graphs, whose best outputs are ratios of probabilities."""

from typing import Any

from tests.diffusion.enumeration import Interpolation, W, masking, replacing
from torch import Tensor


def noise(process: Any, t: Tensor) -> tuple[Tensor, Tensor]:
    return (masking if process.traits.graph == "absorbing" else replacing)(process, t)


class Ratios(Interpolation):
    def best(self, process: Any, others_BLW: Tensor, q_BWI: Tensor, own_BLW: Tensor) -> Tensor:
        """log p_t(y in the place of the token)/p_t(x_t); at [MASK] in the paper's scaling."""
        if process.traits.graph == "absorbing":
            return (W * others_BLW / others_BLW.sum(-1, keepdim=True)).log()
        return ((others_BLW @ q_BWI[..., :W]) / (others_BLW * own_BLW).sum(-1, keepdim=True)).log()


OPTIONS = {("text_processes", "sedd"): [{"graph": "absorbing"}, {"graph": "uniform"}]}
LAWS = {"sedd": Ratios(noise)}
