"""Alerts: signs that a training goes on without learning, found in numbers that the host has read anyway.

An alert is an event in the log (`alert`, with its name and a reason). It changes nothing, and it is logged once until
its cause has ended.
"""

from collections import deque
from collections.abc import Mapping

from mm_ldlm.training.jsonl import Tracker

ZERO_STEPS = 3
"""Steps in a row with a gradient norm of exactly 0"""
ZERO_DIAGNOSES = 3
"""Diagnosed steps in a row in which the gradient of a part was exactly 0; at step 0 that is normal behind gates"""
WINDOW = 500
"""Steps of one kind whose mean loss is compared with that of as many steps before"""
CONSTANT = 1e-6
"""Relative range of the losses of a window that batches of real data never have"""


class Alerts:
    """Watches gradients and losses of one session, separately for each kind of step."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._active: set[str] = set()
        self._zero_steps = 0
        self._losses: dict[str, deque[float]] = {}
        self._before: dict[str, tuple[float, float]] = {}
        self._zero_parts: dict[str, int] = {}

    def stepped(self, step: int, *, kind: str, loss: float, grad_norm: float) -> None:
        """Take the numbers of a step whose update was applied."""
        self._zero_steps = self._zero_steps + 1 if grad_norm == 0 else 0
        self._set(
            "zero_gradients", self._zero_steps >= ZERO_STEPS, step,
            f"the gradient was exactly 0 in {ZERO_STEPS} steps in a row: the loss does not depend on the trained "
            "parameters, or every gradient underflowed",
        )  # fmt: skip
        losses = self._losses.setdefault(kind, deque())
        losses.append(loss)
        if len(losses) == WINDOW:
            self._judge_window(kind, list(losses), step)
            losses.clear()

    def diagnosed(self, step: int, line: Mapping[str, float]) -> None:
        """Take the numbers of a diagnosed step."""
        for key, value in line.items():
            if key.startswith("grad_zeros/"):
                part = key.removeprefix("grad_zeros/")
                self._zero_parts[part] = self._zero_parts.get(part, 0) + 1 if value == 1 else 0
        dead = sorted(part for part, count in self._zero_parts.items() if count >= ZERO_DIAGNOSES)
        self._set(
            "zero_gradients_of_parts", bool(dead), step,
            f"the gradients of {', '.join(dead)} were exactly 0 in {ZERO_DIAGNOSES} diagnosed steps in a row: nothing "
            "in the loss depends on these parts",
        )  # fmt: skip

    def _judge_window(self, kind: str, losses: list[float], step: int) -> None:
        mean = sum(losses) / len(losses)
        error = (sum((loss - mean) ** 2 for loss in losses) / len(losses)) ** 0.5 / len(losses) ** 0.5
        constant = max(losses) - min(losses) <= CONSTANT * max(abs(mean), 1e-30)
        self._set(
            f"constant_loss/{kind}", constant, step,
            f"the loss of mode {kind} was {mean:g} in all of {WINDOW} steps: it does not depend on the data, or it is "
            "clamped",
        )  # fmt: skip
        before, error_before = self._before.get(kind, (float("inf"), 0.0))
        self._before[kind] = mean, error
        fell = before - mean > (error**2 + error_before**2) ** 0.5
        self._set(
            f"stalled_loss/{kind}", not fell and not constant, step,
            f"the loss of mode {kind} did not fall: {before:.4g} and then {mean:.4g} are its means over {WINDOW} steps "
            "each. The model has converged, the learning rate does not fit, or the gradients do not reach it",
        )  # fmt: skip

    def _set(self, name: str, active: bool, step: int, reason: str) -> None:
        """Log an alert when its cause begins."""
        if active and name not in self._active:
            self._tracker.event(step, "alert", name=name, reason=reason)
        (self._active.add if active else self._active.discard)(name)
