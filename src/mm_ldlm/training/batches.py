"""Plan batches by length as a function of (seed, epoch), for any number of processes.

An epoch is one permutation of all examples. In this order the examples enter buckets of equal padded length. A full
bucket is a global batch, so that every batch of a bucket has the same shape and few shapes occur. Examples left in a
bucket at the end of the epoch move to the next longer bucket; the last batch may be smaller. Ranks and micro-batches
take the positions of a batch in turn; every rank computes its counts without communication.
"""

import dataclasses
import itertools
import time
from collections.abc import Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.distributed.process import Process
from mm_ldlm.objectives.base import Batch
from mm_ldlm.training.config import BatchConfig

Ints = npt.NDArray[np.int64]


class Source:
    """Examples of one split of the validated dataset, numbered 0..N-1.

    Attributes:
        lengths: (N,) valid tokens of each example.
    """

    def __init__(self, dataset: Dataset, split: str, *, fields: Collection[str]) -> None:
        self._rows, self.lengths = dataset.rows(split), dataset.lengths(split)
        self.pad_id = dataset.tokenizer.pad_id
        self._tokens = dataset.tokens.lists("input_ids")
        self._fields = {name: (dataset.field(name), dataset.normaliser(name)) for name in fields}

    def tokens(self, rows: Ints, *, length: int) -> Ints:
        """Read tokens (n, length) int64, right-padded with pad_id."""
        return self._tokens.padded(self._rows[rows], pad=self.pad_id, length=length)

    def field(self, name: str, rows: Ints) -> npt.NDArray[Any]:
        """Read a field (n, ...) of these rows as the objective uses it; "latents" are (n, d) float32, standardised.

        A field with a value for each token is padded to the longest of these rows.
        """
        field, normaliser = self._fields[name]
        return field.batch(self._rows[rows], normaliser=normaliser)


@dataclasses.dataclass(frozen=True)
class Planned:
    """Plan of a global batch, before its data are read."""

    epoch: int
    index: int
    """batch in the epoch"""
    examples: Ints
    length: int
    """padded length"""
    full_size: int
    """examples in a full batch of this length"""
    tokens: int
    """valid tokens in the batch"""


