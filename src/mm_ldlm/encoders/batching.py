"""Batches of similar length under a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def by_length(lengths: Sequence[int], *, budget: int, rows: int) -> list[npt.NDArray[np.int64]]:
    """Cut the indices, sorted by length (longest first, ties in order), into batches.

    A batch holds at most `rows` indices and at most `budget` tokens after padding to its longest; a single row longer
    than the budget is a batch of its own. A function of its arguments alone, so the same rows meet on every machine.
    """
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        size = max(1, min(rows, budget // longest))
        batches.append(order[start : start + size])
        start += size
    return batches
