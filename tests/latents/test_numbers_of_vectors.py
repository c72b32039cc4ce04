"""Spots, statistics, normalisers and figures in full: messages, logs, rare vectors, and what is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from mm_ldlm.data.latents.findings import Finding, Findings
from mm_ldlm.data.latents.statistics import Statistics

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.corpus.record import DECODED
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents import figures, normaliser_fit, spot_check, statistics
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig
from mm_ldlm.data.latents.normaliser_fit import fit
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import StoreWriter


def store(folder: Path, vectors: Any, *, dtype: Any = "float32", shard_rows: int = 100) -> LatentStore:
    schema = latent_store.schema(vectors.shape[1], dtype)
    writer = StoreWriter(folder, kind="latents", schema=schema, shard_rows=shard_rows)
    writer.append(latent_store.table([f"id{row}" for row in range(len(vectors))], vectors, dtype=dtype))
    writer.finish(meta={"dim": vectors.shape[1]})
    return LatentStore.open(folder)


# -- spots -------------------------------------------------------------------------------------------------------------


def spots(
    latents: LatentStore, again: Any, monkeypatch: pytest.MonkeyPatch, *, meta: Any = None, **limits: Any
) -> list[Finding]:
    """Findings where the encoder now returns `again` for all rows."""
    meta = [None] * len(again) if meta is None else meta
    records: Any = SimpleNamespace(
        take=lambda rows: {"meta": pa.array([meta[row] for row in rows], pa.string())},
        strings=lambda name: SimpleNamespace(take=list),
    )
    encoder = SimpleNamespace(encode=lambda rows: np.asarray(again)[rows])
    monkeypatch.setattr(spot_check, "load_encoder", lambda *_, **__: encoder)
    found, located = Findings(), SimpleNamespace(dtype="float32")
    options: Any = {"encoder": None, "located": located, "seed": 0}
    spot_check.check_spots(found, records, latents, config=ValidationConfig(spot_rows=len(again), **limits), **options)
    return found.findings


REMEDY = (
    "The store does not contain this encoder's vectors of these texts. Remove it and run the embedding pipeline again. "
    "If the encoder computes in half precision, set validation.spot_tolerance."
)


def test_of_the_rows_that_differ_those_that_were_swapped_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven of nine rows differ; two of them have each other's vectors, and one that of a row which does not differ."""
    again = np.diag(np.arange(1.0, 10))
    stored = again * 1.5
    stored[[7, 8]] = again[[7, 8]]
    stored[[1, 2]] = again[[2, 1]]
    stored[4] = again[8]
    (entry,) = spots(store(tmp_path, stored), again, monkeypatch, spot_tolerance=0.01)
    worst = max(np.hypot(5, 9) / 5, np.hypot(2, 3) / 2)
    assert entry == Finding(
        severity="error", check="spot re-encoding", count=7, remedy=REMEDY,
        message=f"7 of 9 re-encoded rows differ from the stored vectors (relative distance up to {worst:.2g}, allowed: "
        "0.01). 2 of them are vectors of other rows in the sample: vectors were swapped.",
        examples=("id0 (0.5)", "id1 (1.8)", "id2 (1.2)", "id3 (0.5)", f"id4 ({np.hypot(5, 9) / 5:.2g})"),
    )  # fmt: skip


@pytest.mark.parametrize(("near", "swapped"), [(0.5, 1), (2.0, 0)])
def test_a_vector_is_that_of_another_row_within_the_tolerance_of_that_row(near: float, swapped: int) -> None:
    """Vectors of length 1 and 100: half a unit beside the long one is within one percent of it, two units are not."""
    again = np.array([[1.0, 0.0], [0.0, 100.0]])
    stored = np.array([[near, 100.0], [50.0, 50.0]])
    assert spot_check._swapped(again, stored, 0.01) == swapped


def test_rows_that_agree_are_counted_with_the_largest_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = np.eye(4) * 2
    stored = again + np.diag([0.0, 0.002, 0.004, 0.001])
    assert spots(store(tmp_path, stored), again, monkeypatch, spot_tolerance=0.005) == [
        Finding(severity="info", check="spot re-encoding", count=4,
                message="4 rows were encoded again: the largest relative distance is 0.002 (allowed: 0.005).")
    ]  # fmt: skip


