"""The schedules of the learning rate by their closed forms, at steps where no two of them agree."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mm_ldlm.training.config import OptimizerConfig
from mm_ldlm.training.learning_rate import learning_rate_factor

WARMUP, STEPS, FLOOR = 8, 108, 0.2


def factor(schedule: Any, step: int) -> float:
    config = OptimizerConfig(schedule=schedule, warmup_steps=WARMUP, min_lr_ratio=FLOOR)
    return learning_rate_factor(config, step=step, max_steps=STEPS)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_every_schedule_rises_by_equal_parts_to_the_whole_rate(schedule: str) -> None:
    """The first update has a rate above 0, and the last one of the warm-up has the whole rate."""
    assert [factor(schedule, step) for step in range(WARMUP)] == pytest.approx([n / 8 for n in range(1, 9)])
    assert factor(schedule, WARMUP) == 1.0


@pytest.mark.parametrize(
    ("schedule", "quarter", "three_quarters", "end"),
    [
        ("cosine", FLOOR + 0.8 * (2 + math.sqrt(2)) / 4, FLOOR + 0.8 * (2 - math.sqrt(2)) / 4, FLOOR),
        ("linear", 0.8, 0.4, FLOOR), ("constant", 1.0, 1.0, 1.0),
    ],
)  # fmt: skip
def test_a_quarter_and_three_quarters_after_the_warm_up(
    schedule: str, quarter: float, three_quarters: float, end: float
) -> None:
    """100 steps remain after the warm-up."""
    found = [factor(schedule, WARMUP + done) for done in (25, 75, 100, 200)]
    assert found == pytest.approx([quarter, three_quarters, end, end])
