"""Counters of a run, which together with the seed determine all batches and all noise (`mm_ldlm.training.seeds`)."""

import dataclasses
import typing
from typing import Annotated, Any

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
        """Restore values by name.

        Raises:
            CheckpointError: a value is not a number of its type.
        """
        for name, hint in typing.get_type_hints(TrainingState, include_extras=True).items():
            value = found.get(name, getattr(TrainingState, name))
            setattr(self, name, check(value, hint, name=name, error=CheckpointError))
