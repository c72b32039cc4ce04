"""Classifier-free guidance of log-probabilities of tokens and of predictions of latents."""

import torch
from torch import Tensor

from mm_ldlm.core import SamplingError


def guide_log_probs(conditional_MV: Tensor, unconditional_MV: Tensor, *, scale: float) -> Tensor:
    """Compute `γ·log p_cond + (1−γ)·log p_uncond` of x_0, normalised again.

    Where the noise is `[MASK]`, this is discrete classifier-free guidance (D-CFG, arXiv:2412.10193), which mixes the
    posteriors of a step. Where it is words, the two differ.

    Both arguments are log-probabilities. Tokens that the conditional distribution excludes (−inf) stay excluded for
    every γ.
    """
    excluded_MV = torch.isneginf(conditional_MV)
    floor = torch.finfo(unconditional_MV.dtype).min / 1e4  # γ·(−inf) + (1−γ)·(−inf) would be NaN
    mixed_MV = scale * conditional_MV.clamp_min(floor) + (1 - scale) * unconditional_MV.clamp_min(floor)
    return torch.log_softmax(mixed_MV.masked_fill(excluded_MV, -torch.inf), dim=-1)


def guide_prediction(conditional: Tensor, unconditional: Tensor, *, scale: float) -> Tensor:
    """Compute `u + g(c − u)` of two predictions or two outputs of one shape (arXiv:2207.12598)."""
    return unconditional + scale * (conditional - unconditional)


def no_condition(scale: float) -> SamplingError:
    """Make the error for guidance of a denoiser that has no unconditional prediction."""
    return SamplingError(
        f"guidance {scale} needs an unconditional prediction, but this model was trained without dropping its "
        "condition, or it has no condition here. Set guidance to 1."
    )
