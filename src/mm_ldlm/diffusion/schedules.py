"""Noise schedules as functions of each example's own time t ∈ [0, 1]: 0 is clean, 1 is all noise.

α (text) is the expected fraction of tokens kept; signal² (latents) is the fraction of signal variance kept. All
functions are elementwise in t, so an example's noise never depends on its neighbours in the batch.

A schedule without parameters is its own configuration. A schedule that learns is an `nn.Module`, which its
configuration builds; the objective holds it, so that its parameters are trained and saved with all others.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from mm_ldlm.core import Kinds, PositiveFloat, bounded, config, refuse_if

SmallestTime = Annotated[float, bounded(gt=0, lt=1)]
"""Smallest time that training draws, where the weight of the loss is infinite at t = 0"""


class ScheduleConfig(Protocol):
    """Configuration of a schedule; a Gaussian one also has `variance_preserving`."""

    kind: str

    def build(self) -> Any:
        """Make the schedule, a module with initial values if it learns."""


# -- text --------------------------------------------------------------------------------------------------------------


class MaskSchedule(ABC):
    """α_t of a process over tokens (MDLM, arXiv:2406.07524, §3); subclasses define at least α_t and its derivative."""

    def build(self) -> Self:
        """Return the schedule itself; the configuration of a schedule that learns returns a new module instead."""
        return self

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Return α_t, the expected fraction of tokens kept at t; it decreases from about 1 to about 0."""

    @abstractmethod
    def alpha_prime(self, t: Tensor) -> Tensor:
        """Return dα/dt, which is negative."""

    def mask_probability(self, t: Tensor) -> Tensor:
        """Return 1 − α_t; subclasses avoid the cancellation near t = 0."""
        return 1 - self.alpha(t)

    def weight(self, t: Tensor) -> Tensor:
        """Return w(t) = −α'_t / (1 − α_t) > 0, the weight of a masked token's cross-entropy (MDLM eq. 10)."""
        return -self.alpha_prime(t) / self.mask_probability(t)

    def inverse(self, alpha: Tensor) -> Tensor:
        """Return the time t at which alpha(t) is `alpha`, by bisection; subclasses may know it in closed form."""
        low, high = torch.zeros_like(alpha), torch.ones_like(alpha)
        for _ in range(60):
            middle = (low + high) / 2
            early = self.alpha(middle) > alpha
            low, high = torch.where(early, middle, low), torch.where(early, high, middle)
        return high

    def time_of_mask_ratio(self, mask_ratio: Tensor) -> Tensor:
        """Return the float64 time at which a fraction `mask_ratio` of tokens is masked; 1 for ratios above 1 − α_1."""
        return self.inverse(1 - mask_ratio.double()).clamp(0.0, 1.0)


_Epsilon = Annotated[float, bounded(ge=0, lt=1)]
"""The fraction of tokens still kept at t = 1"""


@config
class LogLinear(MaskSchedule):
    """Kind `log_linear`: α = 1 − (1−ε)t; the weight is exactly 1/t."""

    kind: str = "log_linear"
    epsilon: _Epsilon = 1e-3

    def alpha(self, t: Tensor) -> Tensor:
        return (1 - t) + self.epsilon * t

    def mask_probability(self, t: Tensor) -> Tensor:
        return (1 - self.epsilon) * t

    def alpha_prime(self, t: Tensor) -> Tensor:
        return torch.full_like(t, -(1 - self.epsilon))

    def weight(self, t: Tensor) -> Tensor:
        return 1 / t

    def inverse(self, alpha: Tensor) -> Tensor:
        return (1 - alpha) / (1 - self.epsilon)


@config
class Cosine(MaskSchedule):
    """Kind `cosine`: α = ε + (1−ε)cos(πt/2)."""

    kind: str = "cosine"
    epsilon: _Epsilon = 1e-3

    def alpha(self, t: Tensor) -> Tensor:
        return self.epsilon + (1 - self.epsilon) * torch.cos(t * (math.pi / 2))

    def mask_probability(self, t: Tensor) -> Tensor:
        return (1 - self.epsilon) * 2 * torch.sin(t * (math.pi / 4)).square()

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -(1 - self.epsilon) * (math.pi / 2) * torch.sin(t * (math.pi / 2))

    def weight(self, t: Tensor) -> Tensor:
        return (math.pi / 2) / torch.tan(t * (math.pi / 4))

    def inverse(self, alpha: Tensor) -> Tensor:
        return torch.acos(((alpha - self.epsilon) / (1 - self.epsilon)).clamp(-1, 1)) * (2 / math.pi)


