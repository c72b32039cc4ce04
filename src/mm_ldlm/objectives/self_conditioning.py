"""Self-conditioning: a model reads its own estimate of x_0 from a first pass (arXiv:2208.04202, §3.2)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator


def first_estimate(
    model: Any, tokens_BL: Tensor, inputs: dict[str, Any], generator: RowGenerator, *, x0: Callable[..., Tensor]
) -> Tensor:
    """Estimate x_0 (B, d) in a first pass without gradient; zeros in half of the steps.

    The choice is one for all examples and ranks.

    Args:
        inputs: arguments of the model in the second pass.
        x0: prediction, noised latents (B, d) and times (B,) → x_0 (B, d).
    """
    zeros_Bd = torch.zeros_like(inputs["latents_Bd"])
    if generator.fork("self_condition").shared_uniform() >= 0.5:
        return zeros_Bd
    with torch.no_grad():
        first = model(tokens_BL, **inputs, self_condition_Bd=zeros_Bd, heads=("latent",))
        return x0(first.latent_Bd, inputs["latents_Bd"], inputs["t_latent_B"])
