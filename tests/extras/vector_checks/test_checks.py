"""Faults of vectors are found in their rows and nowhere else, and the statistics are those of numpy."""

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.validation import test_validation as core
from tests.data.validation.test_validation import (
    DIM,
    REUSED,
    ROWS,
    SHARD,
    Fault,
    Stores,
    errors,
    named,
    quarantined,
    test_a_damaged_shard_fails_its_contract,
    test_intact_stores_pass_with_counts,
    test_pitfall_25_a_store_of_other_inputs_fails_its_contract,
    test_rows_of_other_records_are_found,
)

from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.latents.store import schema as latent_schema
from mm_ldlm.data.store import write_store
from mm_ldlm.data.validation.checks import DATA_CHECKS
from mm_ldlm.extras.vector_checks import checks
from mm_ldlm.extras.vector_checks.checks import VectorLimits, figures_of

__all__ = [
    "test_a_damaged_shard_fails_its_contract",
    "test_intact_stores_pass_with_counts",
    "test_pitfall_25_a_store_of_other_inputs_fails_its_contract",
    "test_rows_of_other_records_are_found",
]  # of the core, here with the checks of vectors
LIMITS = functools.partial(VectorLimits, max_quarantine_fraction=1.0, spot_rows=0)
CHECKED = dataclasses.replace(
    DATA_CHECKS, core={"vectors": "mm_ldlm.extras.vector_checks.checks:Vectors"}, group="none"
)
stores, intact = core.stores, core.pristine


@pytest.fixture
def pristine(intact: Stores) -> Stores:
    """The stores of the core's tests, with the checks of vectors."""
    return dataclasses.replace(intact, limits=LIMITS, registered=CHECKED)


@pytest.mark.parametrize("latents", [True, False])
def test_intact_vectors_are_compared_with_the_encoder_and_drawn(pristine: Stores, latents: bool) -> None:
    outcome = pristine.validate(pristine.inputs(latents=latents), spot_rows=20)
    assert outcome.failing == {}
    assert [finding["severity"] for finding in outcome.report["findings"]] == ["info"] * (1 + latents)
    assert {*outcome.figures} == ({*checks.Vectors.plots} if latents else set())


FAULTS: dict[str, Fault] = {
    "nan": ("latents", "finite", lambda c, i: c["latent"][i].__setitem__(3, np.nan)),
    "infinity": ("latents", "finite", lambda c, i: c["latent"][i].__setitem__(0, -np.inf)),
    "zero": ("latents", "zero", lambda c, i: c["latent"].__setitem__(i, [0.0] * DIM)),
    "norm": ("latents", "norm", lambda c, i: c["latent"].__setitem__(i, [1e3 + i, *c["latent"][i][1:]])),
    "short": ("latents", "norm", lambda c, i: c["latent"].__setitem__(i, [x / (1e3 + i) for x in c["latent"][i]])),
}


@REUSED
@given(st.dictionaries(st.integers(0, ROWS - 1), st.sampled_from(sorted(FAULTS)), max_size=8))
def test_exactly_the_damaged_vectors_are_quarantined_with_their_reasons(
    pristine: Stores, tmp_path: Path, planted: dict[int, str]
) -> None:
    damage = {row: FAULTS[fault] for row, fault in planted.items()}
    assert not errors(quarantined(pristine, tmp_path, damage, on_norm_outlier="quarantine"))


