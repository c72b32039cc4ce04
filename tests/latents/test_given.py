"""Latents that the sources contain: they are stored as they are, and their validation embeds nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.findings import Findings
from mm_ldlm.data.latents.spot_check import check_spots

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.data.corpus.record import DECODED, RECORD_SCHEMA
from mm_ldlm.data.encoders import EncoderConfig, parse_encoder
from mm_ldlm.data.latents import plan
from mm_ldlm.data.latents.config import ExtractConfig, ValidationConfig
from mm_ldlm.data.latents.extract import extract
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, write_shard
from mm_ldlm.extras.own_vectors import latents as module
from mm_ldlm.extras.own_vectors.latents import take_over
from mm_ldlm.extras.own_vectors.store import VectorStore, vector_table

D = 6


def declared(**more: Any) -> EncoderConfig:
    return parse_encoder({"kind": "precomputed", "name": "mine", "dim": D, "normalised": False, **more})


def vectors_of(records: ShardStore, folder: Path, *, scale: float = 1.0, ids: list[str] | None = None) -> ShardStore:
    """A store of random vectors of the records."""
    found = scale * np.random.default_rng(1).standard_normal((len(records), D)).astype(np.float32)
    ids = ids or records.strings("id").take(slice(None))
    folder.mkdir()
    shard = write_shard(folder, "part-000000.arrow", vector_table(ids, list(found), dim=D))
    VectorStore(D, folder).commit([shard], records=records.manifest)
    return ShardStore.open(folder, "vectors")


def first_rows(latents: LatentStore, folder: Path, count: int) -> LatentStore:
    writer = StoreWriter(folder, kind="latents", schema=latents.schema)
    writer.append(latents.table(range(count)))
    writer.finish()
    return LatentStore.open(folder)


def take(pristine: Any, vectors: ShardStore | None, folder: Path, *, encoder: Any = None, **keys: Any) -> Manifest:
    return take_over(
        pristine.records, vectors, encoder=encoder or declared(), config=ExtractConfig(**keys), workspace=folder
    )


def test_the_vectors_become_latents_bit_for_bit(pristine: Any, tmp_path: Path) -> None:
    given = vectors_of(pristine.records, tmp_path / "v")
    manifest = take(pristine, given, tmp_path / "l", shard_rows=50)
    found = LatentStore.open(tmp_path / "l")
    assert found.ids(slice(None)) == pristine.records.strings("id").take(slice(None))
    stored = given.fixed("vector").take(slice(None))
    assert found.take(slice(None)).tobytes() == stored.tobytes()
    assert (manifest.meta["given"], manifest.meta["encoder"]["name"], manifest.meta["dim"]) == (True, "mine", D)
    assert [shard.rows for shard in manifest.shards] == [50, 50, 50, 50, 30]
    assert [manifest.meta[name] for name in ("dtype", "shard_rows", "non_finite", "encoder_config")] == [
        "float32", 50, {"count": 0, "ids": []}, declared().portable()
    ]  # fmt: skip
    for other in ({"shard_rows": 51}, {"dtype": "float16"}, {}):
        with pytest.raises(FingerprintError, match="other parameters"):
            take(pristine, given, tmp_path / "l", **{"shard_rows": 50, **other} if other else {})
    for free in ({"threads": 3}, {"non_finite": "quarantine"}):
        assert take(pristine, given, tmp_path / "l", shard_rows=50, **free) == manifest
    (tmp_path / "l/part-000001.arrow").unlink()
    assert take(pristine, given, tmp_path / "l", shard_rows=50) == manifest
    assert found.take(slice(None)).tobytes() == stored.tobytes()
    content = bytearray((tmp_path / "l/part-000003.arrow").read_bytes())
    (tmp_path / "l/part-000003.arrow").write_bytes(content[:400] + bytes([content[400] ^ 4]) + content[401:])
    assert take(pristine, given, tmp_path / "l", shard_rows=50) == manifest
    assert (tmp_path / "l/part-000003.arrow").read_bytes() == content, "a byte that changed is found"
    with pytest.raises(FingerprintError, match="latents of other records, another encoder or other parameters"):
        take(pristine, given, tmp_path / "l", encoder=declared(name="yours"), shard_rows=50)


def test_vectors_that_do_not_belong_to_the_records_are_refused(pristine: Any, new_data: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected the vectors of the 230 records"):
        take(pristine, None, tmp_path / "l")
    with pytest.raises(FingerprintError, match=r"vectors of other records \(60 rows, the records have 230\)"):
        take(pristine, vectors_of(new_data(rows=60).records, tmp_path / "other"), tmp_path / "l")
    ids = pristine.records.strings("id").take(slice(None))
    swapped = vectors_of(pristine.records, tmp_path / "swapped", ids=[ids[1], ids[0], *ids[2:]])
    with pytest.raises(StoreError, match="the ids of rows 0 to 229 are not those of the records"):
        take(pristine, swapped, tmp_path / "l")


def test_numbers_beyond_float16_stop_the_run_or_are_counted(
    pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = vectors_of(pristine.records, tmp_path / "v", scale=30_000.0)
    with pytest.raises(StoreError, match=r"of 230 given vectors have a number beyond float16 \(first record: "):
        take(pristine, given, tmp_path / "l", dtype="float16")
    monkeypatch.setattr(module, "_ROWS", 3)
    counted = take(pristine, given, tmp_path / "q", dtype="float16", non_finite="quarantine").meta["non_finite"]
    beyond = np.flatnonzero((np.abs(given.fixed("vector").take(slice(None))) >= 65_520).any(1))
    ids = pristine.records.strings("id").take(beyond)
    assert len(beyond) > 10
    assert counted == {"count": len(beyond), "ids": ids[:10]}


def test_without_an_encoder_the_report_says_that_no_row_was_encoded_again(pristine: Any) -> None:
    found = Findings()
    check_spots(
        found, pristine.records, pristine.latents, encoder=declared(), located=declared().locate(expected=None),
        config=ValidationConfig(), seed=0,
    )  # fmt: skip
    assert [(item.severity, item.check) for item in found.findings] == [("info", "spot re-encoding")]
    assert (
        "No row was encoded again: the vectors of the encoder 'mine' come from the sources" in found.findings[0].message
    )


def test_texts_that_were_decoded_from_tokens_are_not_embedded_again(pristine: Any, tmp_path: Path) -> None:
    table = pristine.records.take(range(40)).to_pydict()
    table["meta"] = [json.dumps({DECODED: True})] * 30 + [None] * 10
    writer = StoreWriter(tmp_path / "r", kind="records", schema=RECORD_SCHEMA)
    writer.append(table)
    writer.finish()
    records, found = ShardStore.open(tmp_path / "r"), Findings()
    with pytest.raises(
        StoreError, match="expected texts to embed, found 30 of 40 that were decoded from stored tokens"
    ):
        extract(records, encoder=pristine.encoder, config=ExtractConfig(progress=False), workspace=tmp_path / "l")
    located = pristine.encoder.locate()
    check_spots(
        found, records, first_rows(pristine.latents, tmp_path / "v", 40), encoder=pristine.encoder, located=located,
        config=ValidationConfig(spot_rows=40), seed=0,
    )  # fmt: skip
    first, second = found.findings
    assert first.message == "30 of 40 rows were not encoded again: their texts were decoded from tokens."
    assert second.message.startswith("10 rows were encoded again")


@pytest.mark.parametrize(("chosen", "rows"), [(None, [100, 100, 30]), (60, [60, 60, 60, 50]), (500, [230])])
def test_shards_have_the_default_size_for_the_number_of_records_unless_one_is_set(
    chosen: int | None, rows: list[int], pristine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given vectors and those of an encoder are divided alike."""
    for each in (module, plan):
        monkeypatch.setattr(each, "default_shard_rows", {230: 100}.__getitem__)
    given = vectors_of(pristine.records, tmp_path / "v")
    manifest = take(pristine, given, tmp_path / "l", shard_rows=chosen)
    assert [shard.rows for shard in manifest.shards] == rows
    assert manifest.meta["shard_rows"] == (chosen or 100)
    made = plan.make_plan(
        pristine.records, pristine.encoder.locate(), encoder=pristine.encoder, config=ExtractConfig(shard_rows=chosen),
        workspace=tmp_path / "w",
    )  # fmt: skip
    assert (made.shard_rows, made.num_shards) == (manifest.meta["shard_rows"], len(rows))
