from __future__ import annotations

import copy
import json
import shutil
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kedro.io import DatasetError
from mm_ldlm.app.datasets.preview import preview_of
from mm_ldlm.app.datasets.run import RunDataset
from mm_ldlm.app.datasets.table import TableDataset

from mm_ldlm.app.datasets import FolderDataset, StoreDataset, ValidatedDataset, WorkspaceDataset
from mm_ldlm.data import Dataset
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.latents.store import schema as latent_schema
from mm_ldlm.data.latents.store import table as latent_table
from mm_ldlm.data.store import NOT_NEEDED, Manifest, ShardStore, StoreWriter
from mm_ldlm.data.store.manifest import NAME

SCHEMA = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("length", pa.int32())])


def write(directory: Path, *, rows: int = 5) -> Manifest:
    writer = StoreWriter(directory, kind="tokens", schema=SCHEMA, shard_rows=2)
    ids = [list(range(i * 3)) for i in range(rows)]
    writer.append({"id": [str(i) for i in range(rows)], "input_ids": ids, "length": [len(i) for i in ids]})
    return writer.finish(fingerprints={"records": "abc"})


def test_workspace_is_made_on_load_and_never_saved_to(tmp_path: Path) -> None:
    dataset = WorkspaceDataset(filepath=str(tmp_path / "a" / "b"))
    assert dataset.load() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(DatasetError, match="workspace"):
        dataset.save("anything")


def test_store_exists_only_with_its_manifest(tmp_path: Path) -> None:
    dataset = StoreDataset(filepath=str(tmp_path), kind="tokens")
    manifest = write(tmp_path)
    (tmp_path / NAME).unlink()
    assert not dataset.exists()
    dataset.save(manifest)
    assert dataset.exists()
    assert len(dataset.load()) == 5
    assert dataset.load().manifest == manifest


def test_saving_the_same_manifest_again_touches_nothing(tmp_path: Path) -> None:
    manifest = write(tmp_path)
    before = (tmp_path / NAME).stat().st_mtime_ns
    StoreDataset(filepath=str(tmp_path), kind="tokens").save(manifest)
    assert (tmp_path / NAME).stat().st_mtime_ns == before


def test_store_refuses_another_kind_and_missing_shards(tmp_path: Path) -> None:
    manifest = write(tmp_path / "there")
    with pytest.raises(DatasetError, match="'records'"):
        StoreDataset(filepath=str(tmp_path / "there"), kind="records").save(manifest)
    with pytest.raises(DatasetError, match="3 of them are not in"):
        StoreDataset(filepath=str(tmp_path / "elsewhere"), kind="tokens").save(manifest)
    with pytest.raises(DatasetError, match="Manifest"):
        StoreDataset(filepath=str(tmp_path / "there"), kind="tokens").save({"rows": 5})


def test_store_previews_its_first_rows(tmp_path: Path) -> None:
    write(tmp_path)
    dataset = StoreDataset(filepath=str(tmp_path), kind="tokens")
    preview = dataset.preview(nrows=4)
    assert preview["columns"] == ["id", "input_ids", "length"]
    assert preview["data"][3] == ["3", "[0, 1, 2, 3, 4, 5, 6, 7, …] (9)", 9]
    # kedro-viz asks for the object, not for its name in quotes
    assert typing.get_type_hints(StoreDataset.preview)["return"] is StoreDataset.preview.__annotations__["return"]


