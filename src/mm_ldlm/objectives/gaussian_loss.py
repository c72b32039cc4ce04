"""Loss of a Gaussian diffusion: weighted squared error of the prediction, and its statistics.

B examples, d dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.objectives.base import Losses
from mm_ldlm.objectives.text_loss import by_time


def gaussian_loss(
    prediction_Bd: Tensor,
    x0_Bd: Tensor,
    x_t_Bd: Tensor,
    noise_Bd: Tensor,
    t_B: Tensor,
    real_B: Tensor,
    *,
    schedule: GaussianSchedule,
    parameterisation: gaussian.Parameterisation,
    weight: gaussian.LossWeight,
    gamma: float,
    name: str,
) -> Losses:
    """Sum over examples w(SNR) · the mean over d of the squared error in the model's parameterisation: `{name}_loss`.

    The statistics are the cosine of the estimated x_0 to the true one, the noise level, and the error by time.
    """
    signal_B, scale_B = schedule.signal(t_B), schedule.noise(t_B)
    want_Bd = gaussian.target(parameterisation, x0_Bd, noise_Bd, signal_B=signal_B, noise_scale_B=scale_B)
    w_B = gaussian.loss_weight(
        weight, (signal_B / scale_B).square(), parameterisation=parameterisation, gamma=gamma
    )  # fmt: skip
    error_B = torch.where(real_B, (prediction_Bd.float() - want_Bd).square().mean(1), 0.0)
    count = real_B.sum()
    losses: Losses = {f"{name}_loss": ((w_B * error_B).sum(), count)}
    with torch.no_grad():
        x0_hat_Bd = gaussian.to_x0(
            prediction_Bd.float(), parameterisation, x_t_Bd=x_t_Bd, signal_B=signal_B, noise_scale_B=scale_B
        )
        cosine_B = torch.where(real_B, F.cosine_similarity(x0_hat_Bd, x0_Bd, dim=1), 0.0)
        losses[f"{name}_cosine"] = (cosine_B.sum(), count)
        losses["noise_level"] = (torch.where(real_B, scale_B, 0.0).sum(), count)
        losses |= by_time(f"{name}_error", error_B.detach(), t_B, real_B.float())
    return losses
