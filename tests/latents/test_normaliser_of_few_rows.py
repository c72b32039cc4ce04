"""Normalisers that few rows fit: other texts have about unit variance, and the number of threads changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig, norms
from mm_ldlm.data.latents.normaliser_fit import ENOUGH, fit, one_scale_part
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import StoreWriter

DIM = 48
SPREAD = np.geomspace(3.0, 0.05, DIM)
"""Standard deviations of the axes, as unequal as those of sentence embeddings"""


def drawn(rows: int) -> np.ndarray:
    random = np.random.default_rng(0)
    axes = np.linalg.qr(random.normal(size=(DIM, DIM)))[0]
    return ((random.normal(size=(rows, DIM)) * SPREAD) @ axes + 5.0).astype(np.float32)


def fitted(path: Path, vectors: np.ndarray, kind: Any = "whitening") -> Normaliser:
    writer = StoreWriter(path, kind="latents", schema=latent_store.schema(vectors.shape[1], "float32"))
    writer.append(latent_store.table([str(i) for i in range(len(vectors))], vectors, dtype="float32"))
    writer.finish(meta={"dim": vectors.shape[1]})
    rows = np.arange(len(vectors))
    return fit(LatentStore.open(path), rows=rows, config=NormaliserConfig(kind=kind), unit_norm=False)


@pytest.mark.parametrize("rows", [12, DIM, DIM + 1, DIM + 4, 2 * DIM, 5 * DIM])
def test_other_texts_have_about_unit_norm_however_few_rows_fit(rows: int, tmp_path: Path) -> None:
    """By whitening alone, DIM + 1 rows give other texts a standard deviation of more than 10 along some axes."""
    vectors = drawn(rows + 2000)
    found = fitted(tmp_path / "a", vectors[:rows])
    z = found.standardise(vectors[rows:].astype(np.float64))
    assert 0.8 < np.median(norms(z)) < 1.25
    of_one_scale = SPREAD.max() / np.sqrt(np.square(SPREAD).mean())
    assert z.std(0).max() < 1.2 * of_one_scale
    np.testing.assert_allclose(found.invert(found.standardise(vectors)), vectors, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "part"), [(1, 1), (DIM, 1), (2 * DIM, 4 / 9), (5 * DIM, 1 / 9), (10 * DIM, 0), (10**6, 0)]
)
def test_the_part_of_one_scale_falls_from_one_to_zero(rows: int, part: float) -> None:
    assert one_scale_part(rows, DIM) == pytest.approx(part)


def test_from_ten_rows_for_each_dimension_on_it_is_whitening_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = drawn(ENOUGH * DIM)
    with caplog.at_level(logging.INFO, logger="mm_ldlm.data.latents.normaliser_fit"):
        whole = fitted(tmp_path / "a", vectors)
        assert not caplog.records
        fewer = fitted(tmp_path / "b", vectors[:120])
    covariance = np.cov(whole.standardise(vectors.astype(np.float64)).T)
    np.testing.assert_allclose(covariance, np.eye(DIM), atol=1e-4)
    assert [record.getMessage() for record in caplog.records] == [
        "120 training vectors are few to whiten 48 dimensions: the normaliser is a mixture of 33 % one scale for all "
        "dimensions and 67 % whitening; from 480 vectors on it is whitening alone"
    ]
    assert fewer.kind == "whitening"


def test_few_rows_have_unit_variance_on_average_along_uncorrelated_axes(tmp_path: Path) -> None:
    """The axes are those of the rows; the variances are λ / (c · (⅔ λ + ⅓ mean)) with 120 rows for 48 dimensions."""
    vectors = drawn(120)
    found = fitted(tmp_path / "a", vectors)
    covariance = np.cov(found.standardise(vectors.astype(np.float64)).T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-4)
    assert np.trace(covariance) == pytest.approx(DIM, rel=1e-4)
    own = np.linalg.eigvalsh(np.cov(vectors.astype(np.float64).T))
    expected = own / (2 / 3 * own + 1 / 3 * own.mean())
    np.testing.assert_allclose(np.sort(np.diag(covariance)), expected / expected.mean(), rtol=1e-3)


def test_no_more_rows_than_dimensions_are_scaled_by_one_number(tmp_path: Path) -> None:
    vectors = drawn(DIM)
    ours = fitted(tmp_path / "a", vectors)
    other = fitted(tmp_path / "b", vectors, "one_scale")
    x = drawn(200)[DIM:].astype(np.float64)
    np.testing.assert_allclose(
        np.linalg.norm(ours.standardise(x), axis=1), np.linalg.norm(other.standardise(x), axis=1), rtol=1e-6
    )


@pytest.mark.parametrize("rows", [100, ENOUGH * DIM])
@pytest.mark.parametrize("kind", ["standard", "whitening"])
def test_the_number_of_threads_changes_no_number(kind: str, rows: int, tmp_path: Path) -> None:
    """A run would otherwise begin anew where an earlier one had set OMP_NUM_THREADS."""
    vectors = np.concatenate([drawn(rows * 8)] * 8, axis=1) + np.random.default_rng(1).normal(size=(rows * 8, 8 * DIM))
    found = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            assert {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"} == {threads}
            found.append(fitted(tmp_path / str(threads), vectors.astype(np.float32), kind).fingerprint)
    assert found[0] == found[1]
