"""The manifest of a validated dataset: what it names, opens and refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.data import Dataset, commit
from mm_ldlm.data.dataset import NAME, NORMALISERS
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import StoreWriter

TEXTS = [f"w{i} w{(i * 3) % 20} " + "w1 " * (i % 4) for i in range(20)]
SPLITS = ["test" if i % 5 == 0 else "train" for i in range(20)]
LATENTS = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)


@pytest.fixture
def make(write_dataset: Any, tmp_path: Path) -> Any:
    return lambda **options: write_dataset(tmp_path / "data", TEXTS, SPLITS, **options)


def test_a_dataset_of_texts_and_latents(make: Any) -> None:
    made = make(latents=LATENTS)
    found = Dataset.open(made.directory)
    assert found.fingerprint == made.fingerprint
    assert set(found.fingerprints) == {"records", "tokens", "index", "tokenizer", "latents", "normaliser", "encoder"}
    assert isinstance(found.latents, LatentStore)
    np.testing.assert_array_equal(found.latents.take(slice(None)), LATENTS)
    assert (found.shape.vocab_size, found.shape.max_length, found.shape.latent_dim) == (23, 12, 6)
    assert (found.shape.pad_id, found.shape.mask_id) == (found.tokenizer.pad_id, found.tokenizer.mask_id)
    assert found.token_vectors is None
    assert "latents" in found
    assert found.folder("latents") == made.directory.parent / "latents"


def test_a_dataset_of_texts_alone_has_no_latents(make: Any) -> None:
    found = make()
    assert found.latents is None
    assert found.normaliser is None
    assert found.shape.latent_dim is None
    assert "encoder" not in found.fingerprints
    with pytest.raises(StoreError, match=r"has no latents .*kedro run --pipelines=embedding,validation"):
        found.require("latents")


def test_rows_and_lengths_of_a_split(make: Any) -> None:
    found = make(shard_rows=3)  # over the edges of shards
    assert found.rows("test").tolist() == [0, 5, 10, 15]
    assert found.lengths("test").tolist() == [len(TEXTS[i].split()) for i in (0, 5, 10, 15)]
    assert len(found.rows("train")) == 16
    assert found.rows("validation").tolist() == []
    assert found.rows("validation").dtype == np.int64


def test_opening_reads_the_manifest_only(make: Any) -> None:
    made = make(latents=LATENTS)
    for name in ("records", "tokens", "latents", "tokenizer"):
        shutil.rmtree(made.folder(name))
    found = Dataset.open(made.directory)
    assert len(found.index) == 20
    with pytest.raises(StoreError, match="the store is not finished"):
        _ = found.latents


def test_a_store_that_changed_after_validation_is_refused(make: Any, write_dataset: Any, tmp_path: Path) -> None:
    made = make(latents=LATENTS)
    other = write_dataset(tmp_path / "other", TEXTS, SPLITS, latents=LATENTS + 1)
    for name in ("latents", "normaliser"):
        shutil.rmtree(made.folder(name))
        shutil.copytree(other.folder(name), made.folder(name))
    found = Dataset.open(made.directory)
    assert len(found.records) == 20
    for name in ("latents", "normaliser"):
        with pytest.raises(FingerprintError, match=rf"the {name} changed after validation"):
            found.require(name)
    with pytest.raises(FingerprintError):
        found.check()


def test_a_dataset_moves_with_its_stores(make: Any, tmp_path: Path) -> None:
    made = make(latents=LATENTS)
    shutil.move(made.directory.parent, tmp_path / "elsewhere")
    moved = Dataset.open(tmp_path / "elsewhere" / "dataset")
    moved.check()
    assert moved.fingerprint == made.fingerprint


def test_stores_that_are_named_by_a_link_are_found_where_they_are(make: Any, tmp_path: Path) -> None:
    made = make(latents=LATENTS)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    link = tmp_path / "deep" / "er" / "link"
    link.symlink_to(made.directory.parent)
    for target in (link / "again", made.directory.parent / "direct"):
        found = commit(target, stores={name: link / name for name in made.names})
        assert json.loads((target / NAME).read_text())["stores"]["tokens"]["path"] == "../tokens"
        Dataset.open(made.directory.parent / target.name).check()
        assert found.fingerprint == made.fingerprint


def test_any_further_store_is_a_field(make: Any) -> None:
    """An objective of another package may ask for a field that this project has never heard of."""
    made = make(latents=LATENTS)
    stores = {name: made.folder(name) for name in made.names}
    more = commit(made.directory.parent / "more", stores={**stores, "labels": made.folder("latents")})
    assert len(more.require("labels")) == 20
    assert more.fingerprint != made.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "not readable as JSON"),
        (lambda text: "[" * 100_000, "not readable as JSON .*nested too deeply"),
        (lambda text: "[]", "expected format version 1, found None"),
        (lambda text: text.replace('"format_version": 1', '"format_version": 7'), "expected format version 1, found 7"),
        (lambda text: text.replace('"tokens"', '"tokans"'), "names no tokens"),
        (lambda text: text.replace('"path"', '"pith"'), "must map each name to its path"),
        (lambda text: text.replace('"encoder": "0', '"encoder": "1'), "the file was edited"),
    ],
)
def test_an_ill_formed_manifest_is_refused(make: Any, change: Any, message: str) -> None:
    path = make(latents=LATENTS).directory / NAME
    path.write_text(change(path.read_text()))
    with pytest.raises(StoreError, match=message):
        Dataset.open(path.parent)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "token_vectors",
            "latents",
            "expected the store of the token_vectors, made from tokenizer, found one made from",
        ),
        ("latents", "token_vectors", "expected the store of the latents, made from records, found one made from"),
        ("latents", "records", "of kind 'latents', found one of kind 'records'"),
        ("tokens", "index", "of kind 'tokens', found one of kind 'index'"),
        ("token_vectors", "tokens", "of kind 'latents', found one of kind 'tokens'"),
    ],
)
def test_a_store_is_not_committed_as_another(make: Any, name: str, other: str, message: str, tmp_path: Path) -> None:
    made = make(latents=LATENTS, token_vectors=np.zeros((23, 6), np.float32))
    stores = {each: made.folder(each) for each in made.names}
    commit(tmp_path / "target", stores=stores)
    with pytest.raises(StoreError, match=message):
        commit(tmp_path / "target", stores={**stores, name: made.folder(other)})


def test_a_missing_manifest_names_the_pipeline_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no validated dataset here. Run `kedro run --pipeline=validation`"):
        Dataset.open(tmp_path)


def test_stores_that_were_not_made_from_one_another_are_not_committed(
    make: Any, write_dataset: Any, tmp_path: Path
) -> None:
    made = make(latents=LATENTS)
    stores = {name: made.folder(name) for name in made.names}
    other = write_dataset(tmp_path / "other", TEXTS[::-1], SPLITS, latents=LATENTS[:, :4])
    target = tmp_path / "target"
    with pytest.raises(FingerprintError, match=r"the tokens were made with records \w+, but the records in"):
        commit(target, stores=stores | {"records": other.folder("records")})
    with pytest.raises(StoreError, match="expected a normaliser of dim 6, found 4"):
        commit(target, stores=stores | {"normaliser": other.folder("normaliser")})
    with pytest.raises(StoreError, match="needs their normaliser"):
        commit(target, stores={name: path for name, path in stores.items() if name != "normaliser"})
    with pytest.raises(StoreError, match="found no index among"):
        commit(target, stores={name: path for name, path in stores.items() if name != "index"})
    assert not (target / NAME).exists()


@pytest.mark.parametrize("name", ["images", "token_states"])
def test_every_store_of_vectors_needs_a_normaliser_of_its_dimension(make: Any, name: str, tmp_path: Path) -> None:
    made = make(latents=LATENTS)
    stores = {each: made.folder(each) for each in made.names}
    StoreWriter(tmp_path / name, kind=name, schema=pa.schema([("value", pa.float32())])).finish(meta={"dim": 5})
    stores[name] = tmp_path / name
    with pytest.raises(StoreError, match=f"a dataset with {name} needs their normaliser"):
        commit(tmp_path / "target", stores=stores)
    with pytest.raises(StoreError, match="expected a normaliser of dim 5, found 6"):
        commit(tmp_path / "target", stores=stores | {NORMALISERS[name]: made.folder("normaliser")})
    assert not (tmp_path / "target" / NAME).exists()


def test_the_manifest_is_plain_json_with_relative_paths(make: Any) -> None:
    made = make(latents=LATENTS)
    document = json.loads((made.directory / NAME).read_text())
    assert document["stores"]["tokens"]["path"] == "../tokens"
    assert document["fingerprint"] == made.fingerprint


def test_the_room_imports_nothing_that_a_bare_worker_lacks() -> None:
    code = (
        "import sys, mm_ldlm.data, mm_ldlm.data.sentences; "
        "print([n for n in ('kedro', 'mlflow', 'datasets', 'transformers', 'pandas') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