@settings(max_examples=25)
@given(
    st.integers(1, 60), st.integers(1, 9), st.sampled_from(["float32", "float16"]), st.integers(1, 60),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_statistics_are_those_of_numpy_however_the_store_is_divided(
    count: int, dim: int, dtype: Any, shard_rows: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    values = (draw.normal(size=(count, dim)) + 100 * draw.normal(size=dim)).astype(dtype)
    values[draw.random(count) < 0.2] = values[0]
    values[draw.random((count, dim)) < 0.02] = np.nan
    with tempfile.TemporaryDirectory() as folder:
        columns = {"id": [str(row) for row in range(count)], "latent": list(values)}
        write_store(folder, [columns], kind="latents", schema=latent_schema(dim, dtype), shard_rows=shard_rows)
        found, few = (checks.measure(LatentStore.open(folder), plot_rows=rows, seed=0) for rows in (1000, 5))
    assert len(few.neighbour_cosine) == min(5, len(found.neighbour_cosine))
    finite = np.isfinite(values).all(1)
    good = values[finite].astype(np.float64)
    assert np.array_equal(found.finite_n, finite)
    np.testing.assert_allclose(found.norm_n[finite], np.linalg.norm(good, axis=1), rtol=1e-12)
    same = found.digest_n[finite, None] == found.digest_n[None, finite]
    assert np.array_equal(same, (good[:, None] == good[None]).all(-1))
    if len(good) > 1:
        np.testing.assert_allclose(found.std_d, good.std(0), rtol=1e-6, atol=1e-6)
        unit = good / np.linalg.norm(good, axis=1, keepdims=True)
        cosine = unit @ unit.T - 3 * np.eye(len(good))
        np.testing.assert_allclose(found.neighbour_cosine, cosine.max(1), atol=1e-5)
        covariance = np.linalg.eigvalsh(np.cov(good, rowvar=False).reshape(dim, dim))[::-1]
        np.testing.assert_allclose(found.spectrum_d, covariance.clip(min=0), rtol=1e-6, atol=1e-9 * covariance.sum())
    parts = np.split(values, range(shard_rows, count, shard_rows))
    means = [
        part[np.isfinite(part).all(1)].astype(np.float64).mean(0) for part in parts if np.isfinite(part).all(1).any()
    ]
    if means:
        apart = np.linalg.norm(means - np.median(means, axis=0), axis=1) / (np.sqrt(good.var(0).sum()) or 1)
        np.testing.assert_allclose([each for _, each in found.drift], apart, rtol=1e-4, atol=1e-6)
        assert found.summary()["largest_drift"] == max(each for _, each in found.drift)
    json.dumps(found.summary(), allow_nan=False)
    counts = {name: sum(figure.data[0].y) for name, figure in figures_of(found).items() if name != "plot_spectrum"}
    assert counts == {"plot_norms": finite.sum(), "plot_neighbours": len(found.neighbour_cosine)}


@pytest.mark.parametrize("most", [6, 5.9])
@pytest.mark.parametrize("quarantine", [True, False])
def test_different_texts_with_one_vector(stores: Stores, most: float, quarantine: bool) -> None:
    with stores.changing("latents") as columns:
        columns["latent"][:2] = [[0.0] * DIM] * 2  # do not count
        for row, same in ((8, 2), (30, 2), (39, 3), (40, 3)):
            columns["latent"][row] = columns["latent"][same]
    policy = "quarantine" if quarantine else "warn"
    outcome = stores.validate(max_duplicate_fraction=most / (ROWS - 2), on_duplicate_vector=policy)
    (finding,) = named(outcome, "duplicate vectors")
    assert (finding["count"], finding["severity"]) == (6, "warning" if quarantine or most == 6 else "error")
    assert outcome.failing.get("duplicate vectors", np.empty(0)).tolist() == ([8, 30, 39, 40] if quarantine else [])


@pytest.mark.parametrize(("most", "severity"), [(2 / DIM, "warning"), (1.9 / DIM, "error")])
def test_dimensions_that_do_not_vary(stores: Stores, most: float, severity: str) -> None:
    with stores.changing("latents") as columns:
        columns["latent"] = [[0.5, *vector[1:7], 0.25, *vector[8:]] for vector in columns["latent"]]
    (finding,) = named(stores.validate(max_collapsed_fraction=most, collapsed_std=0.0), "collapsed dimensions")
    assert (finding["count"], finding["examples"], finding["severity"]) == (2, ["0", "7"], severity)


def test_a_shard_of_another_encoder_drifts_and_differs_from_the_encoder(stores: Stores) -> None:
    with stores.changing("latents") as columns:
        columns["latent"][SHARD : 2 * SHARD] = [[-2 * x for x in each] for each in columns["latent"][SHARD : 2 * SHARD]]
    outcome = stores.validate(spot_rows=ROWS)
    assert [finding["examples"] for finding in named(outcome, "drift")] == [["part-000001.arrow"]]
    assert outcome.failing["spot re-encoding"].tolist() == list(range(SHARD, 2 * SHARD))
    assert "spot re-encoding" in errors(stores.validate(spot_rows=2 * -(-ROWS // SHARD))), "of every shard"


def test_swapped_vectors_differ_from_the_encoder(stores: Stores) -> None:
    with stores.changing("latents") as columns:
        vector = columns["latent"]
        vector[4], vector[25], vector[9], vector[0] = vector[25], vector[4], vector[10], [np.nan] * DIM
    outcome = stores.validate(spot_rows=ROWS)
    assert outcome.failing["spot re-encoding"].tolist() == [4, 9, 25]


@given(st.integers(1, 500), st.integers(1, 600), st.integers(0, 9))
def test_a_sample_is_spread_over_all_rows(rows: int, size: int, seed: int) -> None:
    found = checks.spread(rows, size, seed=seed)
    assert len(found) == min(rows, size)
    assert 0 <= found[0] <= found[-1] < rows
    assert np.diff(found, prepend=0, append=rows).max() <= 2 * -(-rows // min(size, rows))


@pytest.mark.parametrize("dim", [DIM - 1, DIM + 1])
def test_vectors_of_another_dimension_fail_their_contract(stores: Stores, dim: int) -> None:
    with stores.changing("latents", latent_schema(dim, "float32"), dim=dim) as columns:
        columns["latent"] = [[*vector, 0.5][:dim] for vector in columns["latent"]]
    assert "dimension" in errors(stores.validate(spot_rows=20))