def test_an_encoder_that_now_returns_zeros_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = np.ones((3, 2))
    latents = store(tmp_path, again.copy())
    again[1] = 0.0
    (entry,) = spots(latents, again, monkeypatch)
    assert (entry.severity, entry.count) == ("error", 1)
    assert entry.examples[0].startswith("id1 (")


def test_what_is_left_out_of_the_spot_check_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meta = [None, json.dumps({DECODED: True}), None, json.dumps({DECODED: True}), None]
    vectors = np.eye(5)
    with caplog.at_level("INFO"):
        decoded, checked = spots(store(tmp_path, vectors), vectors, monkeypatch, meta=meta)
    words = "2 of 5 rows were not encoded again: their texts were decoded from tokens."
    assert decoded == Finding(severity="info", check="spot re-encoding", message=words, count=2)
    assert (checked.severity, checked.count) == ("info", 3)
    assert caplog.messages == [f"spot check: {words}"]
    caplog.clear()
    found = Findings()
    declared = parse_encoder({"kind": "precomputed", "name": "mine", "dim": 3, "normalised": False})
    nothing: Any = {"records": None, "latents": None, "located": None, "config": ValidationConfig(), "seed": 0}
    with caplog.at_level("INFO"):
        spot_check.check_spots(found, encoder=declared, **nothing)
    (entry,) = found.findings
    reason = entry.message.removeprefix("No row was encoded again: ")
    assert entry == Finding(severity="info", check="spot re-encoding", message=f"No row was encoded again: {reason}")
    assert caplog.messages == [f"the spot check is left out: {reason}"]
    assert "the vectors of the encoder 'mine' come from the sources" in reason


# -- statistics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [1, 3, 12])
def test_stored_types_and_dimensions_of_any_size_are_measured(dtype: str, dim: int, tmp_path: Path) -> None:
    """Rows 1 and 4 are equal; the numbers are exact in both types."""
    vectors = np.random.default_rng(0).integers(1, 2000, (6, dim)).astype(np.float64)
    vectors[4] = vectors[1]
    found = statistics.measure(store(tmp_path, vectors, dtype=dtype, shard_rows=4), plot_rows=100, seed=0)
    np.testing.assert_allclose(found.mean_d, vectors.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std_d, vectors.std(0), rtol=1e-9)
    np.testing.assert_allclose(found.norm_n, np.linalg.norm(vectors, axis=1))
    equal = found.digest_n[:, None] == found.digest_n
    assert (equal == (vectors[:, None] == vectors).all(-1)).all()
    variances = np.linalg.eigvalsh(np.atleast_2d(np.cov(vectors, rowvar=False)))[::-1].clip(0)
    np.testing.assert_allclose(found.spectrum, variances / variances.sum(), atol=1e-9)
    assert (found.spectrum >= 0).all(), "there are fewer rows than dimensions"


def test_the_summary_has_every_number() -> None:
    """Of 0, 1, …, 100 the quantiles are their own numbers; a dimension without variation counts like the others."""
    hundred = np.arange(101.0)
    found = Statistics(
        finite_n=np.array([True] * 101 + [False]), norm_n=np.array([*(hundred + 1), np.nan]),
        digest_n=np.zeros(102, np.uint64), bad_per_dimension_d=np.zeros(101, np.int64), mean_d=np.zeros(101),
        std_d=hundred, drift=[("a", 0.4), ("b", 0.1)], spectrum=np.array([0.5, 0.5, 0.0]),
        neighbour_cosine=hundred / 100,
    )  # fmt: skip
    names = ("min", "p01", "median", "p99", "max")
    assert found.summary() == {
        "dim": 101, "finite_rows": 101, "norm": dict(zip(names, (1.0, 2.0, 51.0, 100.0, 101.0), strict=True)),
        "standard deviation": dict(zip(names, (0.0, 1.0, 50.0, 99.0, 100.0), strict=True)), "largest_drift": 0.4,
        "effective_dimensions": pytest.approx(2.0),
        "neighbour_cosine": pytest.approx(dict(zip(names, (0.0, 0.01, 0.5, 0.99, 1.0), strict=True))),
    }  # fmt: skip


