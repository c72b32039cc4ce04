"""Observers of the training loop: they read what a step computes, and change nothing of the training."""

from mm_ldlm.core import Registry
from mm_ldlm.objectives.base import Batch


class Observer:
    """Work of an extra before, during and after the steps of a run; a subclass overrides the methods that it needs.

    The methods run on every rank that has the observer. One that communicates with other ranks is there on all of them.
    """

    def start(self) -> None:
        """Check whether the run can start. Nothing is resumed yet; an error refuses the run."""

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
        """Return numbers for the log, which has a line of this step if there are any; `step` counts from 1."""
        return {}

    def after_step(self, step: int, *, last: bool) -> None:
        """Act between two steps; `last` is whether this was the last one of the run."""


OBSERVERS = Registry("observer", {}, group="observers")
"""Functions of a built `training.loop.Run`: they return its observer, or None where there is nothing to observe."""
