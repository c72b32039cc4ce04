"""Speed of an extraction, and the seconds that remain."""

from __future__ import annotations

FIRST_SECONDS = 5.0
"""An estimate needs so many seconds of measurement"""


class Rate:
    """Rows per second, measured from the first time at which rows were finished to the newest one.

    The measurement begins after the encoder was loaded and the first rows were finished. Shards that several threads
    compute at once end together, as rounds, and some shards of a round may be seen before the others. Therefore the
    rows of the first time count and those of the newest do not: the seconds and the rows are those of whole rounds.
    """

    def __init__(self, rows: int) -> None:
        self.rows, self._counted, self._done = rows, 0, 0
        self._first: float | None = None
        self._last = 0.0

    def advanced(self, done: int, now: float) -> None:
        """Take the number of rows that are finished at the time `now`, in seconds."""
        if done <= self._done:
            return
        self._counted, self._done, self._last = self._done, done, now
        self._first = now if self._first is None else self._first

    def left(self, now: float) -> float | None:
        """Estimate the seconds that the remaining rows take; None before enough was measured."""
        if self._first is None or self._last - self._first < FIRST_SECONDS:
            return None
        per_row = (self._last - self._first) / self._counted
        return max(0.0, (self.rows - self._done) * per_row - (now - self._last))
