"""The counters of a run take back what they gave, and nothing else."""

import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from mm_ldlm.core import CheckpointError
from mm_ldlm.training.counters import TrainingState
from mm_ldlm.training.seeds import seed_everything

FIELDS = [field.name for field in dataclasses.fields(TrainingState)]


def test_counters_are_restored_as_they_were() -> None:
    state = TrainingState(step=3, draw=4, lr_scale=0.5, seconds=1.5, best=-2.0)
    restored = TrainingState()
    restored.load(dataclasses.asdict(state))
    assert restored == state


@pytest.mark.parametrize(
    ("field", "value"), [("lr_scale", 0.0), *itertools.product(FIELDS, ["1", True, [1], float("nan"), -1])]
)
def test_a_value_that_no_run_can_have_is_refused(field: str, value: Any) -> None:
    if (field, value) == ("best", -1):
        value = "-1"  # a validation score may be negative
    with pytest.raises(CheckpointError, match=field):
        TrainingState().load({field: value})


def test_a_step_of_a_rank_has_random_numbers_of_its_own() -> None:
    def numbers(seed: int, draw: int, rank: int) -> tuple[float, ...]:
        seed_everything(seed, draw, rank=rank)
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    first, again, *others = (numbers(*of) for of in ((1, 2, 0), (1, 2, 0), (1, 2, 1), (1, 3, 0), (2, 2, 0)))
    assert first == again
    assert all(len({each[kind] for each in (first, *others)}) == 4 for kind in range(3))
