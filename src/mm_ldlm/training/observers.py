"""Interface of observers of the training loop, which read what a step computes and do not change the training."""

from mm_ldlm.core import Registry
from mm_ldlm.objectives.base import Batch


class Observer:
    """Work of an extra before, during and after the steps of a run; a subclass overrides the methods that it needs.

    The methods run on every rank that has the observer. An observer that communicates between ranks must exist on all.
    """

    def start(self) -> None:
        """Check whether the run can start, before a checkpoint is restored; an error refuses the run."""

    def before_step(self, step: int, micros: list[Batch]) -> None:
        """Prepare for the step after `step` finished ones, on these micro-batches."""

    def before_update(self) -> None:
        """Read the gradients after the backward pass; with fp16 they are still scaled."""

    def refused(self, micros: list[Batch], *, kind: str, reason: str) -> str:
        """Explain a non-finite step, the first of several in a row, in a paragraph for the log and the errors.

        May clear the gradients, which no update will use.
        """
        return ""

    def after_update(self, step: int, *, applied: bool) -> dict[str, float]:
        """Return numbers for the log line of this step, which is written if there are any; `step` counts from 1."""
        return {}

    def after_step(self, step: int, *, last: bool) -> None:
        """Act between two steps; `last` is whether this was the last one of the run."""


OBSERVERS = Registry("observer", {}, group="observers")
"""Functions that return the observer of a built `training.loop.Run`, or None if there is nothing to observe."""
