"""The guard as a state machine, compared with a model of it; its window; the overflows of fp16."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mm_ldlm.training.config import GuardConfig
from mm_ldlm.training.guard import OVERFLOWS, Guard

CONFIG = GuardConfig(max_consecutive_skips=3, max_rollbacks=2, spike_window=64, spike_patience=4)
BAD = st.sampled_from([(math.nan, 1.0, []), (1.0, math.inf, []), (1.0, 1.0, [1]), (math.inf, math.nan, [0, 2])])


def restored(guard: Guard) -> Guard:
    """The guard of a session that continues this one's run."""
    again = Guard(guard.config)
    again.load(json.loads(json.dumps(guard.to_dict())))
    assert vars(again) == vars(guard)
    assert {window.maxlen for window in again.windows.values()} <= {guard.config.spike_window}
    return again


class Machine(RuleBasedStateMachine):
    """Non-finite steps skip, then roll back, then stop; ordinary steps are applied; a restored guard is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = Guard(CONFIG)
        self.skips = self.rollbacks = 0
        self.stopped = False

    @precondition(lambda self: not self.stopped)
    @rule(numbers=BAD)
    def not_finite(self, numbers: tuple[float, float, list[int]]) -> None:
        loss, norm, ranks = numbers
        verdict = self.guard.judge(kind="a", loss=loss, grad_norm=norm, bad_ranks=ranks)
        assert verdict.non_finite
        self.skips += 1
        if self.skips < CONFIG.max_consecutive_skips:
            assert verdict.action == "skip"
        elif self.rollbacks < CONFIG.max_rollbacks:
            assert verdict.action == "rollback"
            self.skips, self.rollbacks = 0, self.rollbacks + 1
            self.guard.rollbacks += 1
            self.guard.forget()
            assert vars(self.guard) == vars(Guard(CONFIG, rollbacks=self.rollbacks))
        else:
            assert verdict.action == "stop"
            self.stopped = True

    @precondition(lambda self: not self.stopped)
    @rule(kind=st.sampled_from("ab"), noise=st.floats(0.99, 1.01))
    def ordinary(self, kind: str, noise: float) -> None:
        verdict = self.guard.judge(kind=kind, loss=noise, grad_norm=noise, bad_ranks=[])
        assert (verdict.action, verdict.reason) == ("apply", "")
        self.skips = 0

    @rule()
    def saved_and_restored(self) -> None:
        self.guard = restored(self.guard)

    @invariant()
    def no_bad_number_enters_the_window(self) -> None:
        windows: dict[str, list[float]] = self.guard.to_dict()["windows"]
        assert all(map(math.isfinite, (value for window in windows.values() for value in window)))


Machine.TestCase.settings = settings(max_examples=60, deadline=None)
TestGuard = Machine.TestCase


def steady(guard: Guard, count: int, *, kind: str = "a", deviation: float = 0.01) -> None:
    draw = random.Random(0)
    for _ in range(count):
        level = 1 + deviation * draw.gauss(0, 1)
        verdict = guard.judge(kind=kind, loss=level, grad_norm=50 * level, bad_ranks=[])
        assert (verdict.action, verdict.reason) == ("apply", "")


def test_a_spike_is_one_after_enough_steps_of_its_kind_only() -> None:
    guard = Guard(CONFIG)
    for kind, count in (("a", 16), ("b", 15)):  # a quarter of the window
        steady(guard, count, kind=kind)
    guard = restored(guard)
    assert not guard.judge(kind="b", loss=100.0, grad_norm=1.0, bad_ranks=[]).reason
    steady(guard, 40, kind="c", deviation=0.0)
    assert not guard.judge(kind="c", loss=1.02, grad_norm=49.0, bad_ranks=[]).reason, "small against the level itself"
    for numbers, name in (((100.0, 50.0), "loss"), ((1.0, 5000.0), "gradient norm")):
        verdict = guard.judge(kind="a", loss=numbers[0], grad_norm=numbers[1], bad_ranks=[])
        assert (verdict.action, bool(verdict.reason)) == ("apply", True)
        assert name in verdict.reason
    losses = (math.nan, math.nan, 100.0, math.nan, math.nan)
    found = [guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]).action for loss in losses]
    assert found == ["skip", "skip", "apply", "skip", "skip"], "an applied spike ends a row of skipped steps"


@pytest.mark.parametrize(("action", "spikes", "skips"), [("log", 4, 100), ("skip", 4, 100), ("skip", 100, 4)])
def test_many_spikes_in_a_row_are_a_divergence(action: Any, spikes: int, skips: int) -> None:
    guard = Guard(
        GuardConfig(spike_action=action, spike_patience=spikes, spike_window=64, max_consecutive_skips=skips)
    )  # fmt: skip
    steady(guard, 64)
    once = ["apply" if action == "log" else "skip"] * 3
    for first, expected in ((3, once), (6, [*once, "rollback"])):  # a step between them begins the count again
        found = [(guard := restored(guard)).judge(kind="a", loss=10.0 ** (first + n), grad_norm=1.0, bad_ranks=[]).action
                 for n in range(len(expected))]  # fmt: skip
        assert found == expected
        steady(guard, 1)


def test_overflows_of_fp16_are_no_fault_until_no_scale_explains_them() -> None:
    guard = Guard(CONFIG)
    few, many = ([math.inf] * (OVERFLOWS + more) for more in (0, CONFIG.max_consecutive_skips))
    found = [
        guard.judge(kind="a", loss=1.0, grad_norm=norm, bad_ranks=[], overflow=True) for norm in (*few, 1.0, *many)
    ]
    assert {(verdict.action, verdict.non_finite) for verdict in found[:OVERFLOWS]} == {("skip", False)}
    assert [verdict.action for verdict in found[OVERFLOWS:]] == ["apply", *["skip"] * (OVERFLOWS + 2), "rollback"]
