"""Rows that are checked one by one: token ids and lengths at their limits, spots among rows that are left out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.latents.alignment import check_tokens
from mm_ldlm.data.latents.findings import Findings

from mm_ldlm.data.corpus.record import DECODED
from mm_ldlm.data.latents import spot_check, statistics
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import StoreWriter


def store_of(folder: Path, vectors: Any, *, shard_rows: int = 100) -> LatentStore:
    schema = latent_store.schema(vectors.shape[1], "float32")
    writer = StoreWriter(folder, kind="latents", schema=schema, shard_rows=shard_rows)
    writer.append(latent_store.table([str(row) for row in range(len(vectors))], vectors, dtype="float32"))
    writer.finish(meta={"dim": vectors.shape[1]})
    return LatentStore.open(folder)


def test_token_ids_and_lengths_at_their_limits_pass(tmp_path: Path) -> None:
    """Of a vocabulary of 9 with pad 7 and mask 8, and texts of at most 3 tokens."""
    rows = [[0, 6, 1], [9], [-1], [7], [2, 8], [1, 2, 3, 4], [], [5]]
    lengths = [3, 1, 1, 1, 2, 4, 0, 1]
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("length", pa.int32())])
    writer = StoreWriter(tmp_path, kind="tokens", schema=schema, shard_rows=3)
    writer.append({"id": [f"r{row}" for row in range(8)], "input_ids": rows, "length": lengths})
    writer.finish()
    tokenizer: Any = SimpleNamespace(max_length=3, vocab_size=9, pad_id=7, mask_id=8)
    found = Findings()
    check_tokens(found, latent_store.ShardStore.open(tmp_path), tokenizer=tokenizer)
    failing = {check: rows.tolist() for check, rows in found.rows.items()}
    assert failing == {"token ids": [1, 2], "special tokens": [3, 4], "length": [5], "empty": [6]}
    assert {entry.check: entry.examples for entry in found.findings}["length"] == ("r5",)
    assert "max_length = 3 (longest 4)" in next(e.message for e in found.findings if e.check == "length")


@pytest.mark.parametrize("harm", [(), (3,), (0, 4), (5,)])
def test_a_spot_is_compared_with_its_own_row_where_others_are_left_out(
    harm: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows 1 and 2 are not finite or decoded; the vectors of the others are those of their own texts."""
    vectors = np.arange(1.0, 13).reshape(6, 2)
    stored = vectors.copy()
    stored[1, 1] = np.nan
    stored[list(harm)] *= 1.5
    latents, taken = store_of(tmp_path, stored), []
    meta = [None, None, json.dumps({DECODED: True}), None, None, None]
    records: Any = SimpleNamespace(
        take=lambda rows: {"meta": pa.array([meta[row] for row in rows], pa.string())},
        strings=lambda name: SimpleNamespace(take=lambda rows: taken.append(list(rows)) or list(rows)),
    )
    encoder = SimpleNamespace(encode=lambda rows: vectors[rows])
    monkeypatch.setattr(spot_check, "load_encoder", lambda *_, **__: encoder)
    found = Findings()
    options: dict[str, Any] = {"encoder": None, "located": SimpleNamespace(dtype="float32"), "seed": 0}
    spot_check.check_spots(found, records, latents, config=ValidationConfig(), **options)
    assert taken == [[0, 3, 4, 5]]
    assert np.asarray(found.rows.get("spot re-encoding", [])).tolist() == list(harm)
    assert [entry.severity for entry in found.findings] == ["info", "error" if harm else "info"]
    assert found.findings[-1].count == (len(harm) or 4)
    assert [name.split()[0] for name in found.findings[-1].examples] == [str(row) for row in harm]


@pytest.mark.parametrize(
    ("stored", "computed", "tolerance"),
    [("float32", "float32", 1e-4), ("float16", "float32", 3e-3), ("float32", "bfloat16", 5e-2),
     ("float16", "float16", 5e-2)],
)  # fmt: skip
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_tolerance_follows_the_stored_type_and_that_of_the_computation(
    factor: float, stored: Any, computed: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.zeros((4, 2))
    vectors[:, 0] = 1
    writer = StoreWriter(tmp_path, kind="latents", schema=latent_store.schema(2, stored))
    shifted = vectors + np.array([0, factor * tolerance])
    writer.append(latent_store.table(list("abcd"), shifted, dtype=stored))
    writer.finish(meta={"dim": 2})
    loaded: list[Any] = []
    records: Any = SimpleNamespace(
        take=lambda rows: {"meta": pa.nulls(len(rows), pa.string())},
        strings=lambda name: SimpleNamespace(take=lambda rows: rows),
    )
    encoder = SimpleNamespace(encode=lambda rows: vectors[rows])
    monkeypatch.setattr(spot_check, "load_encoder", lambda *given, **more: loaded.append((given, more)) or encoder)
    found, located = Findings(), SimpleNamespace(dtype=computed)
    options: Any = {"encoder": "e", "located": located, "config": ValidationConfig(), "seed": 0}
    spot_check.check_spots(found, records, LatentStore.open(tmp_path), **options)
    assert [entry.severity for entry in found.findings] == ["info" if factor < 1 else "error"]
    assert f"allowed: {tolerance:g}" in found.findings[0].message
    assert loaded == [(("e",), {"located": located})], "it was located before, and is located once"


@pytest.mark.parametrize("reason", ["not finite", "decoded"])
def test_without_a_row_that_can_be_encoded_again_nothing_is_loaded(reason: str, tmp_path: Path) -> None:
    vectors = np.full((4, 2), np.nan if reason == "not finite" else 1.0)
    meta = pa.array([json.dumps({DECODED: True})] * 4)
    found, records = Findings(), SimpleNamespace(take=lambda rows: {"meta": meta})
    spot_check.check_spots(
        found, records, store_of(tmp_path, vectors), encoder=None, located=None, config=ValidationConfig(), seed=0  # type: ignore[arg-type]
    )  # fmt: skip
    assert [entry.severity for entry in found.findings] == ([] if reason == "not finite" else ["info"])


def test_a_shard_without_a_finite_row_has_no_mean(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 3)) + 4
    vectors[3:6, 1] = np.inf
    found = statistics.measure(store_of(tmp_path, vectors, shard_rows=3), plot_rows=100, seed=0)
    assert [name for name, _ in found.drift] == ["part-000000.arrow", "part-000002.arrow"]
    np.testing.assert_allclose(found.mean_d, vectors[[0, 1, 2, 6, 7, 8]].mean(0), rtol=1e-6)
    whole = statistics.measure(store_of(tmp_path / "none", np.full((2, 3), np.nan)), plot_rows=100, seed=0)
    assert (whole.drift, whole.summary()["norm"], whole.bad_per_dimension_d.tolist()) == ([], {}, [2, 2, 2])
