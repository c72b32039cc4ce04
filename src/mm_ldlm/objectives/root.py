"""Trainable root: the one module whose parameters are optimised, averaged, saved, restored, frozen and checked."""

from __future__ import annotations

from typing import Any

from torch import nn

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.parts import tag
from mm_ldlm.objectives.base import Batch, Losses, Objective


class TrainableRoot(nn.Module):
    """Module of the model and the objective; its forward pass returns the losses of one micro-batch.

    An objective that is an `nn.Module` becomes a submodule, so that its parameters are trained and saved too.
    Parameters of the objective without a part of their own belong to the part "objective".
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective: Any = objective
        if isinstance(objective, nn.Module) and not hasattr(objective, "_mm_ldlm_part"):
            tag(objective, "objective")
        self.call_as(model)

    def call_as(self, model: nn.Module) -> None:
        """Let the forward pass call this form of the model, such as the compiled one, which shares its parameters."""
        object.__setattr__(self, "forward_model", model)  # not a submodule: its parameters would be listed twice

    def forward(self, batch: Batch, generator: RowGenerator, kind: str, step: int) -> Losses:
        return self.objective(self.forward_model, batch, generator, kind=kind, step=step)