@config
class Geometric(MaskSchedule):
    """Kind `geometric`: σ = σ_min^(1−t) σ_max^t, α = exp(−σ).

    α_0 is exp(−σ_min) and not 1; samplers therefore end at α = 1 instead of alpha(0).
    """

    kind: str = "geometric"
    sigma_min: float = 1e-4
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        refuse_if(
            not 0 < self.sigma_min < self.sigma_max,
            f"expected 0 < sigma_min < sigma_max, found {self.sigma_min} and {self.sigma_max}",
            "sigma_min",
            "sigma_max",
        )

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def sigma(self, t: Tensor) -> Tensor:
        """Return σ(t) = −log α_t."""
        return torch.exp(math.log(self.sigma_min) + t * self._log_ratio)

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self.sigma(t))

    def mask_probability(self, t: Tensor) -> Tensor:
        return -torch.expm1(-self.sigma(t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        sigma = self.sigma(t)
        return -self._log_ratio * sigma * torch.exp(-sigma)

    def weight(self, t: Tensor) -> Tensor:
        sigma = self.sigma(t)
        return self._log_ratio * sigma / torch.expm1(sigma)

    def inverse(self, alpha: Tensor) -> Tensor:
        return torch.log(-torch.log(alpha) / self.sigma_min) / self._log_ratio


# -- latents -----------------------------------------------------------------------------------------------------------


class Scales(NamedTuple):
    """Factors of x_t = signal·x_0 + noise·ε at the time of each example."""

    signal_B: Tensor
    noise_B: Tensor

    @property
    def snr_B(self) -> Tensor:
        """signal² / noise²: 0 at pure noise, infinite without noise."""
        return (self.signal_B / self.noise_B).square()

    def like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Broadcast both factors over the trailing axes of x (B, …), in its type."""
        signal, noise = (scale_B.to(x.dtype).view(-1, *(1 for _ in x.shape[1:])) for scale_B in self)
        return signal, noise


class GaussianSchedule(ABC):
    """Noise schedule of latents: x_t = signal(t)·x_0 + noise(t)·ε."""

    variance_preserving: ClassVar[bool] = True
    """Whether signal² + noise² = 1 for every t"""

    def build(self) -> Self:
        """Return the schedule itself; the configuration of a schedule that learns returns a new module instead."""
        return self

    @abstractmethod
    def scales(self, t: Tensor) -> Scales:
        """Return the factors of x_0 and of ε at t, each in [0, 1]."""


@config
class CosineLatents(GaussianSchedule):
    """Kind `cosine`: signal = cos((t+s)/(1+s)·π/2), with s = `offset` (arXiv:2102.09672).

    The signal is not divided by its value at t = 0, as it is there, and begins at .99992 instead of 1.
    """

    kind: str = "cosine"
    offset: float = 0.008

    def scales(self, t: Tensor) -> Scales:
        angle = (t + self.offset) * (math.pi / 2 / (1 + self.offset))
        return Scales(torch.cos(angle).clamp(min=0), torch.sin(angle))


@config
class LinearLatents(GaussianSchedule):
    """Kind `linear`: log signal² = −∫β, β from `beta_min` to `beta_max` a step over 1000 steps (DDPM)."""

    kind: str = "linear"
    beta_min: PositiveFloat = 1e-4
    beta_max: PositiveFloat = 0.02

    def scales(self, t: Tensor) -> Scales:
        log_alpha_bar = -1000 * (self.beta_min * t + (self.beta_max - self.beta_min) * t.square() / 2)
        return Scales(torch.exp(log_alpha_bar / 2), torch.sqrt(-torch.expm1(log_alpha_bar)))


@config
class SigmoidLatents(GaussianSchedule):
    """Kind `sigmoid`: noise² follows a sigmoid from `sigmoid_start` to `sigmoid_end` (arXiv:2212.11972)."""

    kind: str = "sigmoid"
    sigmoid_start: float = -3.0
    sigmoid_end: float = 3.0

    def __post_init__(self) -> None:
        refuse_if(
            not self.sigmoid_start < self.sigmoid_end,
            f"sigmoid_start must be below sigmoid_end, found {self.sigmoid_start} and {self.sigmoid_end}",
            "sigmoid_start",
            "sigmoid_end",
        )

    def scales(self, t: Tensor) -> Scales:
        low = 1 / (1 + math.exp(-self.sigmoid_start))
        high = 1 / (1 + math.exp(-self.sigmoid_end))
        at = torch.sigmoid(t * (self.sigmoid_end - self.sigmoid_start) + self.sigmoid_start)
        lost = ((at - low) / (high - low)).clamp(0, 1)
        return Scales(torch.sqrt(1 - lost), torch.sqrt(lost))


@config
class Flow(GaussianSchedule):
    """Kind `flow`: signal = 1 − t, noise = t (rectified flow)."""

    variance_preserving: ClassVar[bool] = False
    kind: str = "flow"

    def scales(self, t: Tensor) -> Scales:
        return Scales(1 - t, t.clone())


MASK_SCHEDULES = Kinds(
    "mask schedule",
    {
        "log_linear": "mm_ldlm.diffusion.schedules:LogLinear",
        "cosine": "mm_ldlm.diffusion.schedules:Cosine",
        "geometric": "mm_ldlm.diffusion.schedules:Geometric",
    },
    group="mask_schedules",
    interface=ScheduleConfig,
)
GAUSSIAN_SCHEDULES = Kinds(
    "Gaussian schedule",
    {
        "cosine": "mm_ldlm.diffusion.schedules:CosineLatents",
        "linear": "mm_ldlm.diffusion.schedules:LinearLatents",
        "sigmoid": "mm_ldlm.diffusion.schedules:SigmoidLatents",
        "flow": "mm_ldlm.diffusion.schedules:Flow",
    },
    group="gaussian_schedules",
    interface=ScheduleConfig,
)
