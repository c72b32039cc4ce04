from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mm_ldlm.core.batching import batches_by_length, lanes_of, side_by_side

from mm_ldlm.core import batching

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


@given(lengths=LENGTHS, max_tokens=st.integers(1, 100), max_rows=st.none() | st.integers(1, 8))
def test_every_index_is_in_one_batch_within_the_limits(
    lengths: list[int], max_tokens: int, max_rows: int | None
) -> None:
    batches = batches_by_length(lengths, max_tokens=max_tokens, max_rows=max_rows)
    assert sorted(np.concatenate([np.empty(0, np.int64), *batches]).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= max_tokens
        assert max_rows is None or len(batch) <= max_rows


def test_long_rows_come_first_and_ties_keep_their_order() -> None:
    batches = batches_by_length([3, 9, 3, 1], max_tokens=6)
    assert [batch.tolist() for batch in batches] == [[1], [0, 2], [3]]


@pytest.mark.parametrize("lanes", [1, 2, 7, 100])
def test_results_are_in_order_whatever_the_number_of_lanes(lanes: int) -> None:
    def slower_at_first(number: int) -> int:
        time.sleep(0.002 * (5 - number))
        return number * number

    assert list(side_by_side(slower_at_first, range(6), lanes=lanes)) == [0, 1, 4, 9, 16, 25]
    assert list(side_by_side(slower_at_first, [], lanes=lanes)) == []


def test_lanes_compute_at_the_same_time_without_gradients_and_with_the_threads_of_the_caller() -> None:
    both_are_here = threading.Barrier(2, timeout=30)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:

        def work(_: int) -> tuple[bool, int]:
            both_are_here.wait()
            return torch.is_inference_mode_enabled(), torch.get_num_threads()

        assert list(side_by_side(work, range(4), lanes=2)) == [(True, 3)] * 4
    finally:
        torch.set_num_threads(before)


def test_an_error_ends_all_lanes() -> None:
    started = []

    def work(number: int) -> None:
        started.append(number)
        time.sleep(0.005)
        if number == 1:
            raise ValueError("second batch")

    with pytest.raises(ValueError, match="second batch"):
        list(side_by_side(work, range(500), lanes=2))
    assert len(started) < 100


@pytest.mark.parametrize(
    ("device", "threads", "lanes"), [("cpu", 1, 6), ("cpu", 2, 3), ("cpu", 4, 1), ("cpu", 8, 1), ("cuda", 1, 1)]
)
def test_lanes_share_the_cores(device: str, threads: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert lanes_of(device) == lanes
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert lanes_of(device, threads=threads) == lanes, "the threads of a batch, and not those of torch"


@pytest.mark.parametrize(("count", "lanes"), [(6, 3), (None, 1), (1, 1)])
def test_without_affinity_the_cores_of_the_machine_count(
    count: int | None, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems that cannot bind a process to cores."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert lanes_of(torch.device("cpu"), threads=2) == lanes


@pytest.mark.parametrize(("lanes", "count", "threads"), [(1, 5, 0), (3, 1, 0), (3, 0, 0), (2, 5, 2), (5, 2, 5)])
def test_as_many_threads_are_started_as_there_are_lanes(
    lanes: int, count: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch, or one lane, is computed in the thread of the caller."""
    made: list[int] = []
    real = batching.ThreadPoolExecutor
    monkeypatch.setattr(batching, "ThreadPoolExecutor", lambda workers: made.append(workers) or real(workers))
    found = list(side_by_side(lambda number: (number, threading.get_ident()), range(count), lanes=lanes))
    assert [number for number, _ in found] == list(range(count))
    assert made == ([threads] if threads else [])
    assert ({thread for _, thread in found} <= {threading.get_ident()}) == (not threads)


def test_many_ties_keep_their_order() -> None:
    lengths = [3, 7] * 200
    expected = [*range(1, 400, 2), *range(0, 400, 2)]
    assert np.concatenate(batches_by_length(lengths, max_tokens=50)).tolist() == expected
