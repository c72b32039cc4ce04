"""The reasons of all alerts, word for word, and losses that are small or negative."""

from __future__ import annotations

import pytest
from parts import Heard

from mm_ldlm.training.alerts import Alerts


def alerts(heard: Heard) -> dict[str, str]:
    """The reasons by name; every event is an alert."""
    assert {kind for _, kind, _ in heard.events} <= {"alert"}
    assert all(set(about) == {"name", "reason"} for *_, about in heard.events)
    return {about["name"]: about["reason"] for *_, about in heard.events}


def test_every_reason_names_its_numbers_and_a_cause() -> None:
    watch = Alerts(heard := Heard())
    for step in range(3):
        watch.stepped(step, kind="a", loss=float(step), grad_norm=0.0)
        watch.diagnosed(
            step, {"grad_zeros/heads": 1.0, "grad_zeros/block2": 1.0, "grad_zeros/table": 0.5, "grad_norm/x": 1.0,
                   "fp16_underflow": 0.25, "fp16_scale": 1024.0}
        )  # fmt: skip
    assert alerts(heard) == {
        "zero_gradients": "the gradient was exactly 0 in 3 steps in a row: the loss does not depend on the trained "
        "parameters, or every gradient underflowed",
        "zero_gradients_of_parts": "the gradients of block2, heads were exactly 0 in 3 diagnosed steps in a row: "
        "nothing in the loss depends on these parts",
        "fp16_underflow": "25% of the fp16 gradients are exactly 0 at the loss scale 1024: they underflow. Use "
        "training.precision.autocast: bf16",
    }
    assert [step for step, *_ in heard.events] == [0, 2, 2]


def test_a_constant_and_a_stalled_loss_are_named_with_their_mode_and_means() -> None:
    watch = Alerts(heard := Heard())
    for step in range(1000):
        watch.stepped(step, kind="same", loss=2.5, grad_norm=1.0)
        watch.stepped(step, kind="rises", loss=(4.0 if step < 500 else 5.0) + 0.5 * (step % 2), grad_norm=1.0)
    assert alerts(heard) == {
        "constant_loss/same": "the loss of mode same was 2.5 in all of 500 steps: it does not depend on the data, or "
        "it is clamped",
        "stalled_loss/rises": "the loss of mode rises did not fall: 4.25 and then 5.25 are its means over 500 steps "
        "each. The model has converged, the learning rate does not fit, or the gradients do not reach it",
    }


@pytest.mark.parametrize("mean", [1e-9, 3.0, -3.0, -1e-9])
def test_a_loss_is_constant_relative_to_its_size(mean: float) -> None:
    """A likelihood may be negative, and a squared error small; 0 in every step is constant too."""
    for spread, constant in ((0.9e-6, True), (1.1e-6, False)):
        watch = Alerts(heard := Heard())
        for step in range(500):
            watch.stepped(step, kind="a", loss=mean * (1 + (spread if step == 77 else 0.0)), grad_norm=1.0)
        assert ("constant_loss/a" in alerts(heard)) is constant
    watch = Alerts(heard := Heard())
    for step in range(500):
        watch.stepped(step, kind="a", loss=0.0, grad_norm=1.0)
    assert "constant_loss/a" in alerts(heard)


def test_windows_follow_one_another() -> None:
    """The third window is compared with the second, and a loss that falls again ends its alert."""
    watch = Alerts(heard := Heard())
    for window, mean in enumerate((9.0, 5.0, 6.0, 7.0, 4.0, 4.0)):
        for step in range(500):
            watch.stepped(500 * window + step, kind="a", loss=mean + 0.01 * (step % 2), grad_norm=1.0)
    assert [(step, about["name"]) for step, _, about in heard.events] == [
        (1499, "stalled_loss/a"), (2999, "stalled_loss/a")
    ]  # fmt: skip
    assert "5.005 and then 6.005" in heard.events[0][2]["reason"]
