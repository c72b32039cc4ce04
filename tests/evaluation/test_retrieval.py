"""Quality of latents: closed forms, collapse, calibration of a known distribution."""

import numpy as np
import pytest

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation import baselines
from mm_ldlm.evaluation import retrieval as ret


@pytest.fixture
def real():
    return np.random.default_rng(0).normal(size=(200, 12))


def test_perfect_latents(real):
    found = ret.retrieval(real, real, distractors_Md=-real)
    assert found.candidates == 400
    assert (found.rank_N == 1).all()
    assert np.allclose(ret.cosine(real, real), 1)
    near = ret.neighbourhoods(real, real)
    assert np.allclose(near.rank_correlation_N, 1)
    assert near.overlap_at[10] == 1
    assert ret.frechet_distance(real, real) == pytest.approx(0, abs=1e-8)


def test_collapsed_latents_rank_in_the_middle_and_not_first(real):
    found = ret.retrieval(np.ones_like(real), np.ones_like(real))
    assert found.rank_N.min() > 10
    assert found.rank_N.mean() == pytest.approx(100.5)


def test_rank_counts_the_closer_candidates():
    real = np.eye(4)
    query = np.array([[0.9, 1.0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    assert ret.retrieval(query, real).rank_N.tolist() == [2, 1, 1, 1]


def test_frechet_distance_of_known_gaussians():
    generator = np.random.default_rng(1)
    a = generator.normal(size=(200_000, 2)) * [1.0, 2.0]
    b = generator.normal(size=(200_000, 2)) * [3.0, 2.0] + [1.0, 0.0]
    assert ret.frechet_distance(a, b) == pytest.approx(1 + (3 - 1) ** 2, rel=0.02)


def test_spectrum_and_effective_rank():
    x = np.random.default_rng(2).normal(size=(50_000, 3)) * [2.0, 1.0, 0.0]
    values = ret.spectrum(x)
    assert values == pytest.approx([4, 1, 0], abs=0.1)
    assert ret.effective_rank(np.array([1.0, 1.0, 0.0])) == pytest.approx(2)


@pytest.mark.parametrize(("width", "expected"), [(1.0, 1.0), (0.5, 0.5)])
def test_calibration_of_a_known_distribution(width, expected):
    generator = np.random.default_rng(3)
    centre = generator.normal(size=(3000, 8))
    truth = centre + generator.normal(size=centre.shape)
    samples = centre + width * generator.normal(size=(16, *centre.shape))
    found = ret.calibration(samples, truth)
    assert found.spread_to_error == pytest.approx(expected, abs=0.06)
    assert found.cosine_mean > found.cosine_single
    outer = found.rank_fraction[[0, -1]].sum()
    assert outer == pytest.approx(2 / 17, abs=0.02) if width == 1 else outer > 4 / 17


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_non_finite_latents_are_refused(real, poison):
    bad = real.copy()
    bad[3, 2] = poison
    for function in (ret.cosine, ret.squared_error, ret.retrieval, ret.frechet_distance):
        with pytest.raises(EvaluationError, match="1 of 200 rows are not finite"):
            function(bad, real)


def test_nearest_training_row(real):
    rows = baselines.nearest_training_rows(3 * real[[5, 9]] + 1e-3, real)
    assert rows.tolist() == [5, 9]


def test_bag_of_words_recovers_what_is_linear():
    generator = np.random.default_rng(4)
    tokens = [sorted(generator.choice(12, size=generator.integers(2, 6), replace=False).tolist()) for _ in range(400)]
    presence = np.array([[float(t in row) for t in range(12)] for row in tokens])
    latents = presence @ generator.normal(size=(12, 20))
    bag = baselines.BagOfWords.fit(latents[:300], tokens[:300], ridge=1e-6)
    assert bag.predict(latents[300:]) == tokens[300:]
