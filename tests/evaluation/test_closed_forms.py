"""Standard errors and p-values against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from mm_ldlm.evaluation import bootstrap
from mm_ldlm.evaluation.likelihood import mean, per_token


def test_the_error_of_a_rate_is_that_of_a_mean_where_all_lengths_are_equal() -> None:
    values = np.array([1.0, 2.5, 4.0, 0.5, 7.0])
    expected = values.std(ddof=1) / np.sqrt(5)
    for length in (1.0, 4.0):
        found = per_token(values * length, np.full(5, length))
        assert (found.value, found.standard_error) == pytest.approx((3.0, expected))
    assert mean(values).standard_error == pytest.approx(expected)
    assert (found.low, found.high) == pytest.approx((3.0 - 1.959964 * expected, 3.0 + 1.959964 * expected))


@pytest.mark.parametrize(
    ("drawn", "p", "clear"),
    [([-1.0, 1.0, 1.0], 1.0, False), ([-1.0] * 9 + [1.0] * 70, 0.25, False), ([1.0] * 79, 0.025, True),
     ([-1.0] * 79, 0.025, True), ([0.0] * 4, 1.0, False)],
)  # fmt: skip
def test_p_is_twice_the_smaller_tail(
    drawn: list[float], p: float, clear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "replicates_of_runs", lambda *_, **__: np.array(drawn))
    one, two = bootstrap.mean_of_counts([0.0, 1.0] * 15), bootstrap.mean_of_counts([1.0, 4.0] * 15)
    found = bootstrap.paired_difference([one], [two], 30, replicates=len(drawn))
    assert (found.p_two_sided, found.clear) == (pytest.approx(p), clear)
    assert (found.a, found.b, found.difference.value) == (0.5, 2.5, 2.0)