class BatchPlan:
    """Plan of all global batches of all epochs."""

    def __init__(self, lengths: Ints, config: BatchConfig, *, seed: int, max_length: int) -> None:
        self.lengths, self.config, self.seed, self.max_length = lengths, config, seed, max_length

    def size_of(self, length: int) -> int:
        """Compute the number of examples in a full global batch of padded `length`."""
        if self.config.examples is not None:
            return self.config.examples
        assert self.config.tokens is not None
        multiple = self.config.example_multiple
        return max(self.config.tokens // length // multiple * multiple, multiple)

    def shapes(self) -> list[tuple[int, int]]:
        """List (examples, padded length) of every full global batch that can occur, shortest first."""
        return [(self.size_of(length), length) for length in np.unique(self._padded_lengths()).tolist()]

    def epoch(self, number: int) -> list[tuple[Ints, int]]:
        """List (examples, padded length) of every batch of an epoch, in order."""
        order = np.random.default_rng([self.seed, number]).permutation(len(self.lengths))
        padded = self._padded_lengths()[order]
        found: list[tuple[int, Ints, int]] = []  # (position in the permutation that filled the batch, examples, length)
        left = np.empty(0, np.int64)
        for length in np.unique(padded).tolist():
            places = np.sort(np.concatenate([left, np.flatnonzero(padded == length)]))
            size = self.size_of(length)
            full = len(places) // size * size
            for part in places[:full].reshape(-1, size):
                found.append((int(part[-1]), order[part], length))
            left = places[full:]
        found.sort(key=lambda item: item[0])
        if len(left):
            found.append((len(order), order[left], int(padded[left].max())))
        return [(examples, length) for _, examples, length in found]

    def from_(self, epoch: int, index: int) -> Iterator[Planned]:
        """Yield the plans of batches without end, starting at batch `index` of `epoch`."""
        while True:
            batches = self.epoch(epoch)
            for number in range(index, len(batches)):
                examples, length = batches[number]
                yield Planned(epoch, number, examples, length, self.size_of(length), int(self.lengths[examples].sum()))
            epoch, index = epoch + 1, 0

    def first(self, count: int) -> Iterator[Planned]:
        """Yield the plans of the first `count` batches of epoch 0."""
        return itertools.islice(self.from_(0, 0), count)

    def steps_until(self, tokens: int) -> int:
        """Return the first step, counted from 1, after which training has seen at least this number of valid tokens."""
        # Every epoch has each example once and the same number of batches, whose sizes depend only on counts.
        epochs, rest = divmod(tokens, int(self.lengths.sum()))
        steps = epochs * len(self.epoch(0))
        if rest == 0:
            return steps
        seen = np.cumsum([self.lengths[examples].sum() for examples, _ in self.epoch(epochs)])
        return steps + int(np.searchsorted(seen, rest)) + 1

    def _padded_lengths(self) -> Ints:
        """Round every length up to the next multiple, at most the model's maximum length: (N,)."""
        multiple = self.config.length_multiple
        return np.minimum(-(-self.lengths // multiple) * multiple, self.max_length)


def _filled(values: npt.NDArray[Any], count: int, *, value: int = 0) -> npt.NDArray[Any]:
    """Append rows of `value` to `values`, up to `count` rows in all."""
    out = np.full((count, *values.shape[1:]), value, values.dtype)
    out[: len(values)] = values
    return out


class Loader:
    """Load this rank's part of the global batches, which a thread prepares ahead.

    Iteration can start at any batch; `waited` counts the seconds for which the consumer waited.
    """

    def __init__(
        self, plan: BatchPlan, source: Source, fields: Collection[str], process: Process, *, fill: bool
    ) -> None:
        self.plan, self.source, self.fields, self.process, self.fill = plan, source, fields, process, fill
        self.waited = 0.0

    def make(self, planned: Planned) -> list[Batch]:
        """Read this rank's micro-batches of a global batch.

        Micro-batch m has the positions m·world + rank + k·world·accumulation, k = 0, 1, … All ranks have equally many
        examples; examples without tokens (number -1) replace missing ones. With `fill`, a batch that is smaller than
        a full batch of its bucket is filled too, so that few shapes occur.
        """
        source, world, accumulation = self.source, self.process.world, self.plan.config.accumulation
        parts, size = world * accumulation, len(planned.examples)
        each = -(-(planned.full_size if self.fill else size) // parts)
        batches = []
        for micro in range(accumulation):
            position = micro * world + self.process.rank + parts * np.arange(each, dtype=np.int64)
            real = planned.examples[position[position < size]]
            tokens = _filled(source.tokens(real, length=planned.length), each, value=source.pad_id)
            lengths = _filled(source.lengths[real], each)
            batches.append(
                Batch(
                    tokens_BL=torch.from_numpy(tokens),
                    valid_BL=torch.from_numpy(np.arange(planned.length) < lengths[:, None]),
                    fields={name: torch.from_numpy(_filled(source.field(name, real), each)) for name in self.fields},
                    examples_B=torch.from_numpy(_filled(real, each, value=-1)),
                    position_B=torch.from_numpy(position),
                    global_size=size,
                    global_tokens=planned.tokens,
                )
            )
        return [batch.pinned() for batch in batches] if self.process.device.type == "cuda" else batches

    def from_(self, epoch: int, index: int) -> Generator[tuple[Planned, list[Batch]]]:
        """Yield (plan, micro-batches) without end. Closing the iterator ends its thread."""
        plans = self.plan.from_(epoch, index)

        def produce() -> tuple[Planned, list[Batch]]:
            planned = next(plans)
            return planned, self.make(planned)

        with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
            ahead = [thread.submit(produce) for _ in range(self.plan.config.prefetch)]
            try:
                while True:
                    before = time.perf_counter()
                    found = ahead.pop(0).result() if ahead else produce()
                    self.waited += time.perf_counter() - before
                    if self.plan.config.prefetch:
                        ahead.append(thread.submit(produce))
                    yield found
            finally:
                thread.shutdown(cancel_futures=True)
