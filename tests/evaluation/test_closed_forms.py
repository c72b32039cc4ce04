"""Standard errors and p-values against their formulas; work in blocks against work at once."""

from __future__ import annotations

import numpy as np
import pytest

from mm_ldlm.evaluation import baselines, bootstrap, retrieval
from mm_ldlm.evaluation.likelihood import mean, per_token
from mm_ldlm.families.images import suite as images


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


# -- blocks ------------------------------------------------------------------------------------------------------------

QUERIES, POOL = (np.random.default_rng(seed).standard_normal((13, 4)) for seed in (0, 1))


@pytest.mark.parametrize("block", [1, 3, 12, 13, 14])
def test_the_size_of_a_block_changes_no_number(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query is the nearest of another row, so that a row of another block would be another answer."""
    order = np.random.default_rng(2).permutation(13)
    cosine = QUERIES @ POOL.T / np.linalg.norm(QUERIES, axis=1)[:, None] / np.linalg.norm(POOL, axis=1)
    assert baselines.nearest_training_rows(QUERIES, POOL, block=block).tolist() == cosine.argmax(1).tolist()
    assert baselines.nearest_training_rows(POOL[order], POOL, block=block).tolist() == order.tolist()
    own = cosine[np.arange(13), np.arange(13)][:, None]
    assert retrieval.retrieval(QUERIES, POOL, block=block).rank_N.tolist() == (1 + (cosine > own).sum(1)).tolist()

    statistics = [bootstrap.mean_of_counts(QUERIES[:, place]) for place in range(3)]
    whole = bootstrap.replicates_of_runs(statistics, 13, replicates=11, seed=5)
    counts = np.concatenate([*bootstrap.count_blocks(13, replicates=11, seed=5)])
    monkeypatch.setattr(bootstrap, "_BLOCK", 13 * block)
    blocks = [*bootstrap.count_blocks(13, replicates=11, seed=5)]
    assert {len(part) for part in blocks[:-1]} <= {block}
    np.testing.assert_array_equal(np.concatenate(blocks), counts)
    np.testing.assert_allclose(bootstrap.replicates_of_runs(statistics, 13, replicates=11, seed=5), whole)


@pytest.mark.parametrize("count", [1, 255, 256, 600])
def test_every_image_has_its_own_nearest_image(count: int) -> None:
    draw = np.random.default_rng(4)
    some, others = draw.random((count, 4)), draw.random((7, 4))
    expected = np.sqrt(((some[:, None] - others) ** 2).mean(2)).min(1)
    np.testing.assert_allclose(images._nearest(some, others), expected, err_msg="the root mean square over the pixels")
