"""State that training steps change: the trainable root with its averages, optimizer, guard and counters."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mm_ldlm.core import CheckpointError, reason_of
from mm_ldlm.distributed.parallel import full
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.checkpoints.weights import (
    finite,
    load_tensors,
    persistent_buffers,
    refuse_non_finite,
    saved_tensors,
)
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.counters import TrainingState
from mm_ldlm.training.ema import Ema
from mm_ldlm.training.guard import Guard
from mm_ldlm.training.optimizer import Optimization

_OTHER = (
    "Restore the file, continue from an earlier checkpoint under a new name (training.run_name=NEW,training.resume=RUN/"
    "checkpoints/step-…), or start anew (training.resume=never)."
)


@dataclasses.dataclass(frozen=True)
class Learner:
    """Trainable root with its averages, the optimizer with the loss scaler, the guard and the counters."""

    root: TrainableRoot
    ema: Ema
    optimization: Optimization
    guard: Guard
    state: TrainingState

    @classmethod
    def start(cls, root: TrainableRoot, config: TrainingConfig, device: torch.device) -> Self:
        """Make the learner of a run that has not started."""
        scaler = torch.amp.GradScaler(device.type, enabled=config.precision.autocast == "fp16")
        optimization = Optimization(root, config.optimizer, max_steps=config.steps, scaler=scaler)
        most = min(config.guard.max_consecutive_skips, config.steps)  # else a short run could skip every step
        guard = Guard(dataclasses.replace(config.guard, max_consecutive_skips=most))
        return cls(root, Ema(root, config.ema), optimization, guard, TrainingState())

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of each file of a checkpoint, by name; the next step changes them."""
        held = {"model.safetensors": saved_tensors(self.root), "optimizer.safetensors": self.optimization.tensors()}
        if self.ema.values:
            held["ema.safetensors"] = self._averages()
        return held

    def snapshot(self, *, keep: bool) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
        """Copy `tensors()`, unsharded, to the CPU, and list the non-finite ones. Every rank must call it.

        Args:
            keep: whether this rank needs the copies.
        """
        copies: dict[str, dict[str, Tensor]] = {}
        checked: dict[str, Tensor] = {}
        device = self.optimization.parameters[0].device
        buffers = persistent_buffers(self.root).keys()
        for file, held in self.tensors().items():
            copies[file] = {}
            for name, value in held.items():
                whole = full(value.detach())
                checked[f"{name} ({file})"] = finite(whole, or_infinite=name in buffers).to(device)
                if keep:
                    copies[file][name] = whole.to("cpu", copy=True)
        right = torch.stack(list(checked.values())).tolist()
        return copies, [name for name, fine in zip(checked, right, strict=True) if not fine]

    def numbers(self) -> dict[str, Any]:
        """Return everything else, as plain JSON."""
        scaler = self.optimization.scaler.state_dict()
        return {"state": dataclasses.asdict(self.state), "guard": self.guard.to_dict(), "scaler": scaler}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], numbers: Mapping[str, Any], path: Path) -> None:
        """Restore `tensors()` and `numbers()` of the checkpoint `path`. Every rank must call it.

        Raises:
            CheckpointError: they belong to another model, do not belong together, or are non-finite.
        """
        buffers = persistent_buffers(self.root).keys()
        for name, held in tensors.items():
            refuse_non_finite(held, path / name, or_infinite=buffers, remedy=_OTHER)
        load_tensors(saved_tensors(self.root), tensors["model.safetensors"], path / "model.safetensors")
        if self.ema.values:
            load_tensors(self._averages(), tensors["ema.safetensors"], path / "ema.safetensors")
        try:
            self.optimization.load(tensors["optimizer.safetensors"])
            if numbers["scaler"]:
                self.optimization.scaler.load_state_dict(numbers["scaler"])
            self.guard.load(numbers["guard"])
            self.state.load(numbers["state"])
        except (
            AttributeError, CheckpointError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError
        ) as error:  # fmt: skip
            raise CheckpointError(
                f"{path}: the state of the optimizer, the guard or the counters cannot be restored "
                f"({reason_of(error).removesuffix('.')}). {_OTHER}"
            ) from None

    def _averages(self) -> dict[str, Tensor]:
        """Return the averages, with the buffers that inference needs next to them."""
        return {**self.ema.values, **persistent_buffers(self.root)}