# -- the normaliser ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [3, 7, 9])
def test_a_number_that_is_not_finite_is_found_in_its_row(
    bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are read in pieces of three, and the rows 0 and 2 are not among them."""
    monkeypatch.setattr(normaliser_fit, "_READ_ROWS", 3)
    vectors = np.ones((10, 2))
    vectors[0] = vectors[2] = vectors[bad, 1] = np.inf
    rows = np.array([9, 8, 7, 6, 5, 4, 3, 1])
    with pytest.raises(StoreError) as error:
        fit(store(tmp_path, vectors), rows=rows, config=NormaliserConfig(), unit_norm=False)
    assert str(error.value) == (f"{tmp_path}: row {bad} contains a number that is not finite. Validate before fitting.")


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
@pytest.mark.parametrize("shape", [(2, 5), (7, 2, 4), ()])
@pytest.mark.parametrize("direction", ["standardise", "invert"])
def test_vectors_of_another_dimension_are_refused_with_their_shape(make: Any, shape: Any, direction: str) -> None:
    plain = Normaliser("standard", np.zeros(6), np.ones(6), unit_norm=False)
    with pytest.raises(StoreError) as error:
        getattr(plain, direction)(make(shape))
    assert str(error.value) == (
        f"expected vectors with 6 dimensions, on which the normaliser was fitted, found shape {shape}. Use the "
        "normaliser of this encoder."
    )


def test_a_normaliser_that_is_read_has_every_field_of_the_one_that_was_written(tmp_path: Path) -> None:
    matrix = np.arange(9.0).reshape(3, 3)
    made = Normaliser(
        "whitening", np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), True, 7, matrix_dd=matrix, inverse_dd=matrix + 1,
        constant=(0, 2), typical=(0.5, 1.5),
    )  # fmt: skip
    made.save(tmp_path)
    found = Normaliser.load(tmp_path)
    for name in ("kind", "unit_norm", "rows", "constant", "typical", "dim", "fingerprint"):
        value = getattr(found, name)
        assert (value, type(value)) == (getattr(made, name), type(getattr(made, name))), name
    for name in ("mean_d", "scale_d", "matrix_dd", "inverse_dd"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    assert len(made.fingerprint) == 32
    assert json.loads((tmp_path / "normaliser.json").read_text()) == {
        "format_version": 1, "kind": "whitening", "unit_norm": True, "rows": 7, "dim": 3, "constant": [0, 2],
        "typical": [0.5, 1.5], "fingerprint": made.fingerprint,
    }  # fmt: skip


# -- figures -----------------------------------------------------------------------------------------------------------


def test_what_is_drawn_are_bars_without_gaps_and_a_line_on_white() -> None:
    values = np.linspace(1.0, 2.0, 61)
    found = Statistics(
        np.ones(61, bool), values, np.zeros(61, np.uint64), np.zeros(2, np.int64), np.zeros(2), np.zeros(2), [],
        np.array([0.75, 0.25]), values,
    )  # fmt: skip
    for figure in (figures.norm_histogram(found), figures.neighbour_cosine(found)):
        (bars,) = figure.data
        assert (bars.type, len(bars.x), sum(bars.y), figure.layout.bargap) == ("bar", 60, 61, 0)
        np.testing.assert_allclose(np.diff(bars.x), 1 / 60)
        assert bars.x[0] == pytest.approx(1 + 1 / 120), "the middle of the first bar"
    (curve,) = figures.spectrum(found).data
    assert (curve.type, curve.mode) == ("scatter", "lines")
    (bars,) = figures.length_histogram(np.array([2, 0, 2])).data
    assert (bars.type, list(bars.x), list(bars.y)) == ("bar", [0, 1, 2], [1, 0, 2])
    made = (figures.norm_histogram(found), figures.norm_histogram(None), figures.spectrum(found),
            figures.spectrum(None), figures.neighbour_cosine(None),
            figures.length_histogram(np.array([1])))  # fmt: skip
    for figure in made:
        assert figure.layout.template.layout.plot_bgcolor == "white"


@pytest.mark.parametrize(("spread", "width"), [(0.0, 2e-3), (9e-7, 2e-3), (2e-6, 2e-6)])
def test_norms_that_differ_by_rounding_are_one_bar(spread: float, width: float) -> None:
    values = np.array([5.0, 5.0 + spread / 2, 5.0 + spread])
    (bars,) = figures._histogram(values, title="t", x="x").data
    assert sum(bars.y) == 3
    assert bars.x[-1] - bars.x[0] == pytest.approx(width * 59 / 60, rel=0.01)
