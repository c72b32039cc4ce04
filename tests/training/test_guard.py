from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mm_ldlm.training.config import GuardConfig
from mm_ldlm.training.guard import OVERFLOWS, Guard, Verdict


def fed(guard: Guard, count: int = 40, *, loss: float = 1.0) -> None:
    for step in range(count):
        guard.judge(kind="a", loss=loss + 0.01 * (step % 5), grad_norm=0.5 + 0.01 * (step % 3), bad_ranks=[])


def judge(
    guard: Guard, loss: float = 1.0, norm: float = 0.5, *, bad: list[int] | None = None, kind: str = "a"
) -> Verdict:
    return guard.judge(kind=kind, loss=loss, grad_norm=norm, bad_ranks=bad or [])


def test_an_ordinary_step_is_applied() -> None:
    assert judge(Guard(GuardConfig())) == Verdict("apply")


def test_every_non_finite_number_skips_with_a_reason() -> None:
    for loss, norm, word in (
        (math.nan, 1.0, "loss is nan"),
        (math.inf, 1.0, "loss is inf"),
        (1.0, math.nan, "norm is nan"),
    ):
        verdict = judge(Guard(GuardConfig()), loss, norm)
        assert verdict.action == "skip"
        assert verdict.non_finite
        assert word in verdict.reason
    assert "rank 1" in judge(Guard(GuardConfig()), 1.0, 1.0, bad=[1]).reason


def test_skips_in_a_row_roll_back_and_roll_backs_end() -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=3, max_rollbacks=1))
    assert [judge(guard, math.nan).action for _ in range(3)] == ["skip", "skip", "rollback"]
    guard.rolled_back()
    assert [judge(guard, math.nan).action for _ in range(3)] == ["skip", "skip", "stop"]


def test_after_a_roll_back_steps_are_compared_with_new_ones_only() -> None:
    guard = Guard(GuardConfig(spike_window=32))
    fed(guard)
    guard.rolled_back()
    assert not judge(guard, 100.0).spike
    fed(guard, loss=100.0)
    assert not judge(guard, 100.0).spike
    assert judge(guard, 1e4).spike


def test_one_good_step_resets_the_count() -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=2))
    for _ in range(5):
        assert judge(guard, math.nan).action == "skip"
        assert judge(guard).action == "apply"


def test_a_spike_is_seen_against_its_own_kind_only() -> None:
    guard = Guard(GuardConfig(spike_window=32))
    fed(guard)
    assert not judge(guard, 100.0, kind="b").spike
    verdict = judge(guard, 100.0)
    assert verdict.spike
    assert verdict.action == "apply"
    assert "loss 100" in verdict.reason


def test_spikes_are_skipped_where_that_is_asked_for() -> None:
    guard = Guard(GuardConfig(spike_window=32, spike_action="skip"))
    fed(guard)
    assert judge(guard, 100.0).action == "skip"


def test_what_counts_as_a_spike_is_a_parameter() -> None:
    for spike_z, spike in ((3.0, True), (1e6, False)):
        guard = Guard(GuardConfig(spike_window=32, spike_z=spike_z))
        fed(guard)
        assert judge(guard, 5.0).spike is spike


def test_spikes_without_end_are_divergence() -> None:
    guard = Guard(GuardConfig(spike_window=64, spike_patience=5))
    fed(guard, 64)
    for _ in range(2):  # the count begins anew after each
        assert [judge(guard, 1e3 * (i + 1)).action for i in range(5)] == ["apply"] * 4 + ["rollback"]


def test_the_window_never_admits_a_non_finite_number() -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=1000))
    fed(guard)
    for _ in range(50):
        judge(guard, math.nan)
        judge(guard, 1.0, math.inf)
    assert all(math.isfinite(value) for window in guard.to_dict()["windows"].values() for value in window)
    assert judge(guard, 100.0).spike


def test_an_fp16_overflow_is_no_fault() -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=1))
    verdict = guard.judge(kind="a", loss=1.0, grad_norm=math.inf, bad_ranks=[], overflow=True)
    assert verdict.action == "skip"
    assert not verdict.non_finite
    assert guard.consecutive_skips == 0


def test_overflows_without_end_are_a_fault_that_no_scale_cures() -> None:
    """GradScaler halves at each: after `OVERFLOWS` in a row the scale is below 1, and the gradients are at fault."""
    guard = Guard(GuardConfig(max_consecutive_skips=2, max_rollbacks=0))

    def overflown() -> Verdict:
        return guard.judge(kind="a", loss=1.0, grad_norm=math.inf, bad_ranks=[], overflow=True)

    assert not any(overflown().non_finite for _ in range(OVERFLOWS))
    fed(guard, 1)
    assert not any(overflown().non_finite for _ in range(OVERFLOWS)), "a good step in between starts the count anew"
    first, second = overflown(), overflown()
    assert (first.action, first.non_finite, second.action) == ("skip", True, "stop")


def test_state_survives_json() -> None:
    guard, other = Guard(GuardConfig(spike_window=16)), Guard(GuardConfig(spike_window=16))
    fed(guard)
    judge(guard, math.nan)
    other.load(json.loads(json.dumps(guard.to_dict())))
    assert other.to_dict() == guard.to_dict()
    for step in range(24):  # more than a window
        assert judge(other, 2.0 + 0.01 * step) == judge(guard, 2.0 + 0.01 * step)
    assert other.to_dict() == guard.to_dict()
    assert judge(other, 50.0) == judge(guard, 50.0)


