"""The normaliser: its fit, its exact inverse, and equal results in numpy and torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.latents import normaliser_fit
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig, norms
from mm_ldlm.data.latents.normaliser_fit import fit
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore, StoreWriter

KINDS = ["standard", "robust", "whitening", "one_scale"]


def store(path: Path, vectors: np.ndarray, *, shard_rows: int = 97) -> LatentStore:
    dtype: Any = vectors.dtype.name
    writer = StoreWriter(
        path, kind="latents", schema=latent_store.schema(vectors.shape[1], dtype), shard_rows=shard_rows
    )
    writer.append(latent_store.table([str(i) for i in range(len(vectors))], vectors, dtype=dtype))
    writer.finish(meta={"dim": vectors.shape[1]})
    return LatentStore.open(path)


def drawn(rows: int = 1000, dim: int = 6, *, unit: bool = False) -> np.ndarray:
    random = np.random.default_rng(0)
    mixed = random.normal(size=(rows, dim)) @ random.normal(size=(dim, dim)) + random.normal(size=dim) * 3
    if unit:
        mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return mixed.astype(np.float32)


def fitted(
    path: Path, vectors: np.ndarray, kind: str, *, unit: bool = False, rows: np.ndarray | None = None
) -> Normaliser:
    chosen = np.arange(len(vectors)) if rows is None else rows
    return fit(store(path, vectors), rows=chosen, config=NormaliserConfig(kind=kind), unit_norm=unit)  # type: ignore[arg-type]


def test_standard_is_mean_and_std_of_the_training_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normaliser_fit, "_READ_ROWS", 64)
    vectors = drawn()
    rows = np.arange(0, 1000, 3)
    found = fitted(tmp_path, vectors, "standard", rows=rows)
    train = vectors[rows].astype(np.float64)
    np.testing.assert_allclose(found.mean_d, train.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.scale_d, train.std(0, ddof=1), rtol=1e-10)
    assert found.rows == len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_the_column_is_the_named_one(kind: str, tmp_path: Path) -> None:
    """Of token states, which have no column of that name, and of a store with two columns of vectors."""
    vectors, other = drawn(), drawn() * 3 + 1
    fields = {name: pa.list_(pa.float32(), 6) for name in ("latent", "state")}
    writer = StoreWriter(tmp_path / "both", kind="toy", schema=pa.schema(fields))
    writer.append({"latent": vectors.tolist(), "state": other.tolist()})
    writer.finish()
    both, options = ShardStore.open(tmp_path / "both"), {"rows": np.arange(1000), "unit_norm": False}
    config = NormaliserConfig(kind=kind)  # type: ignore[arg-type]
    for column, expected in (("latent", vectors), ("state", other)):
        found = fit(both, config=config, column=column, **options)  # type: ignore[arg-type]
        plain = fit(store(tmp_path / column, expected), config=config, **options)  # type: ignore[arg-type]
        assert found.fingerprint == plain.fingerprint


def test_one_pass_is_accurate_far_from_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The textbook sum of squares loses everything here."""
    monkeypatch.setattr(normaliser_fit, "_READ_ROWS", 10)
    vectors = (1e4 + np.random.default_rng(1).normal(size=(500, 3)) * 1e-2).astype(np.float32)
    found = fitted(tmp_path, vectors, "standard")
    np.testing.assert_allclose(found.scale_d, vectors.astype(np.float64).std(0, ddof=1), rtol=1e-8)


def test_robust_is_median_and_quartiles(tmp_path: Path) -> None:
    vectors = drawn()
    vectors[:20] *= 1000
    found = fitted(tmp_path, vectors, "robust")
    low, median, high = np.quantile(vectors.astype(np.float64), [0.25, 0.5, 0.75], axis=0)
    np.testing.assert_allclose(found.mean_d, median)
    np.testing.assert_allclose(found.scale_d * 1.3489795, high - low, rtol=1e-6)


def test_robust_looks_at_an_even_sample_of_many_rows(tmp_path: Path) -> None:
    vectors = drawn()
    config = NormaliserConfig(kind="robust", robust_rows=100)
    found = fit(store(tmp_path, vectors), rows=np.arange(1000), config=config, unit_norm=False)
    sample = vectors[np.linspace(0, 999, 100).astype(int)].astype(np.float64)
    np.testing.assert_allclose(found.mean_d, np.median(sample, axis=0))
    assert found.rows == 1000, "those that it stands for"


def test_whitening_makes_the_covariance_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normaliser_fit, "_READ_ROWS", 128)
    vectors = drawn()
    z = fitted(tmp_path, vectors, "whitening").standardise(vectors.astype(np.float64))
    np.testing.assert_allclose(np.cov(z, rowvar=False), np.eye(6), atol=1e-8)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [False, True])
