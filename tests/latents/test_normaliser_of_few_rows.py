"""Normalisers that few rows fit: other texts have about unit variance, and the number of threads changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from mm_ldlm.latents import store as latent_store
from mm_ldlm.latents.normaliser import Normaliser, NormaliserConfig
from mm_ldlm.latents.normaliser_fit import SHRUNK_BELOW, fit
from mm_ldlm.latents.store import LatentStore
from mm_ldlm.store import StoreWriter

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
def test_other_texts_keep_about_unit_variance_however_few_rows_fit(rows: int, tmp_path: Path) -> None:
    """Without shrinking, DIM + 1 rows give other texts a standard deviation of more than 10 along some axes."""
    vectors = drawn(rows + 2000)
    found = fitted(tmp_path / "a", vectors[:rows])
    std_d = found.standardise(vectors[rows:].astype(np.float64)).std(0)
    assert std_d.max() < 2
    np.testing.assert_allclose(found.invert(found.standardise(vectors)), vectors, atol=1e-3)


def test_the_covariance_is_used_as_it_is_from_ten_rows_for_each_dimension_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = drawn(SHRUNK_BELOW * DIM)
    with caplog.at_level(logging.INFO, logger="mm_ldlm.latents.normaliser_fit"):
        whole = fitted(tmp_path / "a", vectors)
        assert not caplog.records
        fewer = fitted(tmp_path / "b", vectors[1:])
    exact = np.cov(whole.standardise(vectors.astype(np.float64)).T)
    np.testing.assert_allclose(exact, np.eye(DIM), atol=1e-4)
    shrunk = np.cov(fewer.standardise(vectors[1:].astype(np.float64)).T)
    assert 0.5 * DIM < np.trace(shrunk) < 0.99 * DIM
    (record,) = caplog.records
    assert record.getMessage().startswith("479 training vectors are few for a whitening of 48 dimensions, so their ")
    assert record.getMessage().endswith("from 480 vectors on it is used as it is")


def test_the_shrunk_covariance_is_a_mixture_of_that_of_the_rows_and_of_equal_variances(tmp_path: Path) -> None:
    vectors = drawn(100)
    found = fitted(tmp_path / "a", vectors)
    of_rows = np.cov(vectors.astype(np.float64).T)
    equal = np.eye(DIM) * np.trace(of_rows) / DIM
    inverse = cast(Any, found.inverse_dd)
    used = inverse.T @ inverse
    part = 1 - (used[0, 1] / of_rows[0, 1])
    assert 0.01 < part < 0.9
    np.testing.assert_allclose(used, part * equal + (1 - part) * of_rows, atol=1e-4)


@pytest.mark.parametrize("rows", [100, SHRUNK_BELOW * DIM])
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
