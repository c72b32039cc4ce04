"""Short runs in memory: a built run with its log, and its seconds by step."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from mm_ldlm.distributed.process import joined
from mm_ldlm.extras.gpu_check import task
from mm_ldlm.objectives.base import Objective
from mm_ldlm.training import loop
from mm_ldlm.training.build import build
from mm_ldlm.training.data import Data
from mm_ldlm.training.spec import TrainingSpec


@dataclasses.dataclass
class Session:
    """A run that was built and not started, and what it logs."""

    parts: loop.Run
    log: task.Recorder

    def train(self, steps: int) -> float:
        """Train further steps; return the seconds, until the device has finished."""
        device = self.parts.process.device
        _wait(device)
        started = time.perf_counter()
        loop.run(self.parts, pause_at=self.parts.state.step + steps)
        _wait(device)
        return time.perf_counter() - started

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copy weights, averages and optimizer state to the CPU."""
        held: dict[str, torch.Tensor] = {f"model {name}": p for name, p in self.parts.stepper.root.named_parameters()}
        held |= {f"ema {name}": value for name, value in self.parts.ema.values.items()}
        held |= {f"optimizer {name}": value for name, value in self.parts.optimization.tensors().items()}
        return {name: value.detach().to("cpu", copy=True) for name, value in held.items()}


@contextlib.contextmanager
def session(
    spec: TrainingSpec, root: Path, *, data: Data | None = None, checkpoints: bool = False,
    wrap_objective: Callable[[Objective], Objective] | None = None,
) -> Iterator[Session]:  # fmt: skip
    """Build a run of the task in one process.

    Args:
        data: data instead of those of `task.data`.
        checkpoints: write checkpoints under `root`; otherwise none are written, so that times do not include them.
    """
    log = task.Recorder()
    with joined(device=spec.training.device) as process:
        given = data or task.data(spec)
        parts = build(spec, root=root, data=given, process=process, tracker=log, wrap_objective=wrap_objective)
        if not checkpoints:
            parts.checkpointer.save = lambda line: None  # type: ignore[method-assign]
        yield Session(parts, log)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
