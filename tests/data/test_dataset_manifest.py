"""The committed dataset: what it names is what is read, wherever it lies; what changed or is damaged is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.damage import refused_or_harmless
from tests.data.corpus.examples import word_tokenizer

from mm_ldlm.core import FingerprintError, StoreError
from mm_ldlm.data.dataset_manifest import NAME, Dataset, Entry, commit
from mm_ldlm.data.store import write_store

TEXTS = [f"w{i} w{(i * 3) % 20} " + "w1 " * (i % 4) for i in range(20)]
SPLITS = ["test" if i % 5 == 0 else "train" for i in range(20)]
LATENTS = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)


@pytest.fixture
def made(write_dataset: Any, tmp_path: Path) -> Dataset:
    vectors = np.ones((23, 6), np.float32)
    found: Dataset = write_dataset(
        tmp_path / "data", TEXTS, SPLITS, latents=LATENTS, token_vectors=vectors, shard_rows=3
    )
    return found


@pytest.fixture
def other(write_dataset: Any, tmp_path: Path) -> Dataset:
    found: Dataset = write_dataset(tmp_path / "other", TEXTS[::-1], SPLITS, latents=LATENTS[:, :4])
    return found


def stores_of(dataset: Dataset) -> dict[str, Path]:
    return {name: dataset.folder(name) for name in dataset.names}


def test_a_dataset_reads_what_it_names_wherever_it_is_moved(made: Dataset, tmp_path: Path) -> None:
    shutil.move(made.directory.parent, tmp_path / "elsewhere")
    found = Dataset.open(tmp_path / "elsewhere" / "dataset")
    found.check()
    assert found.require("records") is found.records
    assert found.fingerprint == made.fingerprint
    assert found.fingerprints.keys() == {*made.names, "encoder"}
    np.testing.assert_array_equal(found.values("latents"), LATENTS)
    shape = found.shape
    assert (shape.vocab_size, shape.max_length, dict(shape.fields)) == (23, 12, {"latents": (6,)})
    for split in ("train", "test", "validation"):
        rows = [row for row, each in enumerate(SPLITS) if each == split]
        assert found.rows(split).tolist() == rows
        assert found.lengths(split).tolist() == [len(TEXTS[row].split()) for row in rows]


def test_stores_that_are_named_through_a_link_are_found_where_they_are(made: Dataset, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    link = tmp_path / "deep" / "er" / "link"
    link.symlink_to(made.directory.parent)
    for target in (link / "again", made.directory.parent / "direct"):
        assert commit(target, stores={name: link / name for name in made.names}).fingerprint == made.fingerprint
        paths = {entry["path"] for entry in json.loads((target / NAME).read_text())["stores"].values()}
        assert paths == {f"../{name}" for name in made.names}
        Dataset.open(made.directory.parent / target.name).check()


def test_pitfall_25_a_store_that_changed_after_validation_is_refused(
    made: Dataset, write_dataset: Any, tmp_path: Path
) -> None:
    changed = write_dataset(tmp_path / "changed", TEXTS, SPLITS, latents=LATENTS + 1)
    for name in ("latents", "normaliser"):
        shutil.rmtree(made.folder(name))
        shutil.copytree(changed.folder(name), made.folder(name))
    found = Dataset.open(made.directory)
    assert len(found.records) == 20
    for name in ("latents", "normaliser"):
        with pytest.raises(FingerprintError, match=rf"{found.folder(name)}.*{found.fingerprints[name]}"):
            found.require(name)
    with pytest.raises(FingerprintError):
        found.check()


def test_a_damaged_document_is_refused_with_its_name(made: Dataset, refuses: Any) -> None:
    def read() -> str:
        found = Dataset.open(made.directory)
        found.check()
        return found.fingerprint

    refused_or_harmless(made.directory / NAME, read, made.directory.parent)
    (made.directory / NAME).unlink()
    with refuses(StoreError, "--pipeline=validation"):
        Dataset.open(made.directory)


@pytest.mark.parametrize(
    "change",
    [
        "records of other texts",
        "latents of token vectors",
        "tokens of an index",
        "tokenizer of other words",
        "token_vectors of no tokenizer",
    ],
)
def test_stores_that_were_not_made_from_one_another_are_not_committed(
    change: str, made: Dataset, other: Dataset, tmp_path: Path
) -> None:
    stores = stores_of(made)
    replaced = {
        "records": other.folder("records"), "latents": made.folder("token_vectors"),
        "tokens": made.folder("index"), "tokenizer": tmp_path / "words", "token_vectors": tmp_path / "vectors",
    }  # fmt: skip
    plain = {"vector": pa.array([[0.0] * 6] * 23, pa.list_(pa.float32(), 6))}
    write_store(tmp_path / "vectors", [plain], kind="token_vectors", schema=pa.table(plain).schema, fingerprints={})
    word_tokenizer("other", "words").save(replaced["tokenizer"])
    name = change.split()[0]
    stores[name] = replaced[name]
    with pytest.raises(StoreError):
        commit(tmp_path / "target", stores=stores)
    assert not (tmp_path / "target" / NAME).exists()


@pytest.mark.parametrize("name", ["records", "tokens", "index"])
def test_a_table_with_a_column_of_another_type_is_refused(name: str, made: Dataset, tmp_path: Path) -> None:
    store = made.require(name)
    table = store.table(slice(None))
    for place, column in enumerate(table.column_names):
        folder = tmp_path / column
        wrong = table.set_column(place, column, pa.array([[0.5]] * len(table)))
        entry = Entry(str(folder), name, write_store(folder, [wrong], kind=name, schema=wrong.schema).fingerprint)
        with pytest.raises(StoreError):
            Dataset(made.directory, {name: entry}, encoder=None).require(name)


def test_what_a_dataset_lacks_is_named_with_the_pipelines_that_make_it(
    write_dataset: Any, tmp_path: Path, refuses: Any
) -> None:
    bare = write_dataset(tmp_path / "bare", TEXTS, SPLITS, token_vectors=np.ones((23, 6)))
    assert "encoder" not in bare.fingerprints
    assert not bare.shape.fields
    with refuses(StoreError, "latents", "embedding,validation"):
        bare.require("latents")
