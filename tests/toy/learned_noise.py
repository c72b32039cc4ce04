"""Noise schedules with a learned parameter, as in another project: one for text, one for latents."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from mm_ldlm.core import PositiveFloat, config
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule, Scales


class Power(nn.Module, MaskSchedule):
    """α = 1 − t^p with a learned p."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.initial = power
        self.log_power = nn.Parameter(torch.empty(1))

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.constant_(self.log_power, float(torch.tensor(self.initial).log()))

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t ** self.log_power.exp()

    def alpha_prime(self, t: Tensor) -> Tensor:
        power = self.log_power.exp()
        return -power * t ** (power - 1)


@config
class PowerConfig:
    kind: str = "learned_noise:PowerConfig"
    power: PositiveFloat = 2.0

    def build(self) -> Power:
        return Power(self.power)


class Angle(nn.Module, GaussianSchedule):
    """Variance-preserving: the angle of (signal, noise) is π/2 · t^p with a learned p."""

    def __init__(self) -> None:
        super().__init__()
        self.log_power = nn.Parameter(torch.empty(1))

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.zeros_(self.log_power)

    def scales(self, t: Tensor) -> Scales:
        angle = torch.pi / 2 * t ** self.log_power.exp()
        return Scales(angle.cos(), angle.sin())


@config
class AngleConfig:
    kind: str = "learned_noise:AngleConfig"
    variance_preserving: ClassVar[bool] = True

    def build(self) -> Angle:
        return Angle()
