"""Metrics of sampled latents against their definitions."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.stats import spearmanr
from sklearn.metrics.pairwise import cosine_similarity
from tests.evaluation.suites.conftest import run_of

from mm_ldlm.data.held_out import split_rows
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.suites.base import of_samples
from mm_ldlm.extras.latent_scores import figures
from mm_ldlm.extras.latent_scores import suite as module
from mm_ldlm.extras.latent_scores.config import LatentsConfig, LatentsKeys
from mm_ldlm.extras.latent_scores.suite import (
    _compared,
    calibration,
    cosine,
    frechet_distance,
    neighbourhoods,
    ranks,
    spectrum,
)

sizes = st.tuples(st.integers(4, 20), st.integers(2, 6), st.integers(0, 99))


def drawn(size: tuple[int, int, int], sides: int = 2) -> list[np.ndarray]:
    count, dim, seed = size
    return list(np.random.default_rng(seed).normal(size=(sides, count, dim)))


@given(sizes)
def test_cosines_and_ranks_are_those_of_all_pairs(size: tuple[int, int, int]) -> None:
    generated, real, others = drawn(size, 3)
    alike = cosine_similarity(generated, np.concatenate([real, others]))
    own = np.diag(alike)
    assert cosine(generated, real) == pytest.approx(own)
    expected = 1 + (alike > own[:, None] + 1e-9).sum(axis=1)
    for block in (2, 512):
        assert (ranks(generated, real, others, block=block) == expected).all()


def test_a_collapsed_model_ranks_in_the_middle() -> None:
    _, real = drawn((9, 4, 0))
    same = np.ones((9, 4))
    assert (ranks(same, same, np.ones((4, 4))) == 7).all()  # 13 equal candidates
    assert (ranks(real, real, real[:0]) == 1).all()
    given: Any = SimpleNamespace(bootstrap=Bootstrap(20), config=LatentsKeys())
    assert _compared(same, real, real, given)["neighbourhoods"] is None  # no rank correlation is defined
    real = real + np.arange(4)
    mean = _compared(np.tile(real.mean(axis=0), (9, 1)), real, real, given)
    assert mean["squared_error_fraction"]["value"] == pytest.approx(1), "of the mean of the data, wherever it is"


def test_latents_are_compared_with_as_many_real_ones_and_drawn_with_the_seed_of_the_evaluation(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, counts, asked, splits = run_of(finished).of("latents"), list[int](), list[Any](), list[str]()
    sentences, _ = of_samples(given.samples["t2l"], dataset=given.dataset)
    own, embed = LatentsConfig(candidates=len(sentences) + 9, calibration_sentences=3), given.model.embed
    monkeypatch.setattr(module, "frechet_distance", lambda one, other: counts.append(len(one)) or 1.0)
    monkeypatch.setattr(given.model, "embed", lambda texts, **how: asked.append((texts, how)) or embed(texts, **how))
    monkeypatch.setattr(module, "split_rows", lambda dataset, split: splits.append(split) or split_rows(dataset, split))
    found, _ = module.Latents().evaluate(replace(given, config=replace(given.config, latents=own), seed=7))
    assert counts[-1] == counts[-2] == len(given.samples["unconditional"])
    assert (splits, found["candidates"]) == (["train"], own.candidates)
    drawn = {"sampler": "ddim", "steps": 8, "draws": own.calibration_samples, "seed": 7}
    assert asked == [
        (list(sentences.texts), {"sampler": "one_step", "seed": 7}),
        (list(sentences.some(3, seed=7).texts), drawn),
    ]


@settings(max_examples=10)
@given(sizes)
def test_neighbourhoods_are_rank_correlations_of_the_cosines(size: tuple[int, int, int]) -> None:
    generated, real = drawn(size)
    found = neighbourhoods(generated, real)
    for i in range(len(real)):
        sides = [np.delete(cosine_similarity(x)[i], i) for x in (generated, real)]
        assert found[i] == pytest.approx(spearmanr(*sides).statistic)
    assert neighbourhoods(real, real * 3) == pytest.approx(np.ones(len(real)))
    assert len(neighbourhoods(generated, real, limit=3)) == 3


@settings(max_examples=30)
@given(sizes)
def test_the_frechet_distance_is_that_of_two_gaussians(size: tuple[int, int, int]) -> None:
    a, b = drawn(size)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(cov_a + cov_b - 2 * np.real(sqrtm(cov_a @ cov_b)))
    assert frechet_distance(a, b) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 6))
def test_the_effective_rank_counts_equal_directions(rank: int) -> None:
    latents = np.linalg.qr(np.random.default_rng(rank).normal(size=(40, 6)))[0]
    latents -= latents.mean(axis=0)
    u, _, v = np.linalg.svd(latents, full_matrices=False)
    values, found = spectrum(u[:, :rank] @ v[:rank])
    assert found == pytest.approx(rank)
    assert (values[:-1] >= values[1:] - 1e-12).all()
    assert values.sum() == pytest.approx(rank / 39)


def test_a_calibrated_sampler_is_recognised() -> None:
    draw = np.random.default_rng(0)
    mean = draw.normal(size=(500, 8))
    target, samples = mean + draw.normal(size=mean.shape), mean + draw.normal(size=(6, *mean.shape))
    found = calibration(samples, target)
    assert found["spread_to_error"] == pytest.approx(1, abs=0.03)
    assert found["rank_fraction"] == pytest.approx(np.full(7, 1 / 7), abs=0.02)
    sure = calibration(mean + (samples - mean) / 4, target)
    assert sure["spread_to_error"] < 0.5
    assert sure["rank_fraction"][0] + sure["rank_fraction"][-1] > 0.5  # a U


def test_the_histogram_of_cosines_is_a_fraction_of_the_sentences() -> None:
    cosines = np.random.default_rng(0).uniform(0.2, 1, 300)
    figure = figures.cosine_histogram({"model": {"cosines": cosines}, "one_step": {"cosines": cosines / 2}})
    for trace in figure.data:
        assert sum(trace.y) == pytest.approx(1)
    middle = np.average(figure.data[0].x, weights=figure.data[0].y)
    assert middle == pytest.approx(cosines.mean(), abs=0.01)


def test_spectra_end_where_the_rows_end() -> None:
    entry = {"rows": 4, "effective_rank": 2.4, "eigenvalues": [4.0, 2, 1e-12, 1, 1]}
    (trace,) = figures.spectrum({"real": entry}).data
    assert list(trace.x) == [1, 2, 3]
    assert np.isnan(trace.y[2])
    assert "2" in trace.name
    bars = figures.calibration({"samples": 2, "rank_fraction": [0.5, 0.25, 0.25]})
    assert list(bars.data[0].y) == [0.5, 0.25, 0.25]
    assert bars.layout.shapes[0].y0 == pytest.approx(1 / 3)
    assert figures.calibration(None) is None
