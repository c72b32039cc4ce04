"""Counters of a run, and its seeds; the only module that sets global seeds."""

import dataclasses
import hashlib
import random
import typing
from typing import Annotated, Any

import numpy as np
import torch

from mm_ldlm.core import CheckpointError, bounded, check
from mm_ldlm.training.batches import Planned

Count = Annotated[int, bounded(ge=0)]
Finite = bounded(allow_inf_nan=False)


@dataclasses.dataclass
class TrainingState:
    """Counters of a run. `step` and `draw` differ only after a roll-back, which restores the step but not the data."""

    step: Count = 0
    """optimizer steps, including skipped ones; the argument of the learning-rate schedule"""
    draw: Count = 0
    """global batches drawn; with the seed it determines all noise of a step"""
    epoch: Count = 0
    batch_in_epoch: Count = 0
    """index of the next batch"""
    examples: Count = 0
    tokens: Count = 0
    """valid tokens trained on"""
    skipped: Count = 0
    rollbacks: Count = 0
    lr_scale: Annotated[float, Finite, bounded(gt=0)] = 1.0
    seconds: Annotated[float, Finite, bounded(ge=0)] = 0.0
    """seconds in the loop, over all sessions"""
    ema_updates: Count = 0
    best: Annotated[float, Finite] | None = None

    def drawn(self, planned: Planned) -> None:
        """Count a step on a global batch, whether its update was applied or not."""
        self.step += 1
        self.draw += 1
        self.epoch, self.batch_in_epoch = planned.epoch, planned.index + 1
        self.examples += len(planned.examples)
        self.tokens += planned.tokens

    def load(self, found: dict[str, Any]) -> None:
        """Take values by name; CheckpointError if one of them is not a number of its kind."""
        for name, hint in typing.get_type_hints(TrainingState, include_extras=True).items():
            value = found.get(name, getattr(TrainingState, name))
            setattr(self, name, check(value, hint, name=name, error=CheckpointError))


def step_seed(seed: int, draw: int, name: str = "") -> int:
    """Compute the seed (63 bits) of all randomness of a step from the seed of the run and the number of the batch."""
    digest = hashlib.blake2b(f"{seed}/{draw}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(seed: int, draw: int, *, rank: int) -> None:
    """Seed the global generators as a function of step and rank, so that a resumed step draws the same numbers.

    Only dropout and third-party code use them; other noise uses `RowGenerator`.
    """
    seed = step_seed(seed, draw, f"dropout/{rank}")
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # torch.manual_seed would format the stack in every step on the CPU
        torch.cuda.manual_seed_all(seed)
