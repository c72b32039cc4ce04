"""From parameters to a model with initial values that are a function of a seed and of nothing else."""

from __future__ import annotations

from typing import Literal

import torch

from mm_ldlm.models.mmdit import MMDiT, Output
from mm_ldlm.models.parameters import ModelConfig

__all__ = ["MMDiT", "ModelConfig", "Output", "build_model", "count_parameters"]


def build_model(
    config: ModelConfig,
    *,
    vocab_size: int,
    pad_id: int,
    mask_id: int,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    attention: Literal["fused", "unfused"] = "fused",
) -> MMDiT:
    """An MMDiT with float32 parameters on `device`; "meta" gives shapes without values.

    Values are drawn on the CPU, in the order of the modules, from `generator` (seed 0 when absent), so that they are
    the same for every device; the global random state is not touched.
    """
    with torch.device("meta"):
        model = MMDiT(config, vocab_size=vocab_size, pad_id=pad_id, mask_id=mask_id, attention=attention)
    if torch.device(device).type == "meta":
        return model
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "init_weights"):
                module.init_weights(generator)  # type: ignore[operator]
    return model.to(device)


def count_parameters(model: torch.nn.Module) -> int:
    """Elements of all parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
