from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.training.state import TrainingState, random_states, restore_random_states, seed_everything, step_seed


def test_random_states_come_back() -> None:
    device = torch.device("cpu")
    seed_everything(5)
    torch.randn(3)
    np.random.randn()  # noqa: NPY002 - one of two numbers, of which the second is kept
    states = random_states(device)
    first = (random.random(), float(np.random.randn()), torch.randn(2))  # noqa: NPY002
    restore_random_states(states, device)
    second = (random.random(), float(np.random.randn()), torch.randn(2))  # noqa: NPY002
    assert first[:2] == second[:2]
    assert torch.equal(first[2], second[2])


def test_step_seeds_differ_by_everything_that_names_them() -> None:
    seeds = {step_seed(seed, draw, name) for seed in range(3) for draw in range(50) for name in ("", "dropout/0")}
    assert len(seeds) == 300
    assert all(0 <= value < 2**63 for value in seeds)


def test_state_round_trip_ignores_what_it_does_not_know() -> None:
    state = TrainingState(step=3, draw=5, lr_scale=0.5, best=1.25)
    assert TrainingState.from_dict({**state.to_dict(), "of_a_later_version": 1}) == state


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TrainingState)])
@pytest.mark.parametrize("wrong", ["3", True, [3], {}, -1, 2.5, None])
def test_a_state_with_a_field_of_another_type_is_refused(field: str, wrong: Any) -> None:
    number = isinstance(wrong, (int, float)) and wrong is not True
    if field in ("lr_scale", "seconds", "best") and (number or (wrong is None and field == "best")):
        return
    with pytest.raises(ValueError, match=f"expected a .* in '{field}'"):
        TrainingState.from_dict({**TrainingState().to_dict(), field: wrong})
