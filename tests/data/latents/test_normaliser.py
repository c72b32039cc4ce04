"""Normalisers: an affine bijection of the training rows, of about unit variance for other rows, the same on every machine."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from tests.damage import refused_or_harmless
from threadpoolctl import threadpool_limits

from mm_ldlm.core import StoreError
from mm_ldlm.data.latents import normaliser
from mm_ldlm.data.latents.normaliser import ENOUGH, Normaliser, NormaliserConfig, calibrated, fit, norms
from mm_ldlm.data.latents.recognition import Signature
from mm_ldlm.data.store import ShardStore, fixed_lists, write_store

KINDS = ["standard", "whitening", "one_scale"]
FINITE = st.floats(-100, 100, width=32)
each_kind = pytest.mark.parametrize("kind", KINDS)


def column(folder: Path, vectors: Any) -> Any:
    """A column of vectors (n, d) in a store."""
    matrix = np.asarray(vectors, np.float32)
    schema = pa.schema([("value", pa.list_(pa.float32(), matrix.shape[1]))])
    write_store(folder, [{"value": fixed_lists(matrix)}], kind="toy", schema=schema, shard_rows=97)
    return ShardStore.open(folder).fixed("value")


def fitted(
    folder: Path, vectors: Any, kind: Any, *, rows: Any = None, unit: bool = False, **options: Any
) -> Normaliser:
    chosen = np.arange(len(vectors)) if rows is None else rows
    return fit(column(folder, vectors), rows=chosen, config=NormaliserConfig(kind=kind, **options), unit_norm=unit)


def drawn(rows: int = 1000, dim: int = 6, *, spread: Any = 1.0, seed: int = 0) -> Any:
    """Correlated vectors (rows, dim) far from 0, with axes of these standard deviations."""
    random, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    axes = np.linalg.qr(fixed.normal(size=(dim, dim)))[0]
    return (random.normal(size=(rows, dim)) * spread) @ axes + fixed.normal(size=dim) * 3


@each_kind
@settings(max_examples=25)
@given(
    vectors=st.integers(1, 6).flatmap(
        lambda d: st.lists(st.lists(FINITE, min_size=d, max_size=d), min_size=2, max_size=20)
    )
)
def test_every_fit_is_an_affine_bijection(kind: str, vectors: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the rows: fewer than dimensions, equal ones, dimensions that do not vary."""
    found = fitted(tmp_path_factory.mktemp("n"), vectors, kind)
    x = np.array(vectors, np.float32).astype(np.float64)
    z = found.standardise(x)
    assert np.isfinite(z).all()
    np.testing.assert_allclose(
        found.standardise((x[:1] + x[1:]) / 2), (z[:1] + z[1:]) / 2, atol=1e-6 * (1 + np.abs(z).max())
    )
    varies = np.setdiff1d(np.arange(found.dim), found.constant)
    np.testing.assert_allclose(found.invert(z)[:, varies], x[:, varies], atol=1e-6 * (1 + np.abs(x).max()))
    np.testing.assert_allclose(found.standardise(found.invert(z)), z, atol=1e-6 * (1 + np.abs(z).max()))


@each_kind
@pytest.mark.parametrize("unit", [True, False])
def test_torch_gives_the_numbers_of_numpy_and_inverted_vectors_have_the_encoders_norm(
    kind: str, unit: bool, tmp_path: Path
) -> None:
    vectors = drawn()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) if unit else 1
    found = fitted(tmp_path, vectors, kind, unit=unit)
    off = 1.3 * found.standardise(vectors) + 0.2  # latents of a sampler do not lie on the sphere
    for x, back in ((vectors, found.standardise), (off, found.invert)):
        tensor = torch.from_numpy(x)
        np.testing.assert_allclose(back(tensor).numpy(), back(x), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(back(tensor.float()).numpy(), back(x), rtol=2e-3, atol=2e-3)
        assert (back(tensor.float()).dtype, back(x.astype(np.float16)).dtype) == (torch.float32, np.float16)
        assert back(tensor.reshape(10, -1, 6)).shape == (10, 100, 6)
    assert np.allclose(np.linalg.norm(found.invert(off), axis=1), 1) == unit


def test_the_moments_are_those_of_the_training_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normaliser, "_READ_ROWS", 64)
    rows = np.arange(0, 1000, 3)
    x = np.float32(1e4 + drawn() * 1e-2)  # in one pass, a sum of squares would lose everything
    x[1] = np.inf  # not a training row
    train = x[rows].astype(np.float64)
    std = train.std(0, ddof=1)
    found = {kind: fitted(tmp_path / kind, x, kind, rows=rows) for kind in KINDS}
    for kind in KINDS:
        np.testing.assert_allclose(found[kind].mean_d, train.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["standard"].scale_d, std, rtol=1e-8)
    np.testing.assert_allclose(found["one_scale"].scale_d, np.sqrt((std**2).mean()), rtol=1e-8)
    np.testing.assert_allclose(np.cov(found["whitening"].standardise(train).T), np.eye(6), atol=1e-6)
    assert {each.rows for each in found.values()} == {len(rows)}


