"""Optimizers of the trainable root: AdamW, and Muon for the matrices of the blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.training.config import OptimizerConfig
from mm_ldlm.training.learning_rate import learning_rate_factor


def decays(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter has weight decay: only matrices that multiply activations have it."""
    return parameter.ndim >= 2 and name == "weight" and not isinstance(module, nn.Embedding)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Group (name, parameter) by optimizer and decay; every trainable parameter is in exactly one group."""
    matrices: list[tuple[str, nn.Parameter]] = []
    decayed: list[tuple[str, nn.Parameter]] = []
    plain: list[tuple[str, nn.Parameter]] = []
    blocks = {id(p) for module_name, module in model.named_modules() if isinstance(module, nn.ModuleList)
              for p in module.parameters() if p.ndim == 2}  # fmt: skip
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            full = f"{module_name}.{name}" if module_name else name
            if not decays(module, name, parameter):
                plain.append((full, parameter))
            elif config.name == "muon" and id(parameter) in blocks:
                matrices.append((full, parameter))
            else:
                decayed.append((full, parameter))
    groups = [
        {"kind": "muon", "params": matrices, "weight_decay": config.weight_decay, "base_lr": config.muon_lr},
        {"kind": "adamw", "params": decayed, "weight_decay": config.weight_decay, "base_lr": config.lr},
        {"kind": "adamw", "params": plain, "weight_decay": 0.0, "base_lr": config.lr},
    ]
    return [group for group in groups if group["params"]]


class Optimization:
    """Optimizers of one trainable root, used together."""

    def __init__(self, root: nn.Module, config: OptimizerConfig, *, max_steps: int) -> None:
        self.config, self.max_steps = config, max_steps
        self.groups = parameter_groups(root, config)
        self.names = {id(p): name for group in self.groups for name, p in group["params"]}
        self.parameters: list[nn.Parameter] = [p for group in self.groups for _, p in group["params"]]
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        for kind in ("adamw", "muon"):
            made = [
                {
                    "params": [p for _, p in group["params"]],
                    "weight_decay": group["weight_decay"],
                    "lr": group["base_lr"],
                }
                for group in self.groups
                if group["kind"] == kind
            ]
            if made and kind == "adamw":
                sharded = any(hasattr(p, "full_tensor") for p in self.parameters)
                self.optimizers[kind] = torch.optim.AdamW(
                    made, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0, fused=not sharded or None,
                    foreach=True if sharded else None,
                )  # fmt: skip
            elif made:
                self.optimizers[kind] = torch.optim.Muon(
                    made, lr=config.muon_lr, momentum=config.muon_momentum, weight_decay=0.0,
                    adjust_lr_fn="match_rms_adamw",
                )  # fmt: skip
        self._base = {kind: [g["base_lr"] for g in self.groups if g["kind"] == kind] for kind in self.optimizers}

    def set_lr(self, step: int, *, scale: float) -> float:
        """Set the learning rate of every group for the update of `step`; return that of AdamW."""
        factor = learning_rate_factor(self.config, step=step, max_steps=self.max_steps) * scale
        for kind, optimizer in self.optimizers.items():
            for group, base in zip(optimizer.param_groups, self._base[kind], strict=True):
                group["lr"] = base * factor
        return self.config.lr * factor

    def norm(self) -> Tensor:
        """Compute the global gradient norm (0-D, on the device), over all shards of sharded parameters."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        if not grads:
            return torch.zeros((), device=self.parameters[0].device)
        found = nn.utils.get_total_norm(grads)
        whole: Any = getattr(found, "full_tensor", None)
        return found if whole is None else whole()

    def clip(self, norm: float) -> bool:
        """Clip the gradients to the configured norm; return whether that was necessary."""
        if self.config.clip is None or norm <= self.config.clip:
            return False
        torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], self.config.clip / (norm + 1e-6))
        return True

    def step(self, scaler: Any = None) -> None:
        for optimizer in self.optimizers.values():
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)

    def drop_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state as tensors by `kind/parameter/entry`."""
        return {
            f"{kind}/{self.names[id(p)]}/{entry}": value
            for kind, optimizer in self.optimizers.items()
            for p, held in optimizer.state.items()
            for entry, value in held.items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: dict[str, Tensor], assign: Any) -> None:
        """Restore the state of `tensors()`; `assign(like, value)` makes a tensor placed like the parameter.

        Raises:
            KeyError: there is no such optimizer or parameter.
            ValueError: a parameter has a part of the entries that others of its optimizer have.
        """
        by_name = {name: p for group in self.groups for name, p in group["params"]}
        for optimizer in self.optimizers.values():
            optimizer.state.clear()
        for key, value in tensors.items():
            kind, rest = key.split("/", 1)
            name, entry = rest.rsplit("/", 1)
            p = by_name[name]
            self.optimizers[kind].state[p][entry] = value.clone() if value.ndim == 0 else assign(p, value)
        for kind, optimizer in self.optimizers.items():
            entries = {entry for held in optimizer.state.values() for entry in held}
            for p, held in optimizer.state.items():
                if lacking := sorted(entries - set(held)):
                    raise ValueError(f"the state of {self.names[id(p)]} in {kind} lacks {', '.join(lacking)}")

    def describe(self) -> list[dict[str, Any]]:
        """Describe each parameter group, for the sanity table and the log."""
        return [
            {
                "optimizer": group["kind"], "lr": group["base_lr"], "weight_decay": group["weight_decay"],
                "tensors": len(group["params"]), "elements": sum(p.numel() for _, p in group["params"]),
            }
            for group in self.groups
        ]  # fmt: skip
