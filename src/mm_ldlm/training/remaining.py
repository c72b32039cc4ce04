"""Estimate of the seconds that a training still takes, from the steps that this session measured."""

from __future__ import annotations

import statistics
from collections import deque

from mm_ldlm.training.batches import BatchPlan, Planned

FIRST_STEPS, FIRST_SECONDS, PATIENCE = 20, 5.0, 30.0
"""The first estimate needs so many steps and seconds of measurement, or fewer steps that take `PATIENCE` seconds"""
KEPT = 200
"""Number of the newest steps that an estimate is made from"""
OUTLIER = 3.0
"""A step that takes more than this multiple of the median, for its tokens, is left out of an estimate"""


class Remaining:
    """Seconds of the steps to come: the measured seconds per padded token × the padded tokens of these steps.

    A step lasts from the end of the step before to its own, so the first one of a session is not measured. Steps during
    which something was compiled, validated or saved are outliers: an estimate is that of the steps alone.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self._steps: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self._ended: float | None = None
        self.measured = 0
        """Number of measured steps"""
        self._seconds = 0.0
        self._epoch = 0
        self._tokens_per_step = 0.0
        self._estimated = False

    def stepped(self, planned: Planned, now: float) -> None:
        """Measure a step that ended at the time `now`, in seconds."""
        if self._ended is not None:
            seconds = now - self._ended
            self._steps.append((seconds, len(planned.examples) * planned.length))
            self.measured += 1
            self._seconds += seconds
        self._ended, self._epoch = now, planned.epoch

    def per_step(self) -> float | None:
        """Compute the seconds of a step of the mean size; None before a step was measured."""
        if not self._steps:
            return None
        rates = [seconds / tokens for seconds, tokens in self._steps]
        most = OUTLIER * statistics.median(rates)
        kept = [step for step, rate in zip(self._steps, rates, strict=True) if rate <= most]
        if not self._tokens_per_step:
            batches = self.plan.epoch(self._epoch)
            self._tokens_per_step = sum(len(examples) * length for examples, length in batches) / len(batches)
        return sum(seconds for seconds, _ in kept) / sum(tokens for _, tokens in kept) * self._tokens_per_step

    def first(self) -> bool:
        """Return True once: when enough was measured for the first estimate."""
        enough = self.measured >= FIRST_STEPS and self._seconds >= FIRST_SECONDS
        if self._estimated or not (enough or (self.measured and self._seconds >= PATIENCE)):
            return False
        self._estimated = True
        return True