def test_a_dimension_that_does_not_vary_is_zero_and_not_noise(tmp_path: Path) -> None:
    x = drawn()
    x[:, 2], x[:, 4] = 1e-9 * np.random.default_rng(0).normal(size=1000), 0.25
    for kind in KINDS:
        found = fitted(tmp_path / kind, x, kind)
        assert found.constant == ((2, 4) if kind == "standard" else ())
        z = found.standardise(np.float32(x).astype(np.float64))
        assert np.isfinite(z).all()
        np.testing.assert_allclose(found.invert(z)[:, 4], 0.25, atol=1e-6)
        assert kind == "whitening" or np.abs(found.standardise(x)[:, [2, 4]]).max() < 1e-6
    assert fitted(tmp_path / "same", np.ones((4, 3)), "one_scale").scale_d.tolist() == [1.0, 1.0, 1.0]


# -- few rows ----------------------------------------------------------------------------------------------------------

DIM = 48
SPREAD = np.geomspace(3.0, 0.05, DIM)
"""Standard deviations of axes as unequal as those of sentence embeddings"""


@pytest.mark.parametrize("rows", [12, DIM, DIM + 1, 2 * DIM, 5 * DIM, ENOUGH * DIM])
def test_whitening_of_few_rows_gives_other_texts_about_unit_norm(rows: int, tmp_path: Path) -> None:
    """By their covariance alone, DIM + 1 rows give other texts a standard deviation of more than 10 on some axes."""
    train, other = drawn(rows, DIM, spread=SPREAD), drawn(2000, DIM, spread=SPREAD, seed=1)
    found = fitted(tmp_path, train, "whitening")
    own, z = found.standardise(np.float32(train).astype(np.float64)), found.standardise(other)
    assert 0.8 < np.median(norms(z)) < 1.25
    assert z.std(0).max() < 1.2 * SPREAD.max() / np.sqrt(np.square(SPREAD).mean())
    if rows > DIM:
        covariance = np.cov(own.T)
        assert np.trace(covariance) == pytest.approx(DIM, rel=1e-4), "unit variance on average"
        np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-4)
    else:  # a rotation of one scale for all dimensions
        single = fitted(tmp_path / "one", train, "one_scale").standardise(other)
        np.testing.assert_allclose(norms(z), norms(single), rtol=1e-6)
    if rows == ENOUGH * DIM:
        np.testing.assert_allclose(np.cov(own.T), np.eye(DIM), atol=1e-4)


@each_kind
def test_the_number_of_threads_changes_no_number(kind: str, tmp_path: Path) -> None:
    x = np.tile(drawn(3000, DIM, spread=SPREAD), (1, 4)) + np.random.default_rng(1).normal(size=(3000, 4 * DIM))
    marks = set()
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            marks.add(fitted(tmp_path / str(threads), x, kind).fingerprint)
    assert len(marks) == 1


