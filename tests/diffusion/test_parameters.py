"""Parameters of schedules and processes: refusals at their bounds, and the effect of each number of a schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule


@pytest.mark.parametrize(
    ("schedule", "good", "bad", "message"),
    [
        (MaskSchedule, {"epsilon": 0.0}, {"epsilon": 1.0}, r"epsilon must lie in \[0, 1\), found 1"),
        (MaskSchedule, {"epsilon": 0.0}, {"epsilon": 1.0}, r"epsilon must lie in \[0, 1\), found 1\.0"),
        (MaskSchedule, {"epsilon": 0.999}, {"epsilon": -1e-9}, r"epsilon must lie in \[0, 1\)"),
        (MaskSchedule, {"sigma_min": 1e-9}, {"sigma_min": 0.0}, "0 < sigma_min < sigma_max, found 0.0 and 20.0"),
        (MaskSchedule, {"sigma_max": 1e-3}, {"sigma_max": 1e-4}, "sigma_min < sigma_max, found 0.0001 and 0.0001"),
        (MaskSchedule, {"name": "cosine"}, {"name": "sine"}, "name"),
        (GaussianSchedule, {"beta_min": 1e-9}, {"beta_min": 0.0}, "0 < beta_min < beta_max, found 0.0 and 0.02"),
        (GaussianSchedule, {"beta_max": 1e-3}, {"beta_max": 1e-4}, "beta_min < beta_max, found 0.0001 and 0.0001"),
        (GaussianSchedule, {"sigmoid_start": 2.9}, {"sigmoid_start": 3.0}, "sigmoid_start must be below sigmoid_end"),
        (GaussianSchedule, {"sigmoid_end": -2.9}, {"sigmoid_end": -3.0}, "found -3.0 and -3.0"),
        (GaussianSchedule, {"name": "flow"}, {"name": "flaw"}, "name"),
    ],
)
def test_a_schedule_accepts_its_bounds_and_nothing_beyond(
    schedule: Any, good: dict[str, Any], bad: dict[str, Any], message: str
) -> None:
    assert parse(schedule, good, at="schedule")
    with pytest.raises(ConfigurationError, match=message):
        parse(schedule, bad, at="schedule")


@pytest.mark.parametrize(
    ("schedule", "name", "changes"),
    [
        (MaskSchedule, "log_linear", "epsilon"), (MaskSchedule, "cosine", "epsilon"),
        (MaskSchedule, "geometric", "sigma_min sigma_max"), (GaussianSchedule, "cosine", "offset"),
        (GaussianSchedule, "linear", "beta_min beta_max"), (GaussianSchedule, "sigmoid", "sigmoid_start sigmoid_end"),
        (GaussianSchedule, "flow", ""),
    ],
)  # fmt: skip
def test_every_number_of_a_schedule_acts_on_its_own_schedules_alone(schedule: Any, name: str, changes: str) -> None:
    t = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)

    def read(made: Any) -> Any:
        return made.mask_probability(t) if schedule is MaskSchedule else torch.stack([made.signal(t), made.noise(t)])

    values = {"epsilon": 0.2, "sigma_min": 1e-3, "sigma_max": 9.0, "offset": 0.1, "beta_min": 1e-3, "beta_max": 0.01,
              "sigmoid_start": -1.0, "sigmoid_end": 5.0}  # fmt: skip
    known = {key: value for key, value in values.items() if hasattr(schedule(), key)}
    plain = read(schedule(name=name))
    found = {
        key for key, value in known.items() if not torch.allclose(read(schedule(name=name, **{key: value})), plain)
    }
    assert found == set(changes.split())


@pytest.mark.parametrize("kind", ["absorbing", "uniform", "gidd", "sedd", "hdlm"])
def test_the_smallest_time_of_training_is_below_the_largest(kind: str) -> None:
    largest = 0.5 if kind == "hdlm" else 1.0
    assert parse_kind(TEXT_PROCESSES, {"kind": kind, "t_min": largest - 1e-6}, at="process")
    with pytest.raises(ConfigurationError, match=f"t_min must be below {largest:g}, found {largest}"):
        parse_kind(TEXT_PROCESSES, {"kind": kind, "t_min": largest}, at="process")


def test_a_graph_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="graph"):
        parse_kind(TEXT_PROCESSES, {"kind": "sedd", "graph": "absorbed"}, at="process")
