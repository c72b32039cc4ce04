"""Batches by length, and several of them at a time: every text once, within the budget, in the same order."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from mm_ldlm.data.inference_batches import batches_by_length, lanes_of, side_by_side
from mm_ldlm.models.defaults import plain_defaults


@given(st.lists(st.integers(0, 40)), st.integers(1, 60), st.none() | st.integers(1, 6))
def test_every_text_is_in_one_batch_within_the_budget(
    lengths: list[int], max_tokens: int, max_rows: int | None
) -> None:
    batches = batches_by_length(lengths, max_tokens=max_tokens, max_rows=max_rows)
    order = [int(row) for batch in batches for row in batch]
    assert order == sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    for batch, following in itertools.zip_longest(batches, batches[1:]):
        sizes = [max(lengths[row], 1) for row in batch]
        assert len(batch) == 1 or len(batch) * max(sizes) <= max_tokens
        assert max_rows is None or len(batch) <= max_rows
        if following is not None:  # no batch has room for the next text
            assert len(batch) == max_rows or (len(batch) + 1) * max(sizes) > max_tokens


@given(st.lists(st.integers(), max_size=12), st.integers(1, 4))
def test_the_results_do_not_depend_on_the_lanes(batches: list[int], lanes: int) -> None:
    assert list(side_by_side(lambda batch: batch * 2, batches, lanes=lanes)) == [batch * 2 for batch in batches]


def test_lanes_work_at_the_same_time_without_gradients_and_an_error_is_raised() -> None:
    both, weight = threading.Barrier(2, timeout=60), torch.ones(1, requires_grad=True)

    def work(batch: int) -> bool:
        both.wait()
        return (weight * batch).requires_grad

    assert list(side_by_side(work, [1, 2, 3, 4], lanes=2)) == [False] * 4
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(lambda batch: 1 / batch, [1, 0, 2], lanes=2))


def test_lanes_share_the_cores_of_a_cpu_and_a_device_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    assert [lanes_of("cpu", threads=threads) for threads in (1, 2, 4, 9)] == [6, 3, 1, 1]
    assert lanes_of("cuda", threads=1) == 1
    for most, lanes, each in ((4, 3, 2), (1, 3, 1), (4, 6, 1)):
        with plain_defaults(most):
            found = list(side_by_side(lambda _: torch.get_num_threads(), range(6), lanes=lanes))
            assert (found, torch.get_num_threads()) == ([each] * 6, most)


@given(st.permutations(range(3)))
def test_threads_that_compute_at_a_time_leave_the_numbers_that_they_found(order: list[int]) -> None:
    def numbers() -> tuple[int, list[dict[str, Any]]]:
        with ThreadPoolExecutor(1) as new:
            return new.submit(torch.get_num_threads).result(), threadpool_info()

    works, threads = [plain_defaults(count + 2) for count in order], [ThreadPoolExecutor(1) for _ in order]
    before = numbers()
    [thread.submit(work.__enter__).result() for thread, work in zip(threads, works, strict=True)]
    assert numbers()[0] == order[-1] + 2
    for place in order:
        threads[place].submit(works[place].__exit__, None, None, None).result()
        threads[place].shutdown()
    assert numbers() == before
