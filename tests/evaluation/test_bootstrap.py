"""Intervals of the bootstrap, by simulation and against scipy."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import (
    FEWEST_PAIRS,
    Bootstrap,
    Statistic,
    bin_of,
    calibration_error,
    holm,
    mean_of_counts,
    ratio_of_counts,
    reliability,
    weighted_pearson,
)

FEW = Bootstrap(200)


STATISTICS: dict[str, tuple[Callable[..., Statistic], Callable[..., float]]] = {
    "ratio": (ratio_of_counts, lambda x, y: x.sum() / y.sum()),
    "mean": (lambda x, y: mean_of_counts(x), lambda x, y: x.mean()),
    "pearson": (
        lambda x, y: lambda counts: weighted_pearson(x[None], y[None], counts), lambda x, y: np.corrcoef(x, y)[0, 1]
    ),
}  # fmt: skip


@given(name=st.sampled_from(sorted(STATISTICS)), items=st.integers(5, 40), seed=st.integers(0, 50))
def test_a_statistic_of_counts_is_that_of_the_repeated_items(name: str, items: int, seed: int) -> None:
    repeats(*STATISTICS[name], items, seed)


def repeats(
    statistic: Callable[[np.ndarray, np.ndarray], Statistic], definition: Callable[..., float], items: int, seed: int
) -> None:
    """Compare a statistic of counts with its definition on the items as often as they were drawn."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 6, items).astype(float), draw.integers(1, 9, items).astype(float)
    counts = next(Bootstrap(8, seed=seed).count_blocks(items))
    found = statistic(x, y)(counts)
    for row, value in zip(counts.astype(int), found, strict=True):
        repeated = np.repeat(x, row), np.repeat(y, row)
        if np.ptp(repeated[0]) and np.ptp(repeated[1]):
            assert value == pytest.approx(definition(*repeated), abs=1e-9)


@given(items=st.integers(1, 30), replicates=st.integers(20, 60), seed=st.integers(0, 9))
def test_a_resample_draws_as_many_items_as_there_are(items: int, replicates: int, seed: int) -> None:
    counts = np.concatenate(list(Bootstrap(replicates, seed=seed).count_blocks(items)))
    assert counts.shape == (replicates, items)
    assert (counts.sum(axis=1) == items).all()
    again, other = (np.concatenate([*Bootstrap(replicates, seed=s).count_blocks(items)]) for s in (seed, seed + 1))
    assert (counts == again).all()
    assert (counts != other).any() or items == 1


def test_draws_in_blocks_are_those_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    once = FEW.mean(np.arange(50.0))
    monkeypatch.setattr("mm_ldlm.evaluation.bootstrap._BLOCK", 500)
    assert FEW.mean(np.arange(50.0)) == once


@pytest.mark.parametrize("kind", ["mean", "ratio", "proportion"])
def test_intervals_cover_the_truth_at_their_level(kind: str) -> None:
    draw, hits, rounds = np.random.default_rng(0), 0, 300
    for number in range(rounds):
        weight = draw.integers(1, 20, 60)
        value = draw.normal(2, 1, 60) if kind == "mean" else draw.binomial(weight if kind == "ratio" else 1, 0.3, 60)
        bootstrap = Bootstrap(200, 0.9, number)
        found = {"mean": bootstrap.mean, "proportion": bootstrap.proportion}.get(kind, lambda v: bootstrap.ratio(v, weight))(value)  # noqa: B023  # fmt: skip
        hits += found["low"] <= (2 if kind == "mean" else 0.3) <= found["high"]
    assert 0.84 <= hits / rounds <= 0.95


