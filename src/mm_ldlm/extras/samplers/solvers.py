"""Euler, Heun and DPM-Solver++ as latent samplers.

B latents, d dimensions.
"""

import math
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.gaussian import Estimator, GridSampler, Point


def fraction(at: Point) -> float:
    """Return noise/(signal + noise): the time of the rectified flow through the same point, 0 clean to 1 noise."""
    return at.noise / (at.signal + at.noise)


def log_snr_half(at: Point) -> float:
    """Return λ = log(signal/noise); infinite at the ends."""
    if at.signal <= 0:
        return -math.inf
    return math.inf if at.noise <= 0 else math.log(at.signal / at.noise)


@config
class EulerConfig(GridSampler):
    """Euler's method for the flow dy/dτ = ε − x0, first order and deterministic.

    Every schedule is a rectified flow of y = x/(signal + noise) in the time τ = noise/(signal + noise).
    """

    kind: str = "euler"
    corrects: ClassVar[bool] = False
    """Whether a step takes the mean slope of both ends"""

    def solve(self, x_Bd: Tensor, points: list[Point], estimate: Estimator, generator: RowGenerator) -> Tensor:
        """Take Euler steps down the grid."""
        y_Bd = x_Bd / (points[0].signal + points[0].noise)
        for now, then in pairwise(points):
            x0_Bd, eps_Bd = estimate(y_Bd * (now.signal + now.noise), now)
            slope_Bd, stride = eps_Bd - x0_Bd, fraction(then) - fraction(now)
            guess_Bd = y_Bd + stride * slope_Bd
            if self.corrects and then.noise > 0:
                x0_Bd, eps_Bd = estimate(guess_Bd * (then.signal + then.noise), then)
                guess_Bd = y_Bd + stride * (slope_Bd + eps_Bd - x0_Bd) / 2
            y_Bd = guess_Bd
        return y_Bd


@config
class HeunConfig(EulerConfig):
    """Heun's method for the same flow, second order: the mean slope of both ends (arXiv:2206.00364, algorithm 1).

    It takes two model calls per step, and one for the last step, because the slope at t = 0 is undefined.
    """

    kind: str = "heun"
    corrects: ClassVar[bool] = True


@config
class Dpmpp2mConfig(GridSampler):
    """DPM-Solver++(2M), second order at one call per step (arXiv:2211.01095, algorithm 2); first order at both ends."""

    kind: str = "dpmpp_2m"

    def solve(self, x_Bd: Tensor, points: list[Point], estimate: Estimator, generator: RowGenerator) -> Tensor:
        """Take multistep steps down the grid."""
        before_Bd, stride_before = x_Bd, math.inf
        for now, then in pairwise(points):
            data_Bd, _ = estimate(x_Bd, now)
            x0_Bd, stride = data_Bd, log_snr_half(then) - log_snr_half(now)
            if math.isfinite(stride) and math.isfinite(stride_before):
                r = stride_before / stride
                data_Bd = (1 + 1 / (2 * r)) * x0_Bd - 1 / (2 * r) * before_Bd
            left = then.noise / now.noise
            # signal_s (1 − e^{−h}) = signal_s − signal_t·noise_s/noise_t, written so that it is finite at both ends
            x_Bd = left * x_Bd + (then.signal - now.signal * left) * data_Bd
            before_Bd, stride_before = x0_Bd, stride
        return x_Bd