def test_a_preview_has_the_rows_that_are_asked_for_in_values_that_json_has(tmp_path: Path) -> None:
    columns = {
        "number": [1.5, float("nan"), float("inf"), -float("inf"), None], "word": ["a", None, "c", "d", "e"],
        "list": [[0.1, 2.0], [1 / 3], [], [1.0] * 8, [1.0] * 9], "flag": [True, False, True, None, False],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    entry = TableDataset(filepath=str(tmp_path / "t.parquet"))
    preview = entry.preview()
    assert preview["columns"] == list(columns)
    assert preview["index"] == [0, 1, 2, 3, 4]
    ones = ", ".join(["1"] * 8)
    assert preview["data"] == [
        [1.5, "a", "[0.1, 2]", True], ["nan", None, "[0.333]", False], ["inf", "c", "[]", True],
        ["-inf", "d", f"[{ones}]", None], [None, "e", f"[{ones}, …] (9)", False],
    ]  # fmt: skip
    json.dumps(preview, allow_nan=False)
    assert [len(entry.preview(nrows=count)["data"]) for count in (1, 3, 99)] == [1, 3, 5]
    pq.write_table(pa.table({"x": list(range(50))}), tmp_path / "long.parquet")
    assert len(TableDataset(filepath=str(tmp_path / "long.parquet")).preview()["data"]) == 20
    assert len(TableDataset(filepath=str(tmp_path / "long.parquet")).preview(nrows=30)["data"]) == 30
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    none = TableDataset(filepath=str(tmp_path / "none.parquet")).preview()
    assert (none["columns"], none["data"]) == (["x"], [])


def test_a_run_that_is_chosen_by_its_path_replaces_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_ldlm.app.datasets.run.chosen_run", lambda path: {"chosen": path})
    file = str(tmp_path / "run.json")
    own, chosen = RunDataset(filepath=file), RunDataset(filepath=file, chosen="/a/run")
    assert (own.exists(), chosen.exists()) == (False, True)
    assert chosen.load() == {"chosen": "/a/run"}
    with pytest.raises(DatasetError, match="a run that is chosen by its path is not trained"):
        chosen.save({"name": "x"})
    own.save({"name": "x"})
    assert (own.exists(), own.load(), chosen.load()) == (True, {"name": "x"}, {"chosen": "/a/run"})


def test_folder_saves_and_loads_by_the_class_named_in_the_catalog(tmp_path: Path) -> None:
    # A manifest is an object of this project that reads itself from a directory; enough to stand in for a tokenizer.
    dataset = FolderDataset(filepath=str(tmp_path / "f"), holds="mm_ldlm.data.store.manifest:Manifest", marker=NAME)
    assert not dataset.exists()
    with pytest.raises(DatasetError, match=f"no {NAME} found") as error:
        dataset.load()
    cause = error.value.__cause__
    assert isinstance(cause, FileNotFoundError), "by which the message of a command names the file"
    assert cause.filename == str(tmp_path / "f" / NAME)
    with pytest.raises(DatasetError, match="found str"):
        dataset.save("not a manifest")


@pytest.mark.parametrize("content", [[], ["another.json"], ["vectors/normaliser.json"], ["normaliser.json/x"]])
def test_a_folder_without_its_marker_is_none(content: list[str], tmp_path: Path) -> None:
    for name in content:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    holds = "mm_ldlm.data.latents.normaliser:Normaliser"
    arguments: Any = {"filepath": str(tmp_path), "holds": holds, "marker": "normaliser.json"}
    assert not FolderDataset(**arguments).exists()
    assert FolderDataset(**arguments, optional=True).load() is None
    with pytest.raises(DatasetError, match=r"no normaliser\.json found"):
        FolderDataset(**arguments).load()


def test_a_folder_holds_the_last_object_that_was_saved(tmp_path: Path) -> None:
    entry = FolderDataset(
        filepath=str(tmp_path / "n"), holds="mm_ldlm.data.latents.normaliser:Normaliser", marker="normaliser.json"
    )
    for kind in ("standard", "one_scale"):
        entry.save(Normaliser(kind, np.zeros(3), np.ones(3), False))
        assert (entry.exists(), entry.load().kind) == (True, kind)
        (tmp_path / "n" / "left").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["n"]
    entry.save(Normaliser("robust", np.zeros(3), np.ones(3), False))
    assert not (tmp_path / "n" / "left").exists()


def test_a_store_of_vectors_is_read_as_float32_and_others_as_plain_stores(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "l", kind="latents", schema=latent_schema(2, "float16"))
    writer.append(latent_table(["a"], np.ones((1, 2)), dtype="float16"))
    writer.finish(meta={"dim": 2})
    vectors = StoreDataset(filepath=str(tmp_path / "l"), kind="latents").load()
    assert type(vectors) is LatentStore
    assert vectors.take([0]).dtype == np.float32
    write(tmp_path / "t")
    assert type(StoreDataset(filepath=str(tmp_path / "t"), kind="tokens").load()) is ShardStore


def test_folder_refuses_classes_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    for holds in ("os:system", "mm_ldlm.data.store.manifest"):
        with pytest.raises(DatasetError, match="must name a class of this project"):
            FolderDataset(filepath=str(tmp_path), holds=holds, marker="x").load()


# -- artifacts that a configuration may not need -----------------------------------------------------------------------


def test_an_optional_store_that_is_not_there_loads_as_none(tmp_path: Path) -> None:
    optional = StoreDataset(filepath=str(tmp_path / "s"), kind="tokens", optional=True)
    assert optional.load() is None
    assert optional.preview() == {"index": [], "columns": [], "data": []}
    optional.save(NOT_NEEDED)
    assert not optional.exists()
    assert not (tmp_path / "s").exists()
    manifest = write(tmp_path / "s")
    assert optional.load().manifest == manifest  # what is there is read, whether or not it is optional
    optional.save(NOT_NEEDED)
    assert optional.load().manifest == manifest  # and is not touched by a configuration that does not need it


def test_a_store_that_is_not_optional_has_to_be_there(tmp_path: Path) -> None:
    required = StoreDataset(filepath=str(tmp_path), kind="tokens")
    with pytest.raises(DatasetError, match="NotNeeded"):
        required.save(NOT_NEEDED)
    with pytest.raises(DatasetError, match="the store is not finished"):
        required.load()


def test_an_optional_folder_loads_as_none(tmp_path: Path) -> None:
    arguments = {"filepath": str(tmp_path / "f"), "holds": "mm_ldlm.data.store.manifest:Manifest", "marker": NAME}
    optional = FolderDataset(**arguments, optional=True)
    assert optional.load() is None
    optional.save(NOT_NEEDED)
    assert not optional.exists()
    with pytest.raises(DatasetError, match="found NotNeeded"):
        FolderDataset(**arguments).save(NOT_NEEDED)


def test_the_marker_stays_itself_when_it_is_copied() -> None:
    assert copy.deepcopy(NOT_NEEDED) is NOT_NEEDED


# -- the validated dataset ---------------------------------------------------------------------------------------------

TEXTS, SPLITS = ["w1 w2", "w3", "w4 w5 w6"], ["train", "train", "test"]


def stores_of(made: Dataset) -> dict[str, Any]:
    return {name: made.require(name) for name in made.names}


def test_a_dataset_is_committed_from_the_stores_that_a_node_holds(write_dataset: Any, tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "d", TEXTS, SPLITS, latents=np.eye(3, 4))
    folders = {name: {"filepath": str(made.folder(name))} for name in ("tokenizer", "normaliser")}
    entry = ValidatedDataset(filepath=str(tmp_path / "d" / "again"), stores=folders)
    assert not entry.exists()
    entry.save(stores_of(made))
    assert entry.exists()
    assert entry.load().fingerprint == made.fingerprint
    entry.save({**stores_of(made), "labels": made.latents})  # a field of another package's objective
    assert "labels" in entry.load()


def test_a_store_without_a_known_folder_is_refused(write_dataset: Any, tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "d", TEXTS, SPLITS)
    folders = {"tokenizer": {"filepath": str(made.folder("tokenizer"))}}
    entry = ValidatedDataset(filepath=str(tmp_path / "d" / "again"), stores=folders)
    with pytest.raises(DatasetError, match=r"folder of the store 'images'.*found only tokenizer.*under stores"):
        entry.save({**stores_of(made), "images": None})
    with pytest.raises(DatasetError, match="by name, found list"):
        entry.save([])
    assert not entry.exists()
    with pytest.raises(DatasetError, match="no validated dataset here"):
        entry.load()
    stores = stores_of(made)
    shutil.rmtree(made.folder("tokens"))
    with pytest.raises(DatasetError, match="the store is not finished"):
        entry.save(stores)


def test_a_preview_shortens_long_lists_and_has_values_of_json(tmp_path: Path) -> None:
    table = pa.table({
        "id": ["a", "b", None], "numbers": [[0.123456] * 8, [1.0] * 9, []], "value": [1.5, float("nan"), float("inf")],
        "count": [1, None, 3], "inner": [{"a": 1}, None, {"a": 2}],
    })  # fmt: skip
    shown = preview_of(table)
    assert shown["index"] == [0, 1, 2]
    assert shown["columns"] == ["id", "numbers", "value", "count", "inner"]
    assert shown["data"] == [
        ["a", "[" + ", ".join(["0.123"] * 8) + "]", 1.5, 1, "{'a': 1}"],
        ["b", "[" + ", ".join(["1"] * 8) + ", …] (9)", "nan", None, None],
        [None, "[]", "inf", 3, "{'a': 2}"],
    ]
    pq.write_table(pa.table({"row": list(range(50))}), tmp_path / "t.parquet")
    stored = TableDataset(filepath=str(tmp_path / "t.parquet"))
    assert stored.preview()["data"] == [[row] for row in range(20)]
    assert stored.preview(nrows=3)["data"] == [[0], [1], [2]]
    pq.write_table(pa.table({"row": pa.array([], pa.int64())}), tmp_path / "t.parquet")
    assert (stored.preview()["columns"], stored.preview()["data"]) == (["row"], [])


def test_the_folder_of_a_store_is_its_own_before_that_of_the_catalog() -> None:
    dataset = ValidatedDataset(
        filepath="x", stores={"records": {"filepath": "catalog"}, "tokenizer": {"filepath": "t"}}
    )
    store: Any = SimpleNamespace(directory=Path("own"))
    assert dataset._folder("records", store) == Path("own")
    assert [dataset._folder(name, None) for name in ("records", "tokenizer")] == [Path("catalog"), Path("t")]
