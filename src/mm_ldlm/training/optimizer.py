"""Optimizer of the trainable root, AdamW, and its learning-rate schedule."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.distributed.parallel import assign, full
from mm_ldlm.training.config import OptimizerConfig

_KIND = "adamw/"
"""Prefix of the names of the optimizer state in a checkpoint"""


def learning_rate_factor(config: OptimizerConfig, *, step: int, max_steps: int) -> float:
    """Compute the factor of the learning rate, between 0 and 1, for the update of `step` (counted from 0)."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    done = min((step - config.warmup_steps) / max(max_steps - config.warmup_steps, 1), 1.0)
    fall = 0.5 * (1 + math.cos(math.pi * done)) if config.schedule == "cosine" else 1 - done
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * fall


def parameter_groups(root: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Group (name, parameter) by weight decay, which only matrices that multiply activations have.

    Every trainable parameter is in exactly one group.
    """
    decayed: dict[str, Any] = {"params": [], "weight_decay": config.weight_decay}
    plain: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    seen: set[int] = set()
    for module_name, module in root.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            multiplies = parameter.ndim >= 2 and name == "weight" and not isinstance(module, nn.Embedding)
            group = decayed if multiplies else plain
            group["params"].append((f"{module_name}.{name}".removeprefix("."), parameter))
    return [group for group in (decayed, plain) if group["params"]]


class Optimization:
    """AdamW of one trainable root.

    `scaler` scales the gradients of fp16, and does nothing otherwise.
    """

    def __init__(
        self, root: nn.Module, config: OptimizerConfig, *, max_steps: int, scaler: torch.amp.GradScaler
    ) -> None:
        self.config, self.max_steps, self.scaler = config, max_steps, scaler
        self.groups = parameter_groups(root, config)
        self.named: dict[str, nn.Parameter] = {name: p for group in self.groups for name, p in group["params"]}
        self.parameters = list(self.named.values())
        self.sharded = any(hasattr(p, "full_tensor") for p in self.parameters)
        self.optimizer = torch.optim.AdamW(
            [{**group, "params": [p for _, p in group["params"]]} for group in self.groups],
            lr=config.lr, betas=config.betas, eps=config.eps,
            fused=not self.sharded or None, foreach=True if self.sharded else None,
        )  # fmt: skip

    def set_lr(self, step: int, *, scale: float) -> float:
        """Set the learning rate for the update of `step`, and return it."""
        lr = self.config.lr * (learning_rate_factor(self.config, step=step, max_steps=self.max_steps) * scale)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def unscale(self) -> None:
        """Divide the gradients by the scale of the loss."""
        self.scaler.unscale_(self.optimizer)

    def norm(self) -> Tensor:
        """Compute the global gradient norm (0-D, on the device), over all shards of sharded parameters."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if not grads:
            return torch.zeros((), device=self.parameters[0].device)
        return full(nn.utils.get_total_norm(grads))

    def clip(self, norm: float) -> bool:
        """Clip the gradients to the configured norm; return whether that was necessary."""
        if self.config.clip is None or norm <= self.config.clip:
            return False
        torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], self.config.clip / (norm + 1e-6))
        return True

    def step(self) -> None:
        self.scaler.step(self.optimizer)

    def finish(self) -> None:
        """End a step, with or without an update: adapt the loss scale and drop the gradients."""
        self.scaler.update()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state as tensors by `adamw/parameter/entry`."""
        return {
            f"{_KIND}{name}/{entry}": value
            for name, p in self.named.items()
            for entry, value in self.optimizer.state.get(p, {}).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of `tensors()`, each tensor placed and sharded like its parameter.

        Raises:
            KeyError: there is no such parameter.
            ValueError: parameters have states with different entries, or a state is not a floating-point tensor.
        """
        self.optimizer.state.clear()
        for key, value in tensors.items():
            name, entry = key.removeprefix(_KIND).rsplit("/", 1)
            p = self.named[name]
            if not value.is_floating_point():
                raise ValueError(f"{key} has numbers of the type {value.dtype}")
            # A fused optimizer reads its step count on the device, any other on the CPU, so that nothing waits.
            device = value.device if self.sharded else p.device
            held = torch.empty_like(value, device=device) if value.ndim == 0 else torch.empty_like(p)
            assign(held, value)
            self.optimizer.state[p][entry] = held
        if len({frozenset(held) for held in self.optimizer.state.values()}) > 1:
            raise ValueError("the parameters have states with different entries")

    def describe(self) -> list[dict[str, Any]]:
        """Describe each parameter group, for the sanity table and the checkpoints."""
        return [
            {
                "optimizer": "adamw", "lr": self.config.lr, "weight_decay": group["weight_decay"],
                "tensors": len(group["params"]), "elements": sum(p.numel() for _, p in group["params"]),
            }
            for group in self.groups
        ]  # fmt: skip