@given(count=st.integers(1, 200), level=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_fractions_of_zero_and_one_have_wilsons_interval(count: int, level: float) -> None:
    for hits in (0, count):
        found = Bootstrap(20, level).proportion([1] * hits + [0] * (count - hits))
        expected = binomtest(hits, count).proportion_ci(level, "wilson")
        assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("between", [0.0, 0.1, 3.0])
def test_the_interval_of_several_runs_covers_the_truth(between: float) -> None:
    """Sentences of spread 1, and three runs whose means spread less, as much as the sentences' mean, or far more."""
    draw, items, rounds, hits = np.random.default_rng(0), 100, 1000, 0
    for number in range(rounds):
        means, sentences = draw.normal(0, between, 3), draw.normal(0, 1, items)
        runs = [mean_of_counts(mean + sentences) for mean in means]
        found, p = Bootstrap(100, seed=number).of_runs(runs, items)
        hits += found["low"] <= 0 <= found["high"]
        assert (p > 0.05) == (found["low"] <= 0 <= found["high"])
    assert 0.93 <= hits / rounds <= 0.97


def test_a_paired_difference_is_surer_than_the_difference_of_two_intervals() -> None:
    draw = np.random.default_rng(1)
    common = draw.normal(0, 5, 200)
    a, b = common + draw.normal(0, 0.1, 200), common + 0.5 + draw.normal(0, 0.1, 200)
    found = FEW.difference([mean_of_counts(a)], [mean_of_counts(b)], 200)
    assert found["b"] - found["a"] == pytest.approx(found["difference"]["value"]) == pytest.approx(0.5, abs=0.05)
    assert found["verdict"] == "significant"
    assert found["p"] == pytest.approx(2 / 201)
    assert found["difference"]["high"] - found["difference"]["low"] < 0.1
    back = FEW.difference([mean_of_counts(b)], [mean_of_counts(a)], 200)["difference"]
    assert (back["low"], back["high"]) == pytest.approx((-found["difference"]["high"], -found["difference"]["low"]))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_holms_correction_is_closed_testing_by_bonferroni(p_values: list[float]) -> None:
    sets = [some for size in range(len(p_values)) for some in combinations(range(len(p_values)), size + 1)]
    bounds = {some: min(1.0, len(some) * min(p_values[each] for each in some)) for some in sets}
    expected = [max(bounds[some] for some in sets if each in some) for each in range(len(p_values))]
    assert holm(p_values) == pytest.approx(expected)


@pytest.mark.parametrize("items", [2, FEWEST_PAIRS - 1, FEWEST_PAIRS])
def test_few_pairs_have_no_verdict(items: int) -> None:
    found = FEW.difference([mean_of_counts(np.zeros(items))], [mean_of_counts(np.ones(items))], items)
    assert (found["verdict"] == "too few") is (found["p"] is None) is (items < FEWEST_PAIRS)
    assert [FEW.of_runs([mean_of_counts(np.full(items, each))] * 2, items)[1] for each in (0, 1)] == [1, 0]


def test_a_statistic_that_is_undefined_on_a_resample_has_no_interval(refuses: Callable[..., Any]) -> None:
    with refuses(EvaluationError):
        FEW.of(lambda counts_RN: np.where(counts_RN[:, 3] > 0, 1.0, np.nan), 4)
    with refuses(EvaluationError, "nan"):
        FEW.mean([1.0, float("nan")])


def test_the_calibration_error_of_known_bins() -> None:
    # ten examples with confidence 0.8, all right; five with 0.6, all wrong
    confidence_n, correct_n = np.array([0.8] * 10 + [0.6] * 5), np.array([1.0] * 10 + [0.0] * 5)
    statistic = calibration_error(confidence_n, correct_n, 10)
    assert statistic(np.ones((1, 15)))[0] == pytest.approx((10 * 0.2 + 5 * 0.6) / 15)
    lines = reliability(confidence_n, correct_n, 10, Bootstrap(50))
    assert [(line["examples"], line["accuracy"]["value"]) for line in lines] == [(5, 0.0), (10, 1.0)]
    assert bin_of(np.array([0.05, 0.1, 0.1000001, 1.0]), 10).tolist() == [0, 0, 1, 9]
