"""Findings of validation at their limits: severity, quarantine, counts and policy of each, in closed form."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.checks import check_vectors
from mm_ldlm.data.latents.findings import MAX_EXAMPLES, Findings, enforce
from mm_ldlm.data.latents.plan import Plan, default_shard_rows
from mm_ldlm.data.latents.spot_check import _swapped, default_tolerance, sample
from mm_ldlm.data.latents.statistics import Statistics

from mm_ldlm.core.errors import ValidationError
from mm_ldlm.data.encoders import parse_encoder
from mm_ldlm.data.latents import figures, statistics
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import StoreWriter


def measured(count: int = 8, dim: int = 4, **more: Any) -> Statistics:
    """Unremarkable statistics of vectors of norm 1, with some of them replaced."""
    given: dict[str, Any] = {
        "finite_n": np.ones(count, bool), "norm_n": np.ones(count), "digest_n": np.arange(count, dtype=np.uint64),
        "bad_per_dimension_d": np.zeros(dim, np.int64), "mean_d": np.zeros(dim), "std_d": np.ones(dim), "drift": [],
        "spectrum": np.full(dim, 1 / dim), "neighbour_cosine": np.zeros(count),
    }  # fmt: skip
    return Statistics(**given | more)


def findings(
    found: Statistics, *, normalised: bool = True, **limits: Any
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    latents: Any = SimpleNamespace(strings=lambda name: SimpleNamespace(take=lambda rows: [f"id{row}" for row in rows]))
    held = Findings()
    check_vectors(held, latents, found, config=ValidationConfig(**limits), normalised=normalised)
    return (
        {entry.check: entry for entry in held.findings}, {name: rows.tolist() for name, rows in held.rows.items()}
    )  # fmt: skip


def test_sound_vectors_have_no_finding() -> None:
    assert findings(measured()) == ({}, {})


def test_rows_that_are_not_finite_or_zero_are_left_out() -> None:
    finite = np.array([True, False, True, True, False, True])
    norms = np.array([1.0, np.nan, 0.0, 1.0, np.nan, 1.0])
    bad = np.array([0, 2, 0, 1])
    found, rows = findings(measured(6, finite_n=finite, norm_n=norms, bad_per_dimension_d=bad))
    assert rows == {"finite": [1, 4], "zero": [2]}
    assert (found["finite"].count, found["finite"].examples, found["finite"].severity) == (2, ("id1", "id4"), "warning")
    assert found["finite dimensions"].examples == ("dimension 1: 2 rows", "dimension 3: 1 rows")
    assert found["finite dimensions"].count == 2
    assert found["zero"].examples == ("id2",)


@pytest.mark.parametrize("quarantine", [True, False])
def test_outliers_of_norms_are_left_out_on_request_only(quarantine: bool) -> None:
    norms = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 90.0])
    policy = "quarantine" if quarantine else "warn"
    found, rows = findings(measured(norm_n=norms), normalised=False, on_norm_outlier=policy)
    assert rows == ({"norm": [7]} if quarantine else {})
    assert (found["norm"].count, found["norm"].examples) == (1, ("id7",))
    _, rows = findings(measured(norm_n=norms), normalised=True, on_norm_outlier="warn")
    assert rows == {"norm": [1, 2, 3, 4, 5, 6, 7]}, "of an encoder that normalises, always"


@pytest.mark.parametrize(("tolerance", "rows"), [(0.25, [3, 4]), (0.249, [1, 2, 3, 4])])
def test_a_norm_at_its_tolerance_passes(tolerance: float, rows: list[int]) -> None:
    norms = np.array([1.0, 1.25, 0.75, 1.26, 0.74, 1.0, 1.0, 1.0])
    assert findings(measured(norm_n=norms), norm_tolerance=tolerance)[1] == {"norm": rows}


@pytest.mark.parametrize(("most", "severity"), [(0.5, "warning"), (0.49, "error")])
@pytest.mark.parametrize("quarantine", [True, False])
def test_duplicate_vectors(most: float, severity: str, quarantine: bool) -> None:
    """Of ten rows that can be compared, five share their vector: two with one another, and three others."""
    digests = np.array([8, 8, 1, 2, 1, 3, 4, 5, 3, 3, 6, 7], np.uint64)
    norms = np.array([0.0, 0.0] + [1.0] * 10)
    policy = "quarantine" if quarantine else "warn"
    found, rows = findings(
        measured(12, digest_n=digests, norm_n=norms), max_duplicate_fraction=most, on_duplicate_vector=policy
    )
    entry = found["duplicate vectors"]
    assert (entry.severity, entry.count, entry.examples) == (severity, 5, ("id4", "id8", "id9"))
    assert rows == {"zero": [0, 1]} | ({"duplicate vectors": [4, 8, 9]} if quarantine else {})


@pytest.mark.parametrize(("most", "severity"), [(0.5, "warning"), (0.49, "error")])
def test_collapsed_dimensions(most: float, severity: str) -> None:
    found, rows = findings(
        measured(std_d=np.array([1.0, 0.01, 0.0, 0.011])), collapsed_std=0.01, max_collapsed_fraction=most
    )
    entry = found["collapsed dimensions"]
    assert (entry.severity, entry.count, entry.examples, rows) == (severity, 2, ("1", "2"), {})


@pytest.mark.parametrize(
    ("digests", "remedy"), [([5, 5, 5], "give more texts that differ"), ([5, 6, 5], "check its po")]
)
def test_a_single_vector_is_no_fault_of_the_encoder(digests: list[int], remedy: str) -> None:
    found, _ = findings(measured(3, digest_n=np.array(digests, np.uint64), std_d=np.zeros(4)), collapsed_std=0.01)
    assert remedy in found["collapsed dimensions"].remedy


def test_drift_above_its_limit_names_its_shard() -> None:
    held = Findings()
    drift = [("one", 0.5), ("two", 0.51), ("three", 0.2)]
    latents: Any = SimpleNamespace()
    check_vectors(held, latents, measured(drift=drift), config=ValidationConfig(max_drift=0.5), normalised=True)
    (entry,) = held.findings
    assert (entry.check, entry.severity, entry.examples) == ("drift", "warning", ("two",))


# -- the collection --------------------------------------------------------------------------------------------------


def test_findings_are_ranked_joined_and_cut() -> None:
    held = Findings()
    for severity in ("info", "error", "warning", "error"):
        held.add(severity, f"a {severity}", "message", examples=range(9), count=9)  # type: ignore[arg-type]
    assert [entry["severity"] for entry in held.plain()] == ["error", "error", "warning", "info"]
    assert held.plain()[0]["examples"] == ["0", "1", "2", "3", "4"]
    assert MAX_EXAMPLES == 5
    assert len(held.errors) == 2
    held.fail_rows("a", np.array([5, 3]))
    held.fail_rows("a", np.array([3, 9]))
    held.fail_rows("b", np.array([1, 9]))
    held.fail_rows("c", np.array([], np.int64))
    assert {name: rows.tolist() for name, rows in held.rows.items()} == {"a": [3, 5, 9], "b": [1, 9]}
    assert held.failing.tolist() == [1, 3, 5, 9]
    with pytest.raises(ValidationError, match=r"2 data contract\(s\) failed.*\n- a error: message For example: 0, 1"):
        enforce({"findings": held.plain()})
    enforce({"findings": [entry for entry in held.plain() if entry["severity"] != "error"]})


@pytest.mark.parametrize(
    ("stored", "computed", "tolerance"),
    [("float32", "float32", 1e-4), ("float16", "float32", 3e-3), ("float16", "bfloat16", 5e-2),
     ("float32", "float16", 5e-2)],
)  # fmt: skip
def test_the_tolerance_of_rounding(stored: str, computed: str, tolerance: float) -> None:
    assert default_tolerance(stored, computed) == tolerance


def test_swapped_vectors_are_counted() -> None:
    correct = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [9.0, 1.0]])
    stored = correct[[1, 0, 2, 3]] + np.array([[0, 0], [0, 0], [5, 5], [0, 0.001]])
    assert _swapped(correct, stored, 0.01) == 2
    assert _swapped(correct[:1], correct[:1], 0.01) == 0


@pytest.mark.parametrize(("rows", "size"), [(100, 10), (7, 50), (1000, 1)])
def test_spots_are_spread_evenly(rows: int, size: int) -> None:
    latents: Any = range(rows)
    found = sample(latents, size, seed=3)
    assert len(found) == min(rows, size)
    edges = np.linspace(0, rows, min(rows, size) + 1).astype(int)
    assert all(low <= row < max(high, low + 1) for row, low, high in zip(found, edges[:-1], edges[1:], strict=True))
    if rows > size:
        assert {tuple(sample(latents, size, seed=seed)) for seed in range(5)} != {tuple(found)}


# -- statistics and figures ------------------------------------------------------------------------------------------


def test_the_summary_of_statistics() -> None:
    finite = np.array([True] * 7 + [False])
    norms = np.array([1.0, 2, 3, 4, 5, 6, 7, np.nan])
    found = measured(
        finite_n=finite, norm_n=norms, std_d=np.array([1.0, 2, 3, 4]), spectrum=np.array([0.5, 0.25, 0.25, 0.0]),
        drift=[("a", 0.1), ("b", 0.4)], neighbour_cosine=np.array([0.0, 1.0]),
    ).summary()  # fmt: skip
    assert (found["dim"], found["finite_rows"], found["largest_drift"]) == (4, 7, 0.4)
    assert found["norm"] == pytest.approx({"min": 1, "p01": 1.06, "median": 4, "p99": 6.94, "max": 7})
    assert found["standard deviation"]["median"] == 2.5
    assert found["effective_dimensions"] == pytest.approx(2**1.5)
    assert found["neighbour_cosine"]["p99"] == pytest.approx(0.99)
    assert measured(0, drift=[], spectrum=np.zeros(0)).summary()["effective_dimensions"] == 0.0


def test_equal_rows_and_no_others_have_equal_digests() -> None:
    multipliers = np.array([3, 5], np.uint64) | np.uint64(1)
    rows = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, -3.0], [2.0, 1.0, 3.0]], np.float32)
    one, two, three, four = statistics._digests(rows, multipliers).tolist()
    assert one == two
    assert len({one, three, four}) == 3


def test_neighbours_and_spectrum_by_hand() -> None:
    sample_nd = np.array([[1.0, 0.0], [0.0, 5.0], [3.0, 3.0], [-2.0, 0.0]])
    found = statistics._neighbours(sample_nd)
    half = 0.5**0.5
    np.testing.assert_allclose(found, [half, half, half, 0.0], atol=1e-6)
    values = statistics._spectrum(np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    np.testing.assert_allclose(values, [0.9, 0.1])
    assert len(statistics._spectrum(sample_nd[:1])) == len(statistics._neighbours(sample_nd[:1])) == 0


def test_every_figure_has_its_own_numbers() -> None:
    found = measured(
        finite_n=np.array([True, True, False]), norm_n=np.array([1.0, 3.0, 99.0]), spectrum=np.array([0.75, 0.25]),
        neighbour_cosine=np.array([0.5, 0.7]),
    )  # fmt: skip
    norms, cosines = figures.norm_histogram(found).data[0], figures.neighbour_cosine(found).data[0]
    assert sum(norms.y) == 2
    assert 1.0 < norms.x[0] < 1.1 < 2.9 < norms.x[-1] < 3.0
    assert 0.5 < cosines.x[0] < 0.51 < 0.69 < cosines.x[-1] < 0.7
    (curve,) = figures.spectrum(found).data
    assert (list(curve.x), list(curve.y)) == ([1, 2], [0.75, 0.25])
    (bars,) = figures.length_histogram(np.array([1, 3, 3])).data
    assert (list(bars.x), list(bars.y)) == ([0, 1, 2, 3], [0, 1, 0, 2])
    assert not figures.norm_histogram(None).data
    units = figures.norm_histogram(measured(norm_n=np.full(3, 1.0), finite_n=np.ones(3, bool))).data[0]
    assert 0.999 < units.x[0] < units.x[-1] < 1.001, "equal norms are one bar around them"
    assert sum(count > 0 for count in units.y) == 1


def test_every_figure_has_its_own_titles_and_axes() -> None:
    made: Any = {
        figures.norm_histogram: ("Norms of the latents", "norm", "rows", None),
        figures.neighbour_cosine: ("Cosine to the nearest neighbour", "cosine", "rows", None),
        figures.spectrum: ("Spectrum of the covariance", "component", "fraction of the variance", "log"),
    }
    for draw, (title, x, y, scale) in made.items():
        for given in (measured(), None):
            layout = draw(given).layout
            assert (layout.title.text, layout.xaxis.title.text, layout.yaxis.title.text) == (title, x, y)
            assert (layout.xaxis.type, layout.yaxis.type) == (None, scale)
    layout = figures.length_histogram(np.array([1, 2])).layout
    titles = (layout.title.text, layout.xaxis.title.text, layout.yaxis.title.text)
    assert titles == ("Tokens per text", "tokens", "texts")


@pytest.mark.parametrize("block", [3, 4, 100])
def test_statistics_of_blocks_and_shards_with_rows_that_do_not_count(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_BLOCK", block)
    vectors = (np.random.default_rng(0).normal(size=(20, 3)) + 5).astype(np.float32)
    vectors[[2, 11], [0, 2]], vectors[17], vectors[5] = np.nan, np.inf, 0
    vectors[9] = vectors[14]
    writer = StoreWriter(tmp_path, kind="latents", schema=latent_store.schema(3, "float32"), shard_rows=7)
    writer.append(latent_store.table([f"{i}" for i in range(20)], vectors, dtype="float32"))
    writer.finish(meta={"dim": 3})
    found = statistics.measure(LatentStore.open(tmp_path), plot_rows=1000, seed=0)
    good = np.array([i for i in range(20) if i not in (2, 11, 17)])
    rows = vectors[good].astype(np.float64)
    assert np.flatnonzero(found.finite_n).tolist() == good.tolist()
    assert found.bad_per_dimension_d.tolist() == [2, 1, 2]
    np.testing.assert_allclose(found.norm_n[good], np.linalg.norm(rows, axis=1))
    assert np.isnan(found.norm_n[[2, 11, 17]]).all()
    np.testing.assert_allclose(found.mean_d, rows.mean(0), atol=1e-12)
    np.testing.assert_allclose(found.std_d, rows.std(0), atol=1e-12)
    shards = np.stack([rows[(good >= start) & (good < start + 7)].mean(0) for start in (0, 7, 14)])
    distances = np.linalg.norm(shards - np.median(shards, axis=0), axis=1) / np.sqrt(rows.var(0).sum())
    assert [name for name, _ in found.drift] == [f"part-{i:06d}.arrow" for i in range(3)]
    np.testing.assert_allclose([distance for _, distance in found.drift], distances)
    assert [i for i in range(20) if found.digest_n[i] == found.digest_n[14]] == [9, 14]
    unit = rows[good != 5] / np.linalg.norm(rows[good != 5], axis=1, keepdims=True)
    cosine = unit @ unit.T - 3 * np.eye(16)
    np.testing.assert_allclose(found.neighbour_cosine, cosine.max(1), atol=1e-6)
    assert len(statistics.measure(LatentStore.open(tmp_path), plot_rows=4, seed=0).neighbour_cosine) == 4


@pytest.mark.parametrize(
    ("rows", "shard"), [(1, 1024), (65_536, 1024), (65_537, 1024), (131_072, 2048), (10**9, 65_536)]
)
def test_shards_are_a_power_of_two_near_a_64th(rows: int, shard: int) -> None:
    assert default_shard_rows(rows) == shard


def test_every_field_of_a_plan_comes_back_and_its_shards_cover_the_rows() -> None:
    plan = Plan(
        records=Path("/a"), workspace=Path("/b"), rows=10, shard_rows=4, dtype="float16", threads=3,
        non_finite="quarantine", encoder=parse_encoder({"device": "cpu", "batch_rows": 5}),
        fingerprints={"records": "r"},
    )  # fmt: skip
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert (plan.num_shards, [plan.bounds(number) for number in range(3)]) == (3, [(0, 4), (4, 8), (8, 10)])
    assert dataclasses.replace(plan, rows=8).num_shards == 2
    assert plan.sidecar(7) == Path("/b/.extract/part-000007.json")
