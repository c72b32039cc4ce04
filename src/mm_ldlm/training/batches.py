"""Which rows are in which batch: a function of (seed, epoch) alone, whatever the number of processes.

An epoch is one permutation of all rows. Rows go, in that order, into buckets of equal padded length; a bucket that is
full is a global batch, so every batch of a bucket has the same shape and few shapes occur. What is left in a bucket at
the epoch's end moves up to the next longer one; the very last batch may be smaller. A batch is dealt out to ranks
and micro-batches position by position, and its counts are known to every rank without communication.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Generator, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.config import BatchConfig

Ints = npt.NDArray[np.int64]


class Source(Protocol):
    """Rows of training data, 0..N-1."""

    lengths: Ints
    """(N,) valid tokens of each row"""
    pad_id: int

    def tokens(self, rows: Ints, *, length: int) -> Ints:
        """(n, length) int64, right-padded with pad_id."""
        ...

    def latents(self, rows: Ints) -> npt.NDArray[np.float32]:
        """(n, d) float32, standardised."""
        ...


@dataclasses.dataclass(frozen=True)
class Planned:
    """A global batch before its data are read."""

    epoch: int
    index: int
    """batch in the epoch"""
    rows: Ints
    length: int
    """padded"""
    full_rows: int
    """rows that a full batch of this length has"""
    tokens: int
    """valid tokens in the batch"""


class BatchPlan:
    """All global batches of all epochs."""

    def __init__(self, lengths: Ints, config: BatchConfig, *, seed: int, max_length: int) -> None:
        if not len(lengths):
            raise ValueError("no rows to train on")
        self.lengths, self.config, self.seed, self.max_length = lengths, config, seed, max_length
        self._cached: tuple[int, list[tuple[Ints, int]]] | None = None

    def padded(self, length: int) -> int:
        """`length` up to the next multiple, at most the model's maximum."""
        multiple = self.config.length_multiple
        return min(-(-length // multiple) * multiple, self.max_length)

    def rows_of(self, length: int) -> int:
        """Rows of a full global batch of padded `length`."""
        if self.config.rows is not None:
            return self.config.rows
        assert self.config.tokens is not None
        multiple = self.config.row_multiple
        return max(self.config.tokens // length // multiple * multiple, multiple)

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, padded length) of every full global batch that can occur, shortest first."""
        return [(self.rows_of(length), length) for length in np.unique(self._padded_lengths()).tolist()]

    def epoch(self, number: int) -> list[tuple[Ints, int]]:
        """(rows, padded length) of every batch of an epoch, in order."""
        if self._cached is None or self._cached[0] != number:
            self._cached = (number, self._plan(number))
        return self._cached[1]

    def from_(self, epoch: int, index: int) -> Iterator[Planned]:
        """Batches without end, starting at batch `index` of `epoch`."""
        while True:
            batches = self.epoch(epoch)
            for number in range(index, len(batches)):
                rows, length = batches[number]
                yield Planned(epoch, number, rows, length, self.rows_of(length), int(self.lengths[rows].sum()))
            epoch, index = epoch + 1, 0

    def first(self, count: int) -> Iterator[Planned]:
        """The first `count` batches of epoch 0."""
        return itertools.islice(self.from_(0, 0), count)

    def _padded_lengths(self) -> Ints:
        multiple = self.config.length_multiple
        return np.minimum(-(-self.lengths // multiple) * multiple, self.max_length)

    def _plan(self, number: int) -> list[tuple[Ints, int]]:
        order = np.random.default_rng([self.seed, number]).permutation(len(self.lengths))
        padded = self._padded_lengths()[order]
        found: list[tuple[int, Ints, int]] = []  # (place in the permutation that filled the batch, rows, length)
        left = np.empty(0, np.int64)
        for length in np.unique(padded).tolist():
            places = np.sort(np.concatenate([left, np.flatnonzero(padded == length)]))
            size = self.rows_of(length)
            full = len(places) // size * size
            for part in places[:full].reshape(-1, size):
                found.append((int(part[-1]), order[part], length))
            left = places[full:]
        found.sort(key=lambda item: item[0])
        if len(left):
            found.append((len(order), order[left], int(padded[left].max())))
        return [(rows, length) for _, rows, length in found]


def dealt(planned: Planned, source: Source, *, rank: int, world: int, accumulation: int, fill: bool) -> list[Batch]:
    """This rank's micro-batches of a global batch: positions rank, rank + world·accumulation, … of each.

    All have the same number of rows on all ranks; missing ones are filled by rows without tokens (row -1). With `fill`
    also a batch that is smaller than its bucket's full size is filled up to that, so that shapes stay few.
    """
    parts = world * accumulation
    size = len(planned.rows)
    rows_each = -(-(max(planned.full_rows, size) if fill else size) // parts)
    batches = []
    for micro in range(accumulation):
        position = micro * world + rank + parts * np.arange(rows_each, dtype=np.int64)
        here = position[position < size]
        rows = np.full(rows_each, -1, np.int64)
        rows[: len(here)] = planned.rows[here]
        real = rows[: len(here)]
        tokens = np.full((rows_each, planned.length), source.pad_id, np.int64)
        tokens[: len(here)] = source.tokens(real, length=planned.length)
        lengths = np.zeros(rows_each, np.int64)
        lengths[: len(here)] = source.lengths[real]
        found = source.latents(real)
        latents = np.zeros((rows_each, found.shape[1]), np.float32)
        latents[: len(here)] = found
        batches.append(
            Batch(
                tokens_BL=torch.from_numpy(tokens),
                valid_BL=torch.from_numpy(np.arange(planned.length) < lengths[:, None]),
                latents_Bd=torch.from_numpy(latents),
                rows_B=torch.from_numpy(rows),
                position_B=torch.from_numpy(position),
                global_size=size,
                global_tokens=planned.tokens,
            )
        )
    return batches


class Loader:
    """Global batches dealt to this rank, prepared ahead by a thread.

    Iterate from any point; `waited` counts the seconds that the consumer stood waiting.
    """

    def __init__(
        self, plan: BatchPlan, source: Source, *, rank: int, world: int, fill: bool, pin: bool = False
    ) -> None:
        self.plan, self.source = plan, source
        self.rank, self.world, self.fill, self.pin = rank, world, fill, pin
        self.waited = 0.0

    def make(self, planned: Planned) -> list[Batch]:
        batches = dealt(
            planned, self.source, rank=self.rank, world=self.world, accumulation=self.plan.config.accumulation,
            fill=self.fill,
        )  # fmt: skip
        return [batch.pinned() for batch in batches] if self.pin else batches

    def from_(self, epoch: int, index: int) -> Generator[tuple[Planned, list[Batch]]]:
        """(plan, micro-batches) without end. Close the iterator to end its thread."""
        ahead = self.plan.config.prefetch
        if ahead == 0:
            for planned in self.plan.from_(epoch, index):
                before = time.perf_counter()
                batches = self.make(planned)
                self.waited += time.perf_counter() - before
                yield planned, batches
            return
        ready: queue.Queue[tuple[Planned, list[Batch]] | BaseException] = queue.Queue(ahead)
        stop = threading.Event()

        def produce() -> None:
            item: tuple[Planned, list[Batch]] | BaseException
            try:
                for planned in self.plan.from_(epoch, index):
                    item = (planned, self.make(planned))
                    while not stop.is_set():
                        try:
                            ready.put(item, timeout=0.2)
                            break
                        except queue.Full:
                            continue
                    if stop.is_set():
                        return
            except BaseException as error:  # handed to the consumer, who raises it
                ready.put(error)

        thread = threading.Thread(target=produce, name="batches", daemon=True)
        thread.start()
        try:
            while True:
                before = time.perf_counter()
                found = ready.get()
                self.waited += time.perf_counter() - before
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            stop.set()
            thread.join(timeout=5)
