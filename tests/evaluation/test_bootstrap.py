"""Bootstrap: replicates equal scipy on the resampled items, intervals have coverage, non-finite values are refused."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, EvaluationError
from mm_ldlm.evaluation import bootstrap as bs
from mm_ldlm.evaluation.config import BootstrapConfig, LikelihoodConfig


def test_counts_sum_to_the_set_and_depend_on_seed_only():
    one = np.concatenate(list(bs.count_blocks(37, replicates=50, seed=3)))
    two = np.concatenate(list(bs.count_blocks(37, replicates=50, seed=3)))
    assert one.shape == (50, 37)
    assert (one.sum(axis=1) == 37).all()
    assert (one == two).all()
    assert (one != np.concatenate(list(bs.count_blocks(37, replicates=50, seed=4)))).any()


@pytest.mark.parametrize(("ours", "theirs"), [(bs.SpearmanOfCounts, spearmanr), (bs.PearsonOfCounts, pearsonr)])
def test_replicates_equal_scipy_on_the_drawn_items(ours, theirs):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 6, size=60).astype(float)  # many ties
    y = x + generator.normal(size=60)
    counts = next(bs.count_blocks(60, replicates=25, seed=1))
    found = ours(x, y)(counts)
    for row, value in zip(counts.astype(int), found, strict=True):
        drawn = np.repeat(np.arange(60), row)
        assert value == pytest.approx(theirs(x[drawn], y[drawn]).statistic, abs=1e-10)


def test_interval_of_a_mean_has_its_nominal_coverage():
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        found = bs.mean_interval(generator.normal(size=80), replicates=300, seed=trial)
        hits += found.low <= 0 <= found.high
    assert 0.89 <= hits / 200 <= 0.99


def test_ratio_is_of_sums():
    found = bs.ratio_interval(np.array([1.0, 3.0]), np.array([2.0, 10.0]), replicates=50)
    assert found.value == pytest.approx(4 / 12)
    assert found.low <= found.value <= found.high


def test_paired_difference_is_sharper_than_two_separate_intervals():
    generator = np.random.default_rng(2)
    a = generator.normal(size=300)
    b = a + 0.05 + 0.01 * generator.normal(size=300)
    found = bs.paired_difference([lambda c: c @ a / 300], [lambda c: c @ b / 300], 300)
    assert found.clear
    assert found.p_two_sided == pytest.approx(2 / 1001), "no p-value is 0: the sample itself is one of the resamples"
    assert bs.mean_interval(a).high > b.mean(), "unpaired, the same difference drowns"


def test_a_non_finite_value_is_refused():
    with pytest.raises(EvaluationError, match="not finite"):
        bs.mean_interval(np.array([1.0, np.nan]))
    constant = bs.SpearmanOfCounts(np.ones(5), np.arange(5.0))
    with pytest.raises(EvaluationError, match="not finite"):
        bs.interval(0.0, bs.replicates_of(constant, 5, replicates=10))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_fraction_of_none_or_all_is_not_certain(value):
    found = bs.proportion_interval(np.full(100, value))
    assert found.high - found.low == pytest.approx(0.037, abs=0.002), "Wilson's interval at n = 100"
    assert found.low <= value <= found.high


def test_runs_are_resampled_as_well_as_sentences():
    """Two systems of three runs each, by hand: every replicate draws runs and sentences independently."""
    generator = np.random.default_rng(3)
    values_SN = generator.normal(size=(3, 40)) + np.array([[0.0], [1.0], [2.0]])
    statistics = [bs.mean_of_counts(row) for row in values_SN]
    drawn_R = bs.replicates_of_runs(statistics, 40, replicates=4000, seed=1)
    runs = generator.integers(0, 3, size=(4000, 3))
    sentences = generator.integers(0, 40, size=(4000, 40))
    by_hand = np.array([values_SN[np.ix_(s, n)].mean() for s, n in zip(runs, sentences, strict=True)])
    assert drawn_R.mean() == pytest.approx(by_hand.mean(), abs=0.03)
    assert drawn_R.std() == pytest.approx(by_hand.std(), rel=0.05)
    assert drawn_R.std() > 3 * bs.replicates_of(lambda c: c @ values_SN.mean(0) / 40, 40, seed=1).std()


def test_one_run_has_the_replicates_of_its_statistic():
    values_N = np.random.default_rng(4).normal(size=30)
    one = bs.mean_of_counts(values_N)
    assert np.array_equal(
        bs.replicates_of_runs([one], 30, replicates=100, seed=2), bs.replicates_of(one, 30, replicates=100, seed=2)
    )


@pytest.mark.parametrize(("items", "verdict"), [(2, "too few"), (29, "too few"), (30, "significant")])
def test_a_comparison_of_few_items_makes_no_statement(items, verdict):
    """Every replicate of a constant difference is equal, so two items would be as clear as two thousand."""
    a = np.random.default_rng(5).normal(size=items)
    found = bs.paired_difference([bs.mean_of_counts(a)], [bs.mean_of_counts(a + 1)], items)
    assert found.verdict == verdict
    assert found.clear == (verdict == "significant")
    assert (found.p_two_sided is None) == (verdict == "too few")
    assert found.difference.value == pytest.approx(1)


def test_the_interval_of_the_fewest_pairs_covers_nearly_its_level():
    """The reason for `FEWEST_PAIRS`, in closed form: Student's t at the half-width of the percentile interval."""
    from scipy.stats import norm, t

    def coverage(n):
        return 2 * t.cdf(norm.ppf(0.975) * ((n - 1) / n) ** 0.5, df=n - 1) - 1

    assert [round(100 * coverage(n), 1) for n in (2, 10, bs.FEWEST_PAIRS)] == [60.2, 90.4, 93.6]


@pytest.mark.parametrize(
    ("kind", "key", "most"), [(BootstrapConfig, "replicates", 100_000), (LikelihoodConfig, "draws", 10_000)]
)
def test_counts_without_a_use_are_refused(kind, key, most):
    assert getattr(parse(kind, {key: most}, at="evaluation"), key) == most
    with pytest.raises(ConfigurationError, match=rf"evaluation\.{key}.*less than or equal to {most}"):
        parse(kind, {key: most + 1}, at="evaluation")
