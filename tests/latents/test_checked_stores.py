"""Validation of all stores together: damage of any of them, records of no split, and the fraction that may fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.latents import store as latent_store
from mm_ldlm.latents.checks import Outcome, validate
from mm_ldlm.latents.config import ValidationConfig
from mm_ldlm.store import Manifest, ShardStore, StoreWriter


def opened(data: Any) -> dict[str, Any]:
    latents = ShardStore.open(data.root / "latents")
    return {"records": data.records, "tokens": data.tokens, "latents": latents}


def check(data: Any, *, stores: Any = None, sets: Any = None, **limits: Any) -> Outcome:
    """Validate the stores without checks of the latents themselves."""
    config = ValidationConfig(**{"spot_rows": 0, "plot_rows": 10, "max_quarantine_fraction": 1.0} | limits)
    return validate(
        **(stores or opened(data)), tokenizer=data.tokenizer, encoder=data.encoder, extraction=data.extraction,
        config=config, evaluation_sets=sets or {}, seed=0,
    )  # fmt: skip


def errors(outcome: Outcome) -> dict[str, str]:
    return {f["check"]: f["message"] for f in outcome.report["findings"] if f["severity"] == "error"}


@pytest.mark.parametrize("kind", ["records", "tokens", "latents", "images"])
@pytest.mark.parametrize("harm", ["missing shard", "checksum", "truncated shard", None])
def test_damage_of_any_store_is_found(kind: str, harm: str | None, data: Any) -> None:
    records = data.records
    writer = StoreWriter(data.root / "images", kind="latents", schema=latent_store.schema(4, "float32"), shard_rows=100)
    ids = records.strings("id").take(slice(None))
    writer.append(latent_store.table(ids, np.ones((len(ids), 4)), dtype="float32"))
    writer.finish(fingerprints={"records": records.manifest.fingerprint}, meta={"dim": 4})
    stores = {**opened(data), "images": ShardStore.open(data.root / "images")}
    place = sorted((data.root / kind).glob("part-*.arrow"))[-1]
    content = bytearray(place.read_bytes())
    if harm == "missing shard":
        place.unlink()
    elif harm == "truncated shard":
        place.write_bytes(content[:-8])
    elif harm == "checksum":
        content[len(content) // 2] ^= 1
        place.write_bytes(content)
    found = errors(check(data, stores=stores))
    assert (harm in found) if harm else not found
    if harm is not None:
        assert found[harm].startswith("latents: " if kind == "images" else f"{kind}: ")
        assert str(data.root / kind) in found[harm]
        assert harm != "checksum" or harm not in errors(check(data, stores=stores, verify_checksums=False))


def test_images_of_other_records_are_not_aligned(data: Any) -> None:
    ids = data.records.strings("id").take(slice(None))
    ids[7], ids[9] = ids[9], ids[7]
    writer = StoreWriter(data.root / "images", kind="latents", schema=latent_store.schema(4, "float32"))
    writer.append(latent_store.table(ids, np.ones((len(ids), 4)), dtype="float32"))
    writer.finish(fingerprints={"records": data.records.manifest.fingerprint}, meta={"dim": 4})
    outcome = check(data, stores={**opened(data), "images": ShardStore.open(data.root / "images")})
    assert "2 rows of latents have another id" in errors(outcome)["alignment"]
    assert outcome.failing["alignment"].tolist() == [7, 9]


@pytest.mark.parametrize(("promised", "names"), [(24, []), (23, ["the manifest"]), (None, [])])
def test_the_dimension_in_the_manifest_is_that_of_the_vectors(promised: Any, names: list[str], data: Any) -> None:
    manifest = Manifest.read(data.root / "latents")
    meta = {key: value for key, value in (manifest.meta | {"dim": promised}).items() if value is not None}
    dataclasses.replace(manifest, meta=meta).write(data.root / "latents")
    messages = [f["message"] for f in check(data).report["findings"] if f["check"] == "dimension"]
    assert [message.split(" has ")[0] for message in messages] == names


def rewritten(data: Any, folder: Path, **columns: Any) -> None:
    records = data.records
    table = records.table(slice(None)).to_pydict()
    for name, changes in columns.items():
        for row, value in changes.items():
            table[name][row] = value
    writer = StoreWriter(folder, kind="records", schema=records.schema)
    writer.append(table)
    writer.finish(fingerprints=records.manifest.fingerprints, meta=records.manifest.meta)


@pytest.mark.parametrize("split", ["dev", ""])
def test_records_of_no_split_are_an_error_and_no_training_texts(split: str, data: Any) -> None:
    """An evaluation sentence in them is no leak, because nothing is trained on them."""
    rewritten(data, data.root / "records", split={3: split, 5: "test", 6: "train", 8: "validation"})
    texts = data.records.strings("text").take([3, 5, 6, 8])
    outcome = check(data, sets={"some": texts})
    assert "1 records are in no split" in errors(outcome)["splits"]
    assert outcome.failing["evaluation leakage"].tolist() == [6]


@pytest.mark.parametrize(("most", "passes"), [(0.0, True), (0.01, True)])
def test_data_without_a_failing_row_pass_at_any_limit(most: float, passes: bool, data: Any) -> None:
    assert ("quarantine" not in errors(check(data, max_quarantine_fraction=most))) == passes


@pytest.mark.parametrize(("most", "passes"), [(2 / 230, True), (1.99 / 230, False)])
def test_as_many_rows_may_fail_as_the_limit_says(most: float, passes: bool, data: Any) -> None:
    train = [row for row, split in enumerate(data.records.strings("split").take(slice(None))) if split == "train"][:2]
    outcome = check(data, max_quarantine_fraction=most, sets={"a": data.records.strings("text").take(train)})
    assert outcome.failing["evaluation leakage"].tolist() == train
    assert ("quarantine" not in errors(outcome)) == passes
