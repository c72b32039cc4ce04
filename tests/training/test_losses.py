"""Losses of a step by hand: the weighted total, sums over micro-batches, averages between log lines."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mm_ldlm.training.losses import Averages, Tally, total


def test_the_total_divides_each_loss_by_its_global_count_and_weighs_it() -> None:
    objective: Any = SimpleNamespace(weights={"a": 2.0, "b": 0.5, "c": 0.0, "d": 3.0},
                                     units={"a": "tokens", "b": "examples", "c": "tokens", "d": "tokens"})  # fmt: skip
    batch: Any = SimpleNamespace(normaliser=lambda unit: {"tokens": 40, "examples": 0}[unit])
    count = torch.tensor(7.0)
    losses = {"a": (torch.tensor(10.0), count), "b": (torch.tensor(6.0), count), "c": (torch.tensor(math.inf), count)}
    assert total(losses, objective, batch).item() == pytest.approx(2 * 10 / 40 + 0.5 * 6 / 1)


def test_averages_are_ratios_of_sums_for_all_and_for_each_kind() -> None:
    averages = Averages()
    averages.add("x", 1.0, {"text": (6.0, 2.0), "none": (0.0, 0.0)})
    averages.add("y", 4.0, {"text": (6.0, 4.0)})
    averages.add("y", 7.0, {"text": (0.0, 4.0)})
    assert averages.take() == pytest.approx({
        "loss": 4.0, "x/loss": 1.0, "y/loss": 5.5, "text": 1.2, "x/text": 3.0, "y/text": 0.75
    })  # fmt: skip
    assert averages.take() == {}


def test_a_tally_adds_micro_batches() -> None:
    tally = Tally()
    for factor in (1.0, 10.0):
        pair = (torch.tensor(2.0) * factor, torch.tensor(3.0) * factor)
        tally.add({"a": pair, "b": (pair[1], pair[0])}, torch.tensor(5.0) * factor)
    assert tally.tensor().tolist() == [55.0, 22.0, 33.0, 33.0, 22.0]
    assert tally.split([55.0, 22.0, 33.0, 44.0, 66.0]) == (55.0, {"a": (22.0, 44.0), "b": (33.0, 66.0)})
