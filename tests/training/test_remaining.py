"""The estimate of the remaining time: exact where time is proportional to tokens, whatever interrupts the steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mm_ldlm.training.batches import BatchPlan, Planned
from mm_ldlm.training.config import BatchConfig
from mm_ldlm.training.remaining import KEPT, Remaining

RATE = 2e-3
"""Seconds per padded token"""


def plan(*, examples: int = 4, count: int = 600) -> BatchPlan:
    lengths = np.random.default_rng(0).integers(1, 65, count)
    return BatchPlan(lengths, BatchConfig(examples=examples, length_multiple=8), seed=0, max_length=64)


def measure(found: Remaining, steps: list[Planned], *, extra: Any = lambda step: 0.0) -> float:
    """Measure these steps at the rate; `extra` seconds are spent in a step, by its number."""
    now = 100.0
    for number, planned in enumerate(steps):
        now += RATE * len(planned.examples) * planned.length + extra(number)
        found.stepped(planned, now)
    return now


def test_the_estimate_is_exact_although_steps_differ_and_some_are_interrupted() -> None:
    batches = plan()
    epoch = list(batches.first(len(batches.epoch(0))))
    expected = RATE * sum(len(step.examples) * step.length for step in epoch) / len(epoch)
    found = Remaining(batches)
    assert found.per_step() is None
    measure(found, epoch[:1])
    assert found.per_step() is None, "the first step contains the start"
    # Every tenth step is validated, and the first one compiles.
    found = Remaining(batches)
    measure(found, epoch[:40], extra=lambda number: 300.0 if number == 1 else 30.0 if number % 10 == 9 else 0.0)
    assert found.per_step() == pytest.approx(expected)


def test_the_estimate_follows_the_newest_steps() -> None:
    batches = plan(count=4 * 2 * (KEPT + 10))
    steps = list(batches.first(2 * KEPT + 5))
    found = Remaining(batches)
    measure(found, steps[:KEPT], extra=lambda number: RATE * len(steps[number].examples) * steps[number].length)
    twice = found.per_step()
    found._ended = None
    measure(found, steps[KEPT - 1 : 2 * KEPT])
    assert twice is not None
    assert found.per_step() == pytest.approx(twice / 2)


@pytest.mark.parametrize(("seconds", "first"), [(0.125, 41), (0.25, 21), (1.0, 21), (2.0, 16), (29.0, 3), (31.0, 2)])
def test_the_first_estimate_comes_once_and_when_enough_was_measured(seconds: float, first: int) -> None:
    """At least 20 steps and 5 seconds, or half a minute; the first step of all is not measured."""
    found = Remaining(plan())
    step: Any = SimpleNamespace(examples=range(4), length=8, epoch=0)
    said = []
    for number in range(1, 100):
        found.stepped(step, number * seconds)
        said += [number] if found.first() else []
    assert said == [first]
