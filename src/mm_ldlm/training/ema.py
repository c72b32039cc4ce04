"""Exponential moving average (EMA) of the weights, in float32."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from mm_ldlm.training.config import EmaConfig
from mm_ldlm.training.counters import TrainingState


class Ema:
    """Float32 moving average of every parameter of the trainable root, frozen ones included."""

    def __init__(self, root: nn.Module, config: EmaConfig) -> None:
        self.config = config
        self.parameters = dict(root.named_parameters())
        self.values: dict[str, Tensor] = {}
        if config.enabled:
            self.values = {name: p.detach().float().clone() for name, p in self.parameters.items()}
            self._moving = [name for name, p in self.parameters.items() if p.requires_grad]

    def update(self, state: TrainingState) -> None:
        """Update the averages and count it; the decay warms up with the number of earlier updates."""
        updates = state.ema_updates
        state.ema_updates += 1
        if not self.values:
            return
        decay = min(self.config.decay, (1 + updates) / (10 + updates))
        with torch.no_grad():
            torch._foreach_lerp_(
                [self.values[name] for name in self._moving],
                [self.parameters[name].detach().float() for name in self._moving],
                1 - decay,
            )

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Replace the weights of the root by their averages until the block ends."""
        held = {name: self.parameters[name].detach().clone() for name in self.values}
        try:
            self._assign(self.values)
            yield
        finally:
            self._assign(held)

    @torch.no_grad()
    def _assign(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self.parameters[name].copy_(value)