def test_inversion_is_exact_and_restores_unit_length(tmp_path: Path, kind: str, unit: bool) -> None:
    vectors = drawn(unit=unit)
    found = fitted(tmp_path, vectors, kind, unit=unit)
    z = found.standardise(vectors)
    assert z.dtype == np.float32
    np.testing.assert_allclose(found.invert(z), vectors, atol=3e-6 if unit else 3e-5)
    exact = vectors.astype(np.float64)
    if not unit:
        np.testing.assert_allclose(found.invert(found.standardise(exact)), exact, rtol=1e-10, atol=1e-12)
    off = found.invert(found.standardise(exact) * 1.3)
    lengths = np.linalg.norm(off, axis=1)
    if unit:
        np.testing.assert_allclose(lengths, 1, atol=1e-12)
    else:
        assert np.abs(lengths - np.linalg.norm(exact, axis=1)).max() > 0.1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), rows=st.integers(2, 40), dim=st.integers(1, 8))
def test_any_fit_inverts(tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str, rows: int, dim: int) -> None:
    """Also with fewer rows than dimensions, and with dimensions that do not vary."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(rows, dim)).astype(np.float32)
    vectors[:, random.random(dim) < 0.2] = 0.5
    found = fitted(tmp_path_factory.mktemp("n"), vectors, kind)
    z = found.standardise(vectors.astype(np.float64))
    assert np.isfinite(z).all()
    np.testing.assert_allclose(found.invert(z), vectors, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_gives_what_numpy_gives(tmp_path: Path, kind: str) -> None:
    vectors = drawn(unit=True)
    found = fitted(tmp_path, vectors, kind, unit=True)
    z = found.standardise(torch.from_numpy(vectors))
    np.testing.assert_allclose(z.numpy(), found.standardise(vectors), rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found.invert(z).numpy(), vectors, atol=2e-5)
    assert found.standardise(torch.from_numpy(vectors).reshape(10, 100, 6)).shape == (10, 100, 6)
    for unit in (True, False):  # latents of a sampler do not lie on the sphere
        own = dataclasses.replace(found, unit_norm=unit)
        off = 1.3 * found.standardise(vectors.astype(np.float64)) + 0.2
        expected, given = own.invert(off), torch.from_numpy(off)
        np.testing.assert_allclose(own.invert(given).numpy(), expected, rtol=1e-9, atol=1e-12)
        assert own.invert(given.float()).dtype == torch.float32
        assert own.invert(off.astype(np.float16)).dtype == np.float16
        assert (np.abs(np.linalg.norm(expected, axis=1) - 1).max() < 1e-9) == unit


def test_dead_dimensions_become_zero_not_noise(tmp_path: Path) -> None:
    """MiniLM has three: their float32 rounding must not be blown up to unit variance."""
    vectors = drawn()
    vectors[:, 2] = 1e-9 * np.random.default_rng(2).normal(size=1000)
    vectors[:, 4] = 0.25
    found = fitted(tmp_path, vectors, "standard")
    assert found.constant == (2, 4)
    z = found.standardise(vectors)
    assert np.abs(z[:, [2, 4]]).max() < 1e-6
    np.testing.assert_allclose(found.invert(z)[:, 4], 0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_it_survives_the_disk_bit_for_bit(tmp_path: Path, kind: str) -> None:
    found = fitted(tmp_path / "s", drawn(), kind, unit=True)
    found.save(tmp_path / "n")
    again = Normaliser.load(tmp_path / "n")
    assert again.fingerprint == found.fingerprint
    assert (again.kind, again.unit_norm, again.rows, again.constant) == (kind, True, 1000, ())
    np.testing.assert_array_equal(again.standardise(drawn()), found.standardise(drawn()))


def test_fingerprints_distinguish_normalisers(tmp_path: Path) -> None:
    vectors = drawn()
    found = [fitted(tmp_path / kind, vectors, kind) for kind in KINDS]
    found.append(fitted(tmp_path / "unit", vectors, "standard", unit=True))
    found.append(fitted(tmp_path / "rows", vectors, "standard", rows=np.arange(999)))
    assert len({item.fingerprint for item in found}) == len(found) == 6
    plain = found[KINDS.index("whitening")]
    numbers: dict[str, Any] = {
        "kind": "other", "mean_d": plain.mean_d + 1, "scale_d": plain.scale_d * 2, "unit_norm": True, "rows": 7,
        "constant": (2,),
    }  # fmt: skip
    assert plain.matrix_dd is not None
    matrices = {"matrix_dd": plain.matrix_dd * 2, "inverse_dd": np.eye(6)}
    assert {field.name for field in dataclasses.fields(Normaliser)} == {*numbers, *matrices, "typical"}
    marks = {dataclasses.replace(plain, **{name: value}).fingerprint for name, value in (numbers | matrices).items()}
    assert len(marks | {plain.fingerprint}) == 9


def test_one_scale_is_the_root_mean_square_of_the_standard_deviations(tmp_path: Path) -> None:
    """Dimensions that do not vary keep the scale of the others, and vectors that do not vary at all keep their own."""
    vectors = drawn()
    vectors[:, 3] = 0.25
    found = fitted(tmp_path / "a", vectors, "one_scale")
    std_d = vectors.astype(np.float64).std(0, ddof=1)
    np.testing.assert_allclose(found.scale_d, np.full(6, np.sqrt((std_d**2).mean())), rtol=1e-9)
    np.testing.assert_allclose(found.mean_d, vectors.astype(np.float64).mean(0), rtol=1e-9)
    assert fitted(tmp_path / "b", np.ones((4, 3), np.float32), "one_scale").scale_d.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("ratio", "flat"), [(3e-5, False), (3e-4, False), (3e-6, True)])
def test_an_axis_counts_as_flat_below_a_hundred_thousandth_of_the_largest(
    ratio: float, flat: bool, tmp_path: Path
) -> None:
    """The squares of the standard deviations are compared: 1e-10 of the variance is 1e-5 of the deviation."""
    vectors = np.random.default_rng(0).normal(size=(400, 2)) * np.array([1.0, ratio])
    found = fitted(tmp_path, vectors.astype(np.float32), "whitening")
    assert found.matrix_dd is not None
    smaller = np.linalg.svd(found.matrix_dd)[1].max()
    assert smaller == pytest.approx(1.0 if flat else 1 / ratio, rel=0.2)


@pytest.mark.parametrize(("ratio", "constant"), [(1e-2, ()), (3e-5, ()), (3e-7, (1,))])
def test_a_dimension_is_constant_below_a_millionth_of_the_largest(
    ratio: float, constant: tuple[int, ...], tmp_path: Path
) -> None:
    vectors = np.random.default_rng(0).normal(size=(400, 2)) * np.array([1.0, ratio])
    found = fitted(tmp_path, vectors.astype(np.float32), "standard")
    assert found.constant == constant
    assert found.scale_d[1] == pytest.approx(1.0 if constant else ratio, rel=0.2)


def test_damage_is_detected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"normaliser\.json: the file does not exist"):
        Normaliser.load(tmp_path)
    fitted(tmp_path / "s", drawn(), "standard").save(tmp_path)
    path = tmp_path / "normaliser.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="changed after they were saved"):
        Normaliser.load(tmp_path)


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    vectors = drawn(rows=20)
    vectors[7, 1] = np.inf
    with pytest.raises(StoreError, match="row 7 contains a number that is not finite"):
        fitted(tmp_path / "a", vectors, "standard")
    fitted(tmp_path / "b", vectors, "standard", rows=np.arange(7))
    with pytest.raises(StoreError, match="expected rows"):
        fitted(tmp_path / "c", vectors, "standard", rows=np.empty(0, int))
    with pytest.raises(StoreError, match="expected vectors with 6 dimensions"):
        fitted(tmp_path / "d", drawn(), "standard").standardise(np.zeros((2, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_range_of_norms_is_that_of_the_given_rows_and_is_saved(kind: str, tmp_path: Path) -> None:
    vectors = drawn(3000)
    latents = store(tmp_path / "latents", vectors)
    plain = fit(latents, rows=np.arange(1000), config=NormaliserConfig(kind=kind), unit_norm=False)  # type: ignore[arg-type]
    found = normaliser_fit.calibrated(plain, latents, rows=np.arange(1000, 2000))
    by_hand = np.sqrt(np.square(plain.standardise(vectors[1000:2000]).astype(np.float64)).mean(1))
    low, high = np.quantile(by_hand, [0.001, 0.999])
    assert found.typical == pytest.approx((low / 1.15, high * 1.15), rel=1e-6)
    fresh = norms(plain.standardise(vectors[2000:]))
    assert ((fresh >= found.typical[0]) & (fresh <= found.typical[1])).mean() >= 0.99  # type: ignore[index]
    found.save(tmp_path / "saved")
    assert Normaliser.load(tmp_path / "saved").typical == found.typical
    assert found.fingerprint == plain.fingerprint, "the range is no part of the transformation"
    assert normaliser_fit.calibrated(plain, latents, rows=np.arange(0)).typical is None


@pytest.mark.parametrize("damage", ['"wide"', "[1.0]", "[2.0, 1.0]", "[0.1, Infinity]", "7", '["a", "b"]'])
def test_a_damaged_range_is_refused_and_an_older_normaliser_has_none(damage: str, tmp_path: Path) -> None:
    fitted(tmp_path / "latents", drawn(), "standard").save(tmp_path / "saved")
    path = tmp_path / "saved" / "normaliser.json"
    text = path.read_text()
    assert '"typical": null' in text
    path.write_text(text.replace('"typical": null', f'"typical": {damage}'))
    with pytest.raises(StoreError, match="not a readable normaliser"):
        Normaliser.load(tmp_path / "saved")
    path.write_text(text.replace('"typical": null,', ""))
    assert Normaliser.load(tmp_path / "saved").typical is None
