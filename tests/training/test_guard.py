from __future__ import annotations

import json
import math

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
