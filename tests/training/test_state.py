"""The counters of a run take back what they gave, and nothing else."""

import dataclasses
from typing import Any

import pytest

from mm_ldlm.training.state import TrainingState

FIELDS = [field.name for field in dataclasses.fields(TrainingState)]


def test_counters_are_restored_as_they_were() -> None:
    state = TrainingState(step=3, draw=4, lr_scale=0.5, seconds=1.5, best=-2.0)
    restored = TrainingState()
    restored.load(state.to_dict())
    assert restored == state


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["1", True, [1], float("nan"), -1])
def test_a_value_that_no_run_can_have_is_refused(field: str, value: Any) -> None:
    if (field, value) == ("best", -1):
        value = "-1"  # a validation score may be negative
    with pytest.raises(ValueError, match=field):
        TrainingState().load({field: value})


def test_a_run_without_a_learning_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="lr_scale"):
        TrainingState().load({"lr_scale": 0.0})
