"""Self-conditioning in training: in half of the steps the model reads its estimate of x_0 (arXiv:2208.04202, §3.2)."""

from typing import Any

import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator


def self_condition(
    model: Any, modality: Any, tokens_BL: Tensor, inputs: dict[str, Any], generator: RowGenerator
) -> Tensor:
    """Estimate x_0 (B, d) of a `GaussianModality`, in a first pass without gradient; zeros in half of the steps.

    The choice is one for all examples and ranks. `inputs` are the arguments of the model in the second pass
    (arXiv:2208.04202, §3.2).
    """
    zeros_Bd = torch.zeros_like(inputs["latents_Bd"])
    if generator.fork("self_condition").shared_uniform() >= 0.5:
        return zeros_Bd
    with torch.no_grad():
        first = model(tokens_BL, **inputs, self_condition_Bd=zeros_Bd, heads=("latent",))
        return modality.x0(first.latent_Bd, inputs["latents_Bd"], inputs["t_latent_B"])