@each_kind
def test_the_range_of_norms_is_that_of_other_rows_and_no_part_of_the_transformation(kind: str, tmp_path: Path) -> None:
    values = column(tmp_path, drawn(3000))
    plain = fit(values, rows=np.arange(1000), config=NormaliserConfig(kind=kind), unit_norm=False)  # type: ignore[arg-type]
    found = calibrated(plain, values, rows=np.arange(1000, 2000))
    assert found.typical is not None
    own, fresh = (
        norms(plain.standardise(values.take(np.arange(first, first + 1000)).astype(np.float64)))
        for first in (1000, 2000)
    )
    assert found.typical[0] < np.quantile(own, 0.001) < np.quantile(own, 0.999) < found.typical[1]
    assert ((fresh > found.typical[0]) & (fresh < found.typical[1])).mean() > 0.99
    assert found.typical[1] < 1.15**2 * fresh.max()
    assert found.fingerprint == plain.fingerprint
    assert [calibrated(plain, values, rows=np.arange(n), fitted=np.arange(99)) is plain for n in (99, 100)] == [
        True,
        False,
    ]
    few, enough = (calibrated(plain, values, rows=np.arange(1000, 2000), fitted=np.arange(n)) for n in (11, 1000))
    assert (found.signature, few.signature) == (None, None)
    wide = values.take(np.arange(2000)).astype(np.float64)
    expected = Signature.of(wide[:1000], wide[1000:])
    assert save(enough.signature.arrays()) == save(expected.arrays())  # type: ignore[union-attr]


def test_what_cannot_be_fitted_or_transformed_is_refused(
    tmp_path: Path, refuses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normaliser, "_READ_ROWS", 5)
    x = drawn(20)
    x[7, 1] = np.nan
    with refuses(StoreError, "row 7"):
        fitted(tmp_path / "a", x, "standard")
    found = fitted(tmp_path / "c", x, "standard", rows=np.arange(7))
    with refuses(StoreError, "(2, 5)"):
        found.standardise(np.zeros((2, 5)))
    with pytest.raises(StoreError):
        found.invert(torch.zeros(7))


# -- on disk -----------------------------------------------------------------------------------------------------------


@each_kind
def test_a_saved_normaliser_is_the_same_and_damage_is_refused(kind: str, tmp_path: Path) -> None:
    signature = Signature.of(drawn(), drawn(seed=1))
    found = dataclasses.replace(
        fitted(tmp_path / "s", drawn(), kind, unit=True), typical=(0.5, 1.5), signature=signature
    )
    folder = tmp_path / "normaliser"
    found.save(folder)
    again = Normaliser.load(folder)
    assert again.fingerprint == found.fingerprint
    assert (again.typical, again.unit_norm) == ((0.5, 1.5), True)
    assert save(again.signature.arrays()) == save(signature.arrays())  # type: ignore[union-attr]
    np.testing.assert_array_equal(again.invert(drawn()), found.invert(drawn()))

    def read() -> tuple[str, bool]:
        own = Normaliser.load(folder)
        return own.fingerprint, own.typical is None or len(own.typical) == 2

    refused_or_harmless(folder / "normaliser.json", read, folder)
    arrays = folder / "normaliser.safetensors"
    raw = arrays.read_bytes()
    for damage in (raw[:-3] + b"\x01" + raw[-2:], raw[:-9], b""):
        arrays.write_bytes(damage)
        with pytest.raises(StoreError, match=str(folder)):
            Normaliser.load(folder)


def test_a_given_normaliser_is_taken_as_it_is_if_the_vectors_have_its_dimension(tmp_path: Path, refuses: Any) -> None:
    first = fitted(tmp_path / "first", drawn(), "whitening")
    first.save(path := tmp_path / "saved")
    assert fitted(tmp_path / "second", drawn(seed=1), "one_scale", path=str(path)).fingerprint == first.fingerprint
    with refuses(StoreError, "normaliser.path", first.dim, first.dim - 1):
        fitted(tmp_path / "third", drawn(dim=first.dim - 1), "standard", path=str(path))


def test_every_number_is_in_the_fingerprint(tmp_path: Path) -> None:
    found = fitted(tmp_path, drawn(), "whitening")
    assert found.matrix_dd is not None
    changes: dict[str, Any] = {
        "kind": "standard", "mean_d": found.mean_d + 1, "scale_d": found.scale_d * 2, "unit_norm": True, "rows": 7,
        "constant": (2,), "matrix_dd": found.matrix_dd * 2, "inverse_dd": np.eye(6),
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(Normaliser)} == {*changes, "typical", "signature"}
    marks = {dataclasses.replace(found, **{name: value}).fingerprint for name, value in changes.items()}
    assert len(marks - {found.fingerprint}) == len(changes)
