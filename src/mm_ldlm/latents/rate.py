"""Rows per second of an extraction, and the seconds that remain."""

from __future__ import annotations

FIRST_SECONDS = 5.0
"""An estimate needs so many seconds of measurement"""


class Rate:
    """Speed of the rows that were finished after the first ones, whose time includes loading the encoder.

    Rows are finished a shard at a time, so the time of the last finished shard counts, and not the time since then.
    """

    def __init__(self, rows: int) -> None:
        self.rows, self._done = rows, 0
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def advanced(self, done: int, now: float) -> None:
        """Take the number of rows that are finished at the time `now`, in seconds."""
        if done <= self._done:
            return
        self._done, self._last = done, (done, now)
        self._first = self._first or self._last

    def left(self, now: float) -> float | None:
        """Estimate the seconds that the remaining rows take; None before enough was measured."""
        if self._first is None or self._last[1] - self._first[1] < FIRST_SECONDS:
            return None
        per_row = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        return max(0.0, (self.rows - self._last[0]) * per_row - (now - self._last[1]))
