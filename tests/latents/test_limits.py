"""Limits are checked from both sides: norms, row numbers, lengths, and what is exactly at a limit."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.alignment import check_tokens
from mm_ldlm.data.latents.checks import check_vectors
from mm_ldlm.data.latents.findings import Findings
from mm_ldlm.data.latents.statistics import measure

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.latents import spot_check
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.store import ShardStore, StoreWriter


def failing_norms(norms: list[float], *, normalised: bool, **limits: Any) -> list[int]:
    """Rows whose norm fails, of vectors with these norms."""
    count = len(norms)
    measured = SimpleNamespace(
        finite_n=np.ones(count, bool), norm_n=np.array(norms), digest_n=np.arange(count, dtype=np.uint64),
        bad_per_dimension_d=np.zeros(2, np.int64), std_d=np.ones(2), drift=[],
    )  # fmt: skip
    latents = SimpleNamespace(strings=lambda name: SimpleNamespace(take=lambda rows: [str(row) for row in rows]))
    found = Findings()
    config = ValidationConfig(on_norm_outlier="quarantine", **limits)
    check_vectors(found, latents, measured, config=config, normalised=normalised)  # type: ignore[arg-type]
    return np.asarray(found.rows.get("norm", [])).tolist()


def test_a_norm_fails_above_and_below_one() -> None:
    norms = [1.0, 1.009, 0.991, 1.02, 0.98, 0.5, 2.0]
    assert failing_norms(norms, normalised=True, norm_tolerance=0.01) == [3, 4, 5, 6]


def test_a_norm_fails_above_and_below_the_quartiles() -> None:
    """Of the norms 10, 11, …, 20 the middle half is 2 × 2.5 wide: three times that around it is −2.5 … 32.5."""
    middle = [float(norm) for norm in range(10, 21)]
    assert failing_norms([*middle, 31.0, 0.5], normalised=False, norm_outlier_iqrs=3.0) == []
    assert failing_norms([*middle, 60.0], normalised=False, norm_outlier_iqrs=3.0) == [11]
    narrow = [100 + norm / 10 for norm in middle]
    assert failing_norms([*narrow, 50.0, 160.0], normalised=False, norm_outlier_iqrs=3.0) == [11, 12]
    assert failing_norms([*narrow, 50.0], normalised=False, norm_outlier_iqrs=3.0) == [11]


@pytest.mark.parametrize(("unknown", "warns"), [(0, False), (10, False), (11, True), (500, True)])
def test_more_than_one_percent_of_unknown_tokens_is_a_warning(pristine: Any, unknown: int, warns: bool) -> None:
    meta = {**pristine.tokens.manifest.meta, "splits": {"test": {"tokens": 1000, "unknown": unknown}}}
    tokens = copy.copy(pristine.tokens)
    tokens.manifest = dataclasses.replace(tokens.manifest, meta=meta)
    found = Findings()
    check_tokens(found, tokens, tokenizer=pristine.tokenizer)
    messages = [item["message"] for item in found.plain() if item["check"] == "unknown tokens"]
    assert messages == ([f"{unknown / 10:.2f} % of the tokens of split 'test' are unknown."] if warns else [])


def test_the_plotted_rows_are_those_of_the_seed(pristine: Any) -> None:
    def spectrum(seed: int) -> Any:
        return measure(pristine.latents, plot_rows=20, seed=seed).spectrum

    np.testing.assert_array_equal(spectrum(1), spectrum(1))
    assert not np.array_equal(spectrum(1), spectrum(2))


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    schema = pa.schema([("number", pa.int64()), ("ids", pa.list_(pa.int32()))])
    writer = StoreWriter(tmp_path / "store", kind="numbers", schema=schema, shard_rows=3)
    writer.append({"number": list(range(10, 17)), "ids": [list(range(n)) for n in range(7)]})
    writer.finish()
    return ShardStore.open(tmp_path / "store")


@pytest.mark.parametrize("bad", [-8, -7, -1, 7, 8])
def test_a_row_number_outside_is_refused_on_both_sides(bad: int, store: ShardStore) -> None:
    for rows in ([bad], [0, bad, 6]):
        for read in (store.ints("number").take, store.lists("ids").take, store.take):
            with pytest.raises(StoreError, match=rf"expected rows 0\.\.6, found row {bad}"):
                read(rows)
    assert store.ints("number").take([0, 6]).tolist() == [10, 16]


def test_a_row_of_exactly_the_given_length_fits(store: ShardStore) -> None:
    assert store.lists("ids").padded([5], pad=-1, length=5).tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(StoreError, match="expected at most 5 items"):
        store.lists("ids").padded([6], pad=-1, length=5)
    assert store.lists("ids").padded([2, 0], pad=-1, length=3).tolist() == [[0, 1, -1], [-1, -1, -1]]


@pytest.mark.parametrize("rows", [6, 8])
def test_a_manifest_with_more_or_fewer_rows_than_its_shards_is_refused(rows: int, store: ShardStore) -> None:
    file = store.directory / "manifest.json"
    plain = json.loads(file.read_text())
    file.write_text(json.dumps({**plain, "rows": rows}))
    with pytest.raises(StoreError, match=f"expected {rows} rows, found 7 in the shards"):
        ShardStore.open(store.directory)


@pytest.mark.parametrize(("factor", "fails"), [(0.5, False), (0.99, False), (1.01, True), (5.0, True)])
def test_a_vector_fails_the_spot_check_just_above_the_tolerance(
    factor: float, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors have norm 3, and one of the stored ones lies at `factor` times the tolerance of them."""
    encoded = np.zeros((8, 2))
    encoded[:, 0] = 3.0
    stored = encoded.copy()
    stored[5, 1] = 3.0 * 0.01 * factor
    names = SimpleNamespace(take=lambda rows: [str(row) for row in rows])
    column = SimpleNamespace(take=lambda rows: stored[rows], dtype=np.dtype("float32"))
    records = SimpleNamespace(strings=lambda name: names, take=lambda rows: {"meta": pa.nulls(len(rows))})
    latents = SimpleNamespace(strings=lambda name: names, fixed=lambda name: column)
    monkeypatch.setattr(spot_check, "sample", lambda *_, **__: np.array([1, 3, 5, 7]))
    encoder = SimpleNamespace(encode=lambda texts: encoded[:4])
    monkeypatch.setattr(spot_check, "load_encoder", lambda *_, **__: encoder)
    found = Findings()
    config = ValidationConfig(spot_tolerance=0.01)
    spot_check.check_spots(
        found, records, latents, encoder=None, located=SimpleNamespace(dtype="float32"), config=config, seed=0  # type: ignore[arg-type]
    )  # fmt: skip
    assert np.asarray(found.rows.get("spot re-encoding", [])).tolist() == ([5] if fails else [])


@pytest.mark.parametrize("normalised", [False, True])
def test_norms_are_not_compared_where_every_vector_is_zero(normalised: bool) -> None:
    assert failing_norms([0.0, 0.0], normalised=normalised) == []
