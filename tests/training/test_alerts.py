"""Alerts: each sign of a training that does not learn is logged once, and again after its cause has ended."""

import random
from typing import Any

import pytest
from tests.training.task import Recorder

from mm_ldlm.training.alerts import WINDOW, ZERO_DIAGNOSES, ZERO_STEPS, Alerts


def heard(log: Recorder) -> list[tuple[int, str]]:
    return [(event["step"], event["name"]) for event in log.of("alert")]


def test_gradients_that_are_zero_are_reported_once_until_they_return() -> None:
    log = Recorder()
    alerts = Alerts(log)
    norms = [0.0] * (ZERO_STEPS - 1) + [1.0] + [0.0] * (ZERO_STEPS + 3) + [1.0] + [0.0] * ZERO_STEPS
    for step, norm in enumerate(norms):
        alerts.stepped(step, kind="a", loss=float(step), grad_norm=norm)
    assert heard(log) == [(2 * ZERO_STEPS - 1, "zero_gradients"), (len(norms) - 1, "zero_gradients")]


def test_a_part_without_gradients_is_named() -> None:
    log = Recorder()
    alerts = Alerts(log)
    for step in range(ZERO_DIAGNOSES + 2):
        alerts.diagnosed(step, {"grad_zeros/dead": 1.0, "grad_zeros/alive": 0.5})
    (event,) = log.of("alert")
    assert (event["step"], event["name"]) == (ZERO_DIAGNOSES - 1, "zero_gradients_of_parts")
    assert "dead" in event["reason"]
    assert "alive" not in event["reason"]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda step, draw: 3.0, ["constant_loss/a"]),
        (lambda step, draw: 3.0 + draw.gauss(0, 0.1), ["stalled_loss/a"]),
        (lambda step, draw: 3.0 + step * 1e-3 + draw.gauss(0, 0.1), ["stalled_loss/a"]),
        (lambda step, draw: 3.0 - step * 1e-3 + draw.gauss(0, 0.1), []),
    ],
)
def test_a_loss_that_does_not_fall_is_reported_by_its_kind(loss: Any, expected: list[str]) -> None:
    log, draw = Recorder(), random.Random(0)
    alerts = Alerts(log)
    for step in range(2 * WINDOW):
        alerts.stepped(step, kind="a", loss=loss(step, draw), grad_norm=1.0)
        alerts.stepped(step, kind="b", loss=10.0 - step * 1e-2, grad_norm=1.0)
    assert [name for _, name in heard(log)] == expected
