"""Batches of texts of similar length under a budget of padded tokens, and several of them at a time on a CPU."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.data.engines import count_cores

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def batches_by_length(
    lengths: Sequence[int], *, max_tokens: int, max_rows: int | None = None
) -> list[npt.NDArray[np.int64]]:
    """Divide the indices, sorted by length (longest first, ties in order), into batches.

    A batch has at most `max_rows` indices and at most `max_tokens` tokens after padding to its longest text. A text
    longer than `max_tokens` is a batch by itself. The result depends on the arguments only, so that every machine forms
    the same batches.
    """
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        size = max(1, max_tokens // longest)
        size = size if max_rows is None else min(size, max_rows)
        batches.append(order[start : start + size])
        start += size
    return batches


def lanes_of(device: torch.device | str, *, threads: int = 1) -> int:
    """Return how many batches to compute at a time: on a CPU one per `threads` cores, on other devices one.

    Operations on small batches gain little from a second thread, but matrix products release Python's lock.
    """
    return max(1, count_cores() // threads) if torch.device(device).type == "cpu" else 1


def side_by_side(work: Callable[[Batch], Result], batches: Sequence[Batch], *, lanes: int) -> Iterator[Result]:
    """Return an iterator of `work(batch)` for each batch, in order, with `lanes` batches at a time, without gradients.

    Each lane has the threads of the caller, or fewer, because the lanes share the cores. The results do not depend on
    the number of lanes. After an error, batches that were not started are left out. The threads end with the iterator,
    so that a process that is forked then has none of their locks.
    """
    lanes = min(lanes, len(batches))
    return map(work, batches) if lanes <= 1 else _in_threads(work, batches, lanes)


def _in_threads(work: Callable[[Batch], Result], batches: Sequence[Batch], lanes: int) -> Iterator[Result]:
    threads = max(1, min(torch.get_num_threads(), count_cores() // lanes))
    begun: list[int] = []

    def begin() -> None:
        begun.append(threading.get_native_id())
        torch.set_num_threads(threads)

    try:
        with ThreadPoolExecutor(lanes, initializer=begin) as pool:
            yield from pool.map(torch.inference_mode()(work), batches)  # the mode is set for each thread
    finally:  # the last that a thread does is to free MKL's buffers, under a lock that a fork must not copy
        for _ in range(1000):
            if not any(os.path.exists(f"/proc/self/task/{each}") for each in begun):
                break
            time.sleep(0.001)
