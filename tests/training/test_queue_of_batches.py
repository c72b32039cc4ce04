"""The order of the batches, the positions of each rank, and the queue of batches that are prepared ahead."""

from __future__ import annotations

import threading
from typing import Any

import helpers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.training import batches
from mm_ldlm.training.batches import BatchPlan, Loader, Planned, deal
from mm_ldlm.training.config import BatchConfig


@pytest.mark.parametrize(("seed", "epoch"), [(5, 3), (3, 5), (0, 1), (1, 0)])
def test_the_order_of_an_epoch_is_the_permutation_of_its_seed_and_number(seed: int, epoch: int) -> None:
    """A run that is resumed with another version of the code continues the same order."""
    plan = BatchPlan(np.full(40, 6), BatchConfig(examples=1), seed=seed, max_length=12)
    order = np.random.default_rng([seed, epoch]).permutation(40)
    assert [rows.tolist() for rows, _ in plan.epoch(epoch)] == [[row] for row in order.tolist()]
    pairs = BatchPlan(np.full(40, 6), BatchConfig(examples=2), seed=seed, max_length=12).epoch(epoch)
    assert [rows.tolist() for rows, _ in pairs] == order.reshape(20, 2).tolist()


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 24), min_size=1, max_size=40), size=st.integers(1, 7), seed=st.integers(0, 9))
def test_the_last_batch_is_as_long_as_its_longest_example(lengths: list[int], size: int, seed: int) -> None:
    """Examples that are left over move to longer buckets, and the rest of the last one has its own length."""
    plan = BatchPlan(np.array(lengths), BatchConfig(examples=size, length_multiple=4), seed=seed, max_length=22)
    found = plan.epoch(2)
    assert [len(rows) for rows, _ in found[:-1]] == [size] * (len(found) - 1)
    rows, length = found[-1]
    if len(rows) < size:
        longest = max(lengths[row] for row in rows)
        assert length == min(-(-longest // 4) * 4, 22)
    assert {length for _, length in found} <= {length for _, length in plan.shapes()}


class Numbers:
    """Examples of one token each."""

    pad_id = 0
    lengths = np.ones(99, np.int64)

    def tokens(self, rows: Any, *, length: int) -> Any:
        return np.ones((len(rows), length), np.int64)

    def field(self, name: str, rows: Any) -> Any:
        return rows[:, None].astype(np.float32)


@pytest.mark.parametrize(("world", "accumulation"), [(1, 1), (3, 1), (1, 4), (2, 3), (3, 2)])
def test_positions_are_dealt_to_ranks_and_then_to_micro_batches_in_turn(world: int, accumulation: int) -> None:
    """With one example for each, micro-batch m of rank r has position m · ranks + r; then all of them again."""
    parts = world * accumulation
    planned = Planned(0, 0, np.arange(50, 50 + 2 * parts), 1, 2 * parts, 2 * parts)
    for rank in range(world):
        found = deal(planned, Numbers(), fields=("row",), rank=rank, world=world, accumulation=accumulation, fill=False)
        assert len(found) == accumulation
        for micro, batch in enumerate(found):
            first = micro * world + rank
            assert batch.position_B.tolist() == [first, first + parts]
            assert batch.examples_B.tolist() == [50 + first, 50 + first + parts]
            assert batch.fields["row"][:, 0].tolist() == batch.examples_B.tolist()
            assert (batch.global_size, batch.global_tokens) == (2 * parts, 2 * parts)


def loader(*, prefetch: int, pin: bool = False) -> Loader:
    source = helpers.Rows(40)
    plan = BatchPlan(source.lengths, BatchConfig(examples=8, prefetch=prefetch), seed=0, max_length=12)
    return Loader(plan, source, fields=(), rank=0, world=1, fill=False, pin=pin)


def test_so_many_batches_are_prepared_ahead_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit the batches of all epochs would fill the memory."""
    made: list[Any] = []

    class Queue(batches.queue.Queue):  # type: ignore[type-arg]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(batches.queue, "Queue", Queue)
    following = loader(prefetch=3).from_(0, 0)
    next(following)
    assert [queue.maxsize for queue in made] == [3]
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "batches"]
    assert thread.daemon, "it does not keep a process alive that ends"
    following.close()
    made.clear()
    plain = loader(prefetch=0).from_(0, 0)
    next(plain)
    assert made == [], "without a queue they are prepared when they are asked for"


@pytest.mark.parametrize("pin", [False, True])
def test_batches_for_a_gpu_are_in_page_locked_memory(pin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches.Batch, "pinned", lambda batch: ("pinned", len(batch.examples_B)))
    found = loader(prefetch=0, pin=pin)
    made: list[Any] = found.make(next(found.plan.first(1)))
    assert (made == [("pinned", 8)]) is pin


def test_an_error_of_a_later_batch_comes_after_those_before_it() -> None:
    found = loader(prefetch=2)
    plain = found.make

    def make(planned: Planned) -> Any:
        if planned.index == 2:
            raise OSError("the third is gone")
        return plain(planned)

    found.make = make  # type: ignore[method-assign]
    following = found.from_(0, 0)
    seen = [next(following)[0].index for _ in range(2)]
    with pytest.raises(OSError, match="the third is gone"):
        next(following)
    assert seen == [0, 1]


def test_a_closed_loader_leaves_no_thread_although_a_later_batch_cannot_be_read() -> None:
    """The queue is full when the error comes, and nobody takes it."""
    found, failed = loader(prefetch=1), threading.Event()
    plain = found.make

    def make(planned: Planned) -> Any:
        if planned.index == 2:
            failed.set()
            raise OSError("the third is gone")
        return plain(planned)

    found.make = make  # type: ignore[method-assign]
    following = found.from_(0, 0)
    assert next(following)[0].index == 0
    assert failed.wait(timeout=30)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "batches"]
    following.close()
    assert not thread.is_alive()
