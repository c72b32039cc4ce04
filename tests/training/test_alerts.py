"""Alerts: training that goes on without learning is reported once, and normal training is not."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import faults
import helpers
import pytest
from mm_ldlm.training.gradients import STATISTICS

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.training import alerts
from mm_ldlm.training.alerts import UNDERFLOW, WINDOW, ZERO_DIAGNOSES, ZERO_STEPS, Alerts
from mm_ldlm.training.jsonl import read_events
from mm_ldlm.training.worker import train


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[int, str, str]] = []

    def metrics(self, step: int, values: Any) -> None: ...

    def event(self, step: int, kind: str, **words: Any) -> None:
        assert kind == "alert"
        self.events.append((step, words["name"], words["reason"]))

    def close(self) -> None: ...


def names(heard: Heard) -> list[tuple[int, str]]:
    return [(step, name) for step, name, _ in heard.events]


def test_gradients_of_exactly_zero_are_reported_once_and_again_after_they_moved() -> None:
    watch = Alerts(heard := Heard())
    for step, norm in enumerate([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]):
        watch.stepped(step, kind="l2t", loss=1.0 / (step + 1), grad_norm=norm)
    assert names(heard) == [(5, "zero_gradients"), (10, "zero_gradients")]


def test_a_part_without_gradients_is_named() -> None:
    watch = Alerts(heard := Heard())
    for step in range(5):
        watch.diagnosed(step, {"grad_zeros/heads": 1.0, "grad_zeros/block0": 1.0 if step == 0 else 0.3, "loss": 1.0})
    ((step, name, reason),) = heard.events
    assert (step, name) == (2, "zero_gradients_of_parts")
    assert "gradients of heads were exactly 0" in reason


def test_fp16_underflow_is_reported_with_its_scale() -> None:
    watch = Alerts(heard := Heard())
    for step, lost in enumerate([0.01, 0.5, 0.6, 0.0, 0.3]):
        watch.diagnosed(step, {"fp16_underflow": lost, "fp16_scale": 4.0})
    assert names(heard) == [(1, "fp16_underflow"), (4, "fp16_underflow")]
    assert "50% of the fp16 gradients are exactly 0 at the loss scale 4" in heard.events[0][2]


def test_a_loss_that_stopped_moving_is_reported_by_mode() -> None:
    draw, watch = random.Random(0), Alerts(heard := Heard())
    for step in range(6 * alerts.WINDOW):
        level = 5.0 - 0.001 * min(step, 2 * alerts.WINDOW)  # falls, then stays
        watch.stepped(step, kind="l2t", loss=level + draw.gauss(0, 0.05), grad_norm=1.0)
        watch.stepped(step, kind="t2l", loss=9.0 - 0.001 * step + draw.gauss(0, 0.05), grad_norm=1.0)
    (event,) = heard.events
    assert event[1] == "stalled_loss/l2t"
    assert event[0] == 4 * alerts.WINDOW - 1
    assert "the loss of mode l2t did not fall" in event[2]


def test_a_constant_loss_is_reported_as_constant() -> None:
    watch = Alerts(heard := Heard())
    for step in range(3 * alerts.WINDOW):
        watch.stepped(step, kind="l2t", loss=2.0, grad_norm=1.0)
    assert names(heard) == [(alerts.WINDOW - 1, "constant_loss/l2t")]


def run(root: Path, *, wrap: Any = None, **settings: Any) -> Path:
    train(helpers.spec(model={"depth": 1}, **settings), root=root, data=helpers.data(), wrap_objective=wrap)
    return root / "run"


class WithoutGradient(faults.Faulty):
    """A loss that does not depend on the parameters, but on the data."""

    def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        losses = self.inner(model, batch, generator, kind=kind, step=step)
        return {name: (pair[0] * 0 + pair[0].detach(), pair[1]) for name, pair in losses.items()}


def test_a_loss_without_gradients_raises_an_alert_in_the_log_of_the_run(tmp_path: Path) -> None:
    log = run(tmp_path / "dead", wrap=WithoutGradient, max_steps=5) / "training_log.jsonl"
    assert [event["name"] for event in read_events(log, "alert")] == ["zero_gradients"]
    log = run(tmp_path / "alive", max_steps=5, diagnose_every=1) / "training_log.jsonl"
    assert read_events(log, "alert") == []


def test_statistics_of_every_gradient_are_written_on_request_and_change_nothing(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", max_steps=4, diagnose_every=2)
    asked = run(tmp_path / "asked", max_steps=4, diagnose_every=2, parameter_gradients=True)
    assert helpers.same_bits(helpers.tensors(plain, 4), helpers.tensors(asked, 4))
    assert not (plain / "gradients.jsonl").exists()
    lines = [json.loads(line) for line in (asked / "gradients.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 4]
    trained = set(helpers.tensors(asked, 4))
    for line in lines:
        assert set(line["parameters"]) <= trained
        for found in line["parameters"].values():
            assert set(found) == set(STATISTICS)
            assert found["norm"] >= found["largest"] >= abs(found["mean"])
    logged = [json.loads(line) for line in (asked / "training_log.jsonl").read_text().splitlines()]
    (whole,) = [line["grad_norm"] for line in logged if line.get("step") == 4 and "grad_norm" in line]
    together = sum(found["norm"] ** 2 for found in lines[-1]["parameters"].values()) ** 0.5
    assert together == pytest.approx(whole, rel=1e-4)


def test_gradients_that_are_not_finite_are_written_too(tmp_path: Path) -> None:
    poisoned = lambda inner: faults.Faulty(inner, kind="inf_gradient", steps=[1], ranks=[0])  # noqa: E731
    asked = run(tmp_path, wrap=poisoned, max_steps=3, diagnose_every=2, parameter_gradients=True)
    lines = [json.loads(line) for line in (asked / "gradients.jsonl").read_text().splitlines()]
    assert max(found["nonfinite"] for found in lines[1]["parameters"].values()) > 0


def test_statistics_without_a_diagnosis_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="parameter_gradients is written every diagnose_every steps"):
        helpers.spec(parameter_gradients=True, diagnose_every=0)


@pytest.mark.parametrize(("steps", "expected"), [(ZERO_STEPS - 1, 0), (ZERO_STEPS, 1)])
def test_so_many_steps_without_a_gradient_are_an_alert(steps: int, expected: int) -> None:
    watch = Alerts(heard := Heard())
    for step in range(steps):
        watch.stepped(step, kind="a", loss=1.0 + step, grad_norm=0.0)
    assert len(heard.events) == expected


@pytest.mark.parametrize(
    ("line", "count", "expected"),
    [({"grad_zeros/x": 1.0}, ZERO_DIAGNOSES - 1, 0), ({"grad_zeros/x": 1.0}, ZERO_DIAGNOSES, 1),
     ({"grad_zeros/x": 0.99}, 9, 0), ({"fp16_underflow": UNDERFLOW}, 1, 0),
     ({"fp16_underflow": UNDERFLOW + 0.01}, 1, 1)],
)  # fmt: skip
def test_limits_of_diagnosed_steps(line: dict[str, float], count: int, expected: int) -> None:
    watch = Alerts(heard := Heard())
    for step in range(count):
        watch.diagnosed(step, line)
    assert len(heard.events) == expected


@pytest.mark.parametrize(("fall", "expected"), [(0.9, ["stalled_loss/a"]), (1.1, [])])
def test_a_loss_falls_where_its_means_differ_by_more_than_their_errors(fall: float, expected: list[str]) -> None:
    """Losses alternate between the mean ± 1, so the error of a mean is 1 / √WINDOW."""
    watch = Alerts(heard := Heard())
    difference = fall * math.sqrt(2 / WINDOW)
    for step in range(2 * WINDOW):
        mean = 5.0 if step < WINDOW else 5.0 - difference
        watch.stepped(step, kind="a", loss=mean + (1 if step % 2 else -1), grad_norm=1.0)
    assert [name for _, name in names(heard)] == expected


def test_only_diagnosed_steps_in_a_row_count_and_a_part_that_learns_again_ends_its_alert() -> None:
    watch = Alerts(heard := Heard())
    for step, zeros in enumerate([1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]):
        watch.diagnosed(step, {"grad_zeros/heads": zeros})
    assert names(heard) == [(5, "zero_gradients_of_parts"), (10, "zero_gradients_of_parts")]