def filled(**settings: Any) -> Guard:
    """A guard whose windows have the median 10 and the median absolute deviation 2 (loss), 1 and 0.5 (norm)."""
    guard = Guard(GuardConfig(spike_window=8, **settings))
    for loss, norm in ((6, 0.0), (8, 0.5), (8, 0.5), (10, 1.0), (10, 1.0), (12, 1.5), (12, 1.5), (14, 2.0)):
        guard._admit("a/loss", loss)
        guard._admit("a/gradient norm", norm)
    return guard


@pytest.mark.parametrize(
    ("loss", "norm", "named"),
    [
        (10 + 4 * 1.4826 * 2 - 0.01, 1.0, []), (10 + 4 * 1.4826 * 2 + 0.01, 1.0, ["loss"]),
        (10.0, 1 + 4 * 1.4826 * 0.5 - 0.01, []), (10.0, 1 + 4 * 1.4826 * 0.5 + 0.01, ["gradient norm"]),
        (1e3, 1e3, ["loss", "gradient norm"]), (-1e3, 0.0, []),
    ],
)  # fmt: skip
def test_a_spike_is_so_many_robust_standard_deviations_above_the_median(
    loss: float, norm: float, named: list[str]
) -> None:
    verdict = filled(spike_z=4.0).judge(kind="a", loss=loss, grad_norm=norm, bad_ranks=[])
    assert verdict.spike == bool(named)
    assert verdict.action == "apply"
    assert [name for name in ("loss", "gradient norm") if f"{name} " in verdict.reason] == named


def test_equal_losses_have_a_spread_of_a_hundredth_of_their_median() -> None:
    for loss, spike in ((5.0 + 10 * 0.05 - 0.001, False), (5.0 + 10 * 0.05 + 0.001, True)):
        guard = Guard(GuardConfig(spike_window=8))
        for _ in range(8):
            guard._admit("a/loss", 5.0)
        assert guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]).spike == spike


def test_the_window_holds_the_last_steps_spikes_included() -> None:
    guard = filled()
    guard.judge(kind="a", loss=500.0, grad_norm=7.0, bad_ranks=[])
    windows = guard.to_dict()["windows"]
    assert windows["a/loss"] == [8, 8, 10, 10, 12, 12, 14, 500.0]
    assert windows["a/gradient norm"][-1] == 7.0


def test_only_spikes_in_a_row_are_divergence_and_only_skips_in_a_row() -> None:
    guard = filled(spike_patience=2)
    judge = [guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]) for loss in (1e3, 10, 1e6, 10, 1e9, 1e12)]
    assert [verdict.action for verdict in judge] == ["apply"] * 5 + ["rollback"]
    assert [verdict.spike for verdict in judge] == [True, False, True, False, True, True]
    guard = filled(spike_action="skip", max_consecutive_skips=2)
    judge = [guard.judge(kind="a", loss=loss, grad_norm=1.0, bad_ranks=[]) for loss in (1e3, 10, 1e6, 1e9)]
    assert [(verdict.action, verdict.spike) for verdict in judge] == [
        ("skip", True), ("apply", False), ("skip", True), ("rollback", True)
    ]  # fmt: skip
    assert "2 steps skipped in a row" in judge[-1].reason
    assert not judge[-1].non_finite


def test_an_applied_spike_ends_a_row_of_skips() -> None:
    guard = filled(max_consecutive_skips=2)
    values = [(math.nan, 1.0), (1e6, 1.0), (math.nan, 1.0), (1.0, math.inf)]
    found = [guard.judge(kind="a", loss=loss, grad_norm=norm, bad_ranks=[]) for loss, norm in values]
    assert [verdict.action for verdict in found] == ["skip", "apply", "skip", "rollback"]
    assert [verdict.non_finite for verdict in found] == [True, False, True, True]


@pytest.mark.parametrize(("rollbacks", "action"), [(0, "rollback"), (1, "rollback"), (2, "stop"), (3, "stop")])
def test_the_roll_back_after_the_last_stops(rollbacks: int, action: str) -> None:
    guard = Guard(GuardConfig(max_consecutive_skips=1, max_rollbacks=2))
    guard.rollbacks = rollbacks
    verdict = guard.judge(kind="a", loss=1.0, grad_norm=1.0, bad_ranks=[0, 2])
    assert (verdict.action, verdict.non_finite) == (action, True)
    assert "(rank 0, 2)" in verdict.reason
    guard.rolled_back()
    assert guard.rollbacks == rollbacks + 1
    assert (guard.consecutive_skips, guard.consecutive_spikes, guard.consecutive_overflows) == (0, 0, 0)


def test_a_loss_that_is_not_finite_is_no_overflow() -> None:
    """On this rank or on another one: the scale of fp16 explains gradients only."""
    for loss, bad in ((1.0, [1]), (math.nan, [])):
        guard = Guard(GuardConfig())
        guard.consecutive_overflows = 3
        verdict = guard.judge(kind="a", loss=loss, grad_norm=math.inf, bad_ranks=bad, overflow=True)
        assert (verdict.action, verdict.non_finite, guard.consecutive_skips) == ("skip", True, 1)
        assert guard.consecutive_overflows == 0
