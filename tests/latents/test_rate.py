"""The remaining time of an extraction, from the shards that were finished."""

from __future__ import annotations

import pytest

from mm_ldlm.data.latents.rate import Rate


def test_the_first_shards_are_not_measured_and_the_time_since_the_last_one_is_subtracted() -> None:
    rate = Rate(10_000)
    assert rate.left(3.0) is None
    rate.advanced(1000, 11.0)  # the encoder was loaded for 9 s
    rate.advanced(1000, 12.0)
    rate.advanced(2000, 15.9)
    assert rate.left(16.0) is None, "4.9 s are too few"
    rate.advanced(3000, 21.0)
    # 2,000 rows in 10 s: 7,000 rows take 35 s, of which 4 have passed.
    assert rate.left(21.0) == pytest.approx(35.0)
    assert rate.left(25.0) == pytest.approx(31.0)
    rate.advanced(10_000, 56.0)
    assert rate.left(60.0) == 0.0


@pytest.mark.parametrize("seen_first", [1, 3, 4])
def test_shards_that_end_together_are_no_higher_or_lower_speed(seen_first: int) -> None:
    """Four lanes finish a shard of 1,000 rows every 20 s, almost at the same time."""
    rate = Rate(40_000)
    rate.advanced(1000 * seen_first, 20.0)
    rate.advanced(4000, 20.5)
    rate.advanced(4000 + 1000, 40.0)  # the first of the next four
    assert rate.left(40.0) == pytest.approx(35_000 * 20 / 4000)
    others = Rate(40_000)
    others.advanced(1000 * seen_first, 20.0)
    others.advanced(4000, 20.5)
    others.advanced(8000, 40.0)  # all of them
    assert others.left(40.0) == pytest.approx(32_000 * 20 / 4000)
