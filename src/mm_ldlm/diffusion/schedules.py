"""Noise schedules as functions of each example's own time t ∈ [0, 1]: 0 is clean, 1 is all noise.

α (text) is the expected fraction of tokens kept; ᾱ (latents) is the fraction of signal variance kept. All functions
are elementwise in t, so an example's noise never depends on its neighbours in the batch. They return tensors of the
argument's shape, in float32, or in float64 for float64 arguments.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mm_ldlm.core.config import InvalidValue, config

MaskScheduleName = Literal["log_linear", "cosine", "geometric"]
GaussianScheduleName = Literal["cosine", "linear", "sigmoid", "flow"]


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype in (torch.float32, torch.float64) else t.float()


@config
class MaskSchedule:
    """α_t of masked diffusion (MDLM, arXiv:2406.07524, §3 and appendix).

    log_linear: α = 1 − (1−ε)t.   cosine: α = ε + (1−ε)cos(πt/2).   geometric: σ = σ_min^(1−t) σ_max^t, α = exp(−σ).

    `epsilon` is the fraction still kept at t = 1 (log_linear, cosine). `sigma_min` and `sigma_max` are parameters of
    geometric, whose α_0 is exp(−σ_min) and not 1; samplers therefore end at α = 1 instead of alpha(0).
    """

    name: MaskScheduleName = "log_linear"
    epsilon: float = 1e-3
    sigma_min: float = 1e-4
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1:
            raise InvalidValue(f"epsilon must lie in [0, 1), found {self.epsilon}", "epsilon")
        if not 0 < self.sigma_min < self.sigma_max:
            raise InvalidValue(
                f"expected 0 < sigma_min < sigma_max, found {self.sigma_min} and {self.sigma_max}",
                "sigma_min",
                "sigma_max",
            )

    def alpha(self, t: Tensor) -> Tensor:
        """Return α_t, the expected fraction of tokens kept at t."""
        t = _wide(t)
        if self.name == "log_linear":
            return (1 - t) + self.epsilon * t
        if self.name == "cosine":
            return self.epsilon + (1 - self.epsilon) * torch.cos(t * (math.pi / 2))
        return torch.exp(-self._geometric_sigma(t))

    def mask_probability(self, t: Tensor) -> Tensor:
        """Return 1 − α_t, without cancellation near t = 0."""
        t = _wide(t)
        if self.name == "log_linear":
            return (1 - self.epsilon) * t
        if self.name == "cosine":
            return (1 - self.epsilon) * 2 * torch.sin(t * (math.pi / 4)).square()
        return -torch.expm1(-self._geometric_sigma(t))

    def alpha_prime(self, t: Tensor) -> Tensor:
        """Return dα/dt, which is negative."""
        t = _wide(t)
        if self.name == "log_linear":
            return torch.full_like(t, -(1 - self.epsilon))
        if self.name == "cosine":
            return -(1 - self.epsilon) * (math.pi / 2) * torch.sin(t * (math.pi / 2))
        sigma = self._geometric_sigma(t)
        return -math.log(self.sigma_max / self.sigma_min) * sigma * torch.exp(-sigma)

    def weight(self, t: Tensor) -> Tensor:
        """Return w(t) = −α'_t / (1 − α_t) > 0, the weight of a masked token's cross-entropy (MDLM eq. 10).

        It is exactly 1/t for log_linear, and infinite at t = 0 except for geometric; times are drawn from [t_min, 1].
        """
        t = _wide(t)
        if self.name == "log_linear":
            return 1 / t
        if self.name == "cosine":
            return (math.pi / 2) / torch.tan(t * (math.pi / 4))
        sigma = self._geometric_sigma(t)
        return math.log(self.sigma_max / self.sigma_min) * sigma / torch.expm1(sigma)

    def inverse(self, alpha: Tensor) -> Tensor:
        """Return the time t at which alpha(t) is `alpha`."""
        alpha = _wide(alpha)
        if self.name == "log_linear":
            return (1 - alpha) / (1 - self.epsilon)
        if self.name == "cosine":
            return torch.acos(((alpha - self.epsilon) / (1 - self.epsilon)).clamp(-1, 1)) * (2 / math.pi)
        return torch.log(-torch.log(alpha) / self.sigma_min) / math.log(self.sigma_max / self.sigma_min)

    def time_of_mask_ratio(self, mask_ratio: Tensor) -> Tensor:
        """Return the float64 time at which a fraction `mask_ratio` of tokens is masked; 1 for ratios above 1 − α_1."""
        return self.inverse(1 - mask_ratio.double()).clamp(0.0, 1.0)

    def _geometric_sigma(self, t: Tensor) -> Tensor:
        return torch.exp(math.log(self.sigma_min) + t * math.log(self.sigma_max / self.sigma_min))


@config
class GaussianSchedule:
    """Noise schedule of the latents: x_t = signal(t)·x_0 + noise(t)·ε.

    cosine: signal = cos((t+s)/(1+s)·π/2), s = 0.008 (arXiv:2102.09672). linear: log ᾱ = −∫β, β from `beta_min` to
    `beta_max` a step over 1000 steps (DDPM). sigmoid: arXiv:2212.11972. flow: signal = 1 − t, noise = t (rectified
    flow, which is not variance preserving). The first three are variance preserving: signal² + noise² = 1 for every t.
    """

    name: GaussianScheduleName = "cosine"
    offset: float = 0.008
    beta_min: float = 1e-4
    beta_max: float = 0.02
    sigmoid_start: float = -3.0
    sigmoid_end: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.beta_min < self.beta_max:
            raise InvalidValue(
                f"expected 0 < beta_min < beta_max, found {self.beta_min} and {self.beta_max}", "beta_min", "beta_max"
            )
        if not self.sigmoid_start < self.sigmoid_end:
            raise InvalidValue(
                f"sigmoid_start must be below sigmoid_end, found {self.sigmoid_start} and {self.sigmoid_end}",
                "sigmoid_start",
                "sigmoid_end",
            )

    @property
    def variance_preserving(self) -> bool:
        return self.name != "flow"

    def signal(self, t: Tensor) -> Tensor:
        """Return the factor of x_0, in [0, 1]."""
        return self._pair(t)[0]

    def noise(self, t: Tensor) -> Tensor:
        """Return the factor of ε, in [0, 1]."""
        return self._pair(t)[1]

    def alpha_bar(self, t: Tensor) -> Tensor:
        """Return signal², also for flow, where 1 − ᾱ is not the noise variance."""
        return self.signal(t).square()

    def snr(self, t: Tensor) -> Tensor:
        """Return signal² / noise²: 0 at pure noise, infinite without noise."""
        signal, noise = self._pair(t)
        return (signal / noise).square()

    def _pair(self, t: Tensor) -> tuple[Tensor, Tensor]:
        t = _wide(t)
        if self.name == "cosine":
            angle = (t + self.offset) * (math.pi / 2 / (1 + self.offset))
            return torch.cos(angle).clamp(min=0), torch.sin(angle)
        if self.name == "linear":
            log_alpha_bar = -1000 * (self.beta_min * t + (self.beta_max - self.beta_min) * t.square() / 2)
            return torch.exp(log_alpha_bar / 2), torch.sqrt(-torch.expm1(log_alpha_bar))
        if self.name == "sigmoid":
            low = 1 / (1 + math.exp(-self.sigmoid_start))
            high = 1 / (1 + math.exp(-self.sigmoid_end))
            at = torch.sigmoid(t * (self.sigmoid_end - self.sigmoid_start) + self.sigmoid_start)
            lost = ((at - low) / (high - low)).clamp(0, 1)
            return torch.sqrt(1 - lost), torch.sqrt(lost)
        return 1 - t, t.clone()
