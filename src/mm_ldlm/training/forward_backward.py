"""Run the forward and backward passes of this rank's part of a step, and collect their losses."""

import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.distributed.parallel import Parallel
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Batch, Losses, Objective
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.config import PrecisionConfig
from mm_ldlm.training.seeds import seed_everything, step_seed

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Tally:
    """Sums and counts of one step, kept on the device until they are all-reduced and read at once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: Tensor = torch.zeros(())
        """(1 + 2·names,) float64: total loss, sums, counts"""

    def add(self, losses: Losses, total_loss: Tensor) -> None:
        with torch.no_grad():
            sums = [value.detach().double() for value, _ in losses.values()]
            counts = [count.detach().double() for _, count in losses.values()]
            numbers = torch.stack([total_loss.detach().double(), *sums, *counts])
            self.numbers = self.numbers + numbers if self.names else numbers
            self.names = list(losses)

    def split(self, numbers: list[float]) -> tuple[float, dict[str, tuple[float, float]]]:
        """Split the all-reduced numbers into (total loss, name → (sum, count))."""
        n = len(self.names)
        return numbers[0], {name: (numbers[1 + i], numbers[1 + n + i]) for i, name in enumerate(self.names)}


class Stepper:
    """Forward and backward passes of the trainable root in the configured precision, with the noise of each step.

    `draw` is the number of the global batch; with the seed of the run it determines all noise of a step. `scaler`
    scales the loss under fp16, and does nothing otherwise.
    """

    def __init__(
        self, parallel: Parallel, process: Process, *, precision: PrecisionConfig, scaler: torch.amp.GradScaler,
        seed: int,
    ) -> None:  # fmt: skip
        self.parallel, self.process, self.precision = parallel, process, precision
        self.scaler, self.seed = scaler, seed
        self.root: TrainableRoot = parallel.inner
        self.objective: Objective = self.root.objective

    def generator(self, batch: Batch, draw: int) -> RowGenerator:
        """Make the generator of a micro-batch from the run's seed, the draw and the positions in the global batch."""
        return RowGenerator(step_seed(self.seed, draw), batch.position_B)

    def autocast(self) -> torch.autocast:
        dtype = AUTOCAST.get(self.precision.autocast)
        return torch.autocast(self.process.device.type, dtype=dtype, enabled=dtype is not None)

    def losses(self, batch: Batch, *, kind: str, draw: int, step: int) -> Losses:
        """Compute the losses of a micro-batch on this rank, without the gradient reduction of training."""
        with self.autocast():
            found: Losses = self.root(batch, self.generator(batch, draw), kind, step)
        return found

    def total(self, batch: Batch, *, kind: str, draw: int, step: int) -> Tensor:
        """Compute the weighted total of `losses`."""
        return total(self.losses(batch, kind=kind, draw=draw, step=step), self.objective, batch)

    def forward_backward(self, micros: list[Batch], *, draw: int, step: int) -> tuple[str, Tally]:
        """Accumulate the gradients of this rank's micro-batches; gradients are reduced over ranks in the last one."""
        seed_everything(self.seed, draw, rank=self.process.rank)
        tally, kind = Tally(), ""
        for number, micro in enumerate(micros):
            batch = micro.to(self.process.device)
            generator = self.generator(batch, draw)
            kind = kind or self.objective.kind(generator, step=step)
            with self.parallel.accumulate(last=number == len(micros) - 1):
                with self.autocast():
                    losses = self.parallel.module(batch, generator, kind, step)
                loss = total(losses, self.objective, batch)
                # times the number of ranks, because DDP and FSDP average gradients over ranks; the loss is a global sum
                self.scaler.scale(loss * self.process.world).backward()
            tally.add(losses, loss)
        return kind, tally


def total(losses: Losses, objective: Objective, batch: Batch) -> Tensor:
    """Compute the weighted sum (0-D float32) of the trained losses, each divided by its *global* count.

    The sum over all ranks and micro-batches is the loss of the global batch, not a mean of means.
    """
    parts = [
        losses[name][0] * (weight / max(batch.normaliser(objective.units[name]), 1))
        for name, weight in objective.weights.items()
        if name in losses and weight > 0
    ]
    return torch.stack(parts).sum()


class Averages:
    """Sums and counts since the last log line, over all steps and over the steps of each kind."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, float]] = {}

    def add(self, kind: str, loss: float, found: dict[str, tuple[float, float]]) -> None:
        for name, (value, count) in ({"loss": (loss, 1.0)} | found).items():
            for key in (name, f"{kind}/{name}"):
                total, number = self._held.get(key, (0.0, 0.0))
                self._held[key] = total + value, number + count

    def take(self) -> dict[str, float]:
        """Return the averages and reset the sums; names with a count of 0 are omitted."""
        found = {name: value / count for name, (value, count) in self._held.items() if count > 0}
        self._held = {}
        return found
