"""Every verdict of the guard as a whole: action, reason, and what it counts as."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mm_ldlm.training.config import GuardConfig
from mm_ldlm.training.guard import Guard, Verdict


def guard(**settings: Any) -> Guard:
    """A guard that has seen losses of 10 ± 1 and norms of 2 ± 0.2, each with a MAD of half of that."""
    made = Guard(GuardConfig(spike_window=8, spike_z=4.0, **settings))
    for factor in (-1, -0.5, -0.5, 0, 0, 0.5, 0.5, 1):
        made._admit("a/loss", 10.0 + factor)
        made._admit("a/gradient norm", 2.0 + 0.2 * factor)
    return made


def judge(made: Guard, *, loss: float = 10.0, norm: float = 2.0, bad: tuple[int, ...] = (), **more: Any) -> Verdict:
    return made.judge(kind="a", loss=loss, grad_norm=norm, bad_ranks=list(bad), **more)


HIGH_LOSS = f"loss 20 is {10 / (1.4826 * 0.5):.1f} robust standard deviations above its median"
HIGH_NORM = f"gradient norm 4.5 is {2.5 / (1.4826 * 0.1):.1f} robust standard deviations above its median"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"loss": math.nan}, "loss is nan"),
        ({"loss": -math.inf, "norm": math.nan}, "loss is -inf"),
        ({"norm": math.inf}, "gradient norm is inf"),
        ({"loss": math.nan, "bad": (0, 2)}, "loss is nan (rank 0, 2)"),
        ({"loss": 7.0, "norm": math.nan, "bad": (3,)}, "loss is 7.0 (rank 3)"),
        ({"loss": math.nan, "norm": math.inf, "overflow": True}, "loss is nan"),
        ({"norm": math.inf, "bad": (1,), "overflow": True}, "loss is 10.0 (rank 1)"),
    ],
)
def test_a_step_that_is_not_finite_is_skipped_then_undone_and_then_ends_the_run(
    given: dict[str, Any], reason: str
) -> None:
    made = guard(max_consecutive_skips=2, max_rollbacks=1)
    windows = made.to_dict()["windows"]
    assert judge(made, **given) == Verdict("skip", reason, spike=False, non_finite=True)
    again = f"2 steps skipped in a row, the last because {reason}"
    assert judge(made, **given) == Verdict("rollback", again, spike=False, non_finite=True)
    assert made.to_dict()["windows"] == windows
    made.rolled_back()
    judge(made, **given)
    last = Verdict("stop", f"{again}; already rolled back 1 times", spike=False, non_finite=True)
    assert judge(made, **given) == last
    assert made.rollbacks == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"loss": 20.0}, HIGH_LOSS), ({"norm": 4.5}, HIGH_NORM),
     ({"loss": 20.0, "norm": 4.5}, f"{HIGH_LOSS}; {HIGH_NORM}")],
    ids=["loss", "norm", "both"],
)  # fmt: skip
def test_a_spike_is_named_and_applied_or_skipped(given: dict[str, Any], reason: str) -> None:
    assert judge(guard(), **given) == Verdict("apply", reason, spike=True, non_finite=False)
    skips = guard(spike_action="skip", max_consecutive_skips=2)
    assert judge(skips, **given) == Verdict("skip", reason, spike=True, non_finite=False)
    assert (skips.consecutive_skips, skips.consecutive_spikes) == (1, 1)
    windows = skips.to_dict()["windows"]
    assert (windows["a/loss"][-1], windows["a/gradient norm"][-1]) == (given.get("loss", 10.0), given.get("norm", 2.0))
    assert judge(skips) == Verdict("apply")
    assert (skips.consecutive_skips, skips.consecutive_spikes) == (0, 0)


def test_the_last_spike_in_a_row_is_divergence() -> None:
    made = guard(spike_patience=1, max_rollbacks=1)
    found = judge(made, loss=20.0)
    assert found == Verdict("rollback", f"1 spikes in a row: {HIGH_LOSS}", spike=True, non_finite=False)
    assert made.consecutive_spikes == 0
    made = guard(spike_patience=1, max_rollbacks=0)
    words = f"1 spikes in a row: {HIGH_LOSS}; already rolled back 0 times"
    assert judge(made, loss=20.0) == Verdict("stop", words, spike=True, non_finite=False)
    skipped = guard(spike_action="skip", max_consecutive_skips=1)
    words = f"1 steps skipped in a row, the last because {HIGH_LOSS}"
    assert judge(skipped, loss=20.0) == Verdict("rollback", words, spike=True, non_finite=False)


def test_an_overflow_is_skipped_without_a_fault_and_counts_alone() -> None:
    made = guard()
    made.consecutive_skips = made.consecutive_spikes = 3
    found = judge(made, norm=math.inf, overflow=True)
    assert found == Verdict("skip", "fp16 gradients overflowed; the scale is lowered", spike=False, non_finite=False)
    assert (made.consecutive_overflows, made.consecutive_skips, made.consecutive_spikes) == (1, 3, 3)
    assert judge(made, norm=math.nan, overflow=True).reason == found.reason, "infinities of both signs add up to NaN"
    assert made.consecutive_overflows == 2
    assert judge(made, overflow=True) == Verdict("apply")
    assert (made.consecutive_overflows, made.consecutive_skips, made.consecutive_spikes) == (0, 0, 0)


def test_a_roll_back_begins_every_count_anew_but_its_own() -> None:
    made = guard()
    made.consecutive_skips, made.consecutive_spikes, made.consecutive_overflows, made.rollbacks = 4, 5, 6, 1
    made.rolled_back()
    assert made.to_dict() == {
        "consecutive_skips": 0, "consecutive_spikes": 0, "consecutive_overflows": 0, "rollbacks": 2, "windows": {}
    }  # fmt: skip


def test_a_guard_of_an_older_checkpoint_has_no_overflows() -> None:
    """And its windows are as long as those of this run."""
    made = Guard(GuardConfig(spike_window=2))
    found = {"consecutive_skips": 1, "consecutive_spikes": 2, "rollbacks": 3, "windows": {"a/loss": [1.0, 2.0, 3.0]}}
    made.load(found)
    assert made.to_dict() == found | {"consecutive_overflows": 0, "windows": {"a/loss": [2.0, 3.0]}}
    made._admit("a/loss", 4.0)
    assert made.to_dict()["windows"] == {"a/loss": [3.0, 4.0]}


def test_losses_below_zero_have_a_spread_of_their_size() -> None:
    """Eight equal losses of −5, as a likelihood may have them: a hundredth of 5 counts as their spread."""
    for loss, spike in ((-4.9, False), (-4.0, True), (-9.0, False)):
        made = Guard(GuardConfig(spike_window=8, spike_z=10.0))
        for _ in range(8):
            judge(made, loss=-5.0)
        assert judge(made, loss=loss).spike is spike
