"""Validation of all stores together: damage of any of them, records of no split, and the fraction that may fail."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mm_ldlm.data.latents.checks import Outcome, validate

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.latents import extract, worker
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.extras.layout import export as layout
from mm_ldlm.families.images import store as images
from mm_ldlm.families.images.decoding import ImageLimits


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
    outcome = check(data, stores=stores)
    assert outcome.report["fingerprints"] == {name: store.manifest.fingerprint for name, store in stores.items()}
    found = errors(outcome)
    assert (harm in found) if harm else not found
    if harm is not None:
        assert found[harm].startswith("latents: " if kind == "images" else f"{kind}: ")
        assert str(data.root / kind) in found[harm]
        assert harm != "checksum" or harm not in errors(check(data, stores=stores, verify_checksums=False))


def test_a_shard_that_cannot_be_read_is_counted_by_its_rows(data: Any) -> None:
    """The manifest has the checksum of the damaged bytes, so that only their form is wrong."""
    folder = data.root / "latents"
    manifest = Manifest.read(folder)
    shard = manifest.shards[-1]
    path = folder / shard.name
    path.write_bytes(bytes(shard.bytes))
    changed = dataclasses.replace(shard, sha256=file_sha256(path))
    dataclasses.replace(manifest, shards=(*manifest.shards[:-1], changed)).write(folder)
    found = {finding["check"]: finding for finding in check(data).report["findings"]}
    assert (found["unreadable shard"]["count"], found["unreadable shard"]["severity"]) == (shard.rows, "error")
    assert shard.name in found["unreadable shard"]["message"]
    assert 1 < shard.rows < manifest.rows


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


# -- stores that are kept, continued or exported -----------------------------------------------------------------------


def test_latents_of_other_records_of_the_same_number_are_not_exported(data: Any, tmp_path: Path) -> None:
    rewritten(data, tmp_path / "records", text={3: "another text."})
    other = ShardStore.open(tmp_path / "records", "records")
    assert len(other) == len(data.latents)
    with pytest.raises(StoreError, match="the latents belong to other records"):
        layout.write_layout(tmp_path / "x", other, tokenizer=data.tokenizer, latents=data.latents)
    assert not (tmp_path / "x").exists()


def test_the_progress_of_a_continued_embedding_counts_the_missing_rows(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 4):
        (data.root / "latents" / f"part-{number:06d}.arrow").unlink()
    asked: list[int] = []
    monkeypatch.setattr(extract, "_watch", lambda plan, rows, *, shown: asked.append(rows) or contextlib.nullcontext())
    data.extract()
    assert asked == [80], "50 rows of shard 1 and 30 of the last one"


def test_the_manifest_names_the_first_ten_rows_that_are_not_finite_and_nothing_of_this_machine(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data.root / "latents" / "manifest.json").unlink()
    for path in (data.root / "latents").glob("part-*.arrow"):
        path.unlink()
    real = worker._write

    def write(plan: Any, number: int, ids: Any, vectors: Any, *rest: Any) -> None:
        vectors[[0, 2, 4, 6], 1] = np.nan
        real(plan, number, ids, vectors, *rest)

    monkeypatch.setattr(worker, "_write", write)
    data.extract(non_finite="quarantine")
    meta = Manifest.read(data.root / "latents").meta
    rows = [50 * shard + row for shard in range(5) for row in (0, 2, 4, 6)]
    assert meta["non_finite"] == {"count": 20, "ids": data.records.strings("id").take(rows[:10])}
    assert meta["encoder_config"] == data.encoder.portable()
    assert data.encoder.path not in (data.root / "latents" / "manifest.json").read_text()


def test_images_are_made_again_where_a_shard_is_missing_or_height_and_width_change_places(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_vector", lambda records, name, meta, size, limits: np.ones(8, np.float32))

    def store(height: int, width: int) -> Manifest:
        size = images.ImagesConfig(height=height, width=width, channels=1)
        return images.store_images(data.records, config=size, limits=ImageLimits(), workspace=tmp_path)

    made = store(2, 4)
    assert (store(4, 2).meta["image_size"], made.meta["image_size"]) == ([4, 2, 1], [2, 4, 1])
    (tmp_path / "part-000000.arrow").unlink()
    with pytest.raises(StoreError, match=r"part-000000\.arrow: this shard is missing"):
        store(4, 2)
