"""Counters of a run, and its seeds; the only module that sets global seeds."""

import dataclasses
import hashlib
import math
import random
import sys
from typing import Any

import numpy as np
import torch

from mm_ldlm.core import show
from mm_ldlm.training.batch_plan import Planned


@dataclasses.dataclass
class TrainingState:
    """Counters of a run. `step` and `draw` differ only after a roll-back, which restores the step but not the data."""

    step: int = 0
    """optimizer steps, including skipped ones; the argument of the learning-rate schedule"""
    draw: int = 0
    """global batches drawn; with the seed it determines all noise of a step"""
    epoch: int = 0
    batch_in_epoch: int = 0
    """index of the next batch"""
    examples: int = 0
    tokens: int = 0
    """valid tokens trained on"""
    skipped: int = 0
    rollbacks: int = 0
    lr_scale: float = 1.0
    seconds: float = 0.0
    """seconds in the loop, over all sessions"""
    ema_updates: int = 0
    best: float | None = None

    def drawn(self, planned: Planned) -> None:
        """Count a step on a global batch, whether its update was applied or not."""
        self.step += 1
        self.draw += 1
        self.epoch, self.batch_in_epoch = planned.epoch, planned.index + 1
        self.examples += len(planned.examples)
        self.tokens += planned.tokens

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def load(self, found: dict[str, Any]) -> None:
        """Take the values of `to_dict`; ValueError if one of them is not a number of its kind."""
        for field in dataclasses.fields(self):
            default: Any = field.default
            value = found.get(field.name, default)
            measure = field.name in ("lr_scale", "seconds", "best")
            kinds = (int, float, type(default)) if measure else (int,)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            least = {"lr_scale": sys.float_info.min, "best": -math.inf}.get(field.name, 0)
            if not is_number or (value is not None and not value >= least):
                raise ValueError(f"expected a number in '{field.name}', found {show(value, 60)}")
            setattr(self, field.name, value)


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
    torch.manual_seed(seed)
