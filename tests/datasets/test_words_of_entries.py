"""Catalog entries to the letter: what each refuses in which words, and which options reach Kedro's own dataset."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kedro.io import DatasetError
from kedro.pipeline import Pipeline, node
from mm_ldlm.app.datasets.locks import FolderLocks

from mm_ldlm.app.datasets import FolderDataset, RunDataset, StoreDataset, ValidatedDataset, WorkspaceDataset, locks
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.store import Manifest, StoreWriter

HOLDS = "mm_ldlm.data.latents.normaliser:Normaliser"


def written(folder: Path, *, kind: str = "toy", shards: int = 3) -> Manifest:
    writer = StoreWriter(folder, kind=kind, schema=pa.schema([("row", pa.int64())]), shard_rows=2)
    writer.append({"row": list(range(2 * shards))})
    return writer.finish()


def cause(call: Any, *given: Any) -> str:
    """The message of the error that Kedro wraps, or of the error itself."""
    with pytest.raises(DatasetError) as error:
        call(*given)
    return str(error.value.__cause__ if isinstance(error.value.__cause__, DatasetError) else error.value)


def test_a_store_is_saved_by_the_manifest_of_its_own_kind_with_all_of_its_shards(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    entry: Any = StoreDataset(filepath=str(tmp_path), kind="toy")
    other: Any = StoreDataset(filepath=str(tmp_path), kind="tokens")
    assert "expected the Manifest of a 'toy' store, found dict." in cause(entry.save, {})
    assert "expected the manifest of a 'tokens' store, found that of a 'toy' store." in cause(other.save, manifest)
    names = [shard.name for shard in manifest.shards]
    assert len(names) == 3
    for name in names[1:]:
        (tmp_path / name).unlink()
    assert (
        f"the manifest names 3 shards, 2 of them are not in {tmp_path} (first: {names[1]}). The node must write to the "
        "workspace of this entry."
    ) in cause(entry.save, manifest)


def test_a_store_of_another_kind_is_not_loaded(tmp_path: Path) -> None:
    written(tmp_path, kind="tokens")
    assert len(StoreDataset(filepath=str(tmp_path), kind="tokens").load() or ()) == 6
    with pytest.raises(DatasetError) as error:
        StoreDataset(filepath=str(tmp_path), kind="records").load()
    assert isinstance(error.value.__cause__, StoreError)
    assert "records" in str(error.value.__cause__)


@pytest.mark.parametrize(
    "holds", ["mm_ldlm_other.rooms:Room", "mm_ldlm", "mm_ldlm:MMLDLM", "os.path:join", "mm_ldlm.x:"]
)
def test_only_classes_of_the_rooms_of_this_project_are_held(holds: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail("imported"))
    (tmp_path / "m").touch()
    entry = FolderDataset(filepath=str(tmp_path), holds=holds, marker="m")
    wanted = f"'holds: {holds}' must name a class of this project as mm_ldlm.room.module:Class."
    assert wanted in cause(entry.load)
    assert wanted in cause(entry.save, object())


def test_a_folder_refuses_the_object_of_another_class_by_both_names(tmp_path: Path) -> None:
    entry = FolderDataset(filepath=str(tmp_path / "n"), holds=HOLDS, marker="normaliser.json")
    assert f"expected a {HOLDS} for this catalog entry, found {type(tmp_path).__name__}." in cause(entry.save, tmp_path)
    assert f"{tmp_path / 'n'}: no normaliser.json found. Run the pipeline that writes it first." in cause(entry.load)
    assert not (tmp_path / "n").exists()
    entry.save(Normaliser("standard", np.zeros(2), np.ones(2), False))
    assert entry.exists()


def test_a_workspace_says_that_nodes_fill_it(tmp_path: Path) -> None:
    entry: Any = WorkspaceDataset(filepath=str(tmp_path))
    assert f"{tmp_path} is a workspace, which nodes fill. Remove it from the outputs of the node." in cause(
        entry.save, "x"
    )


def test_a_dataset_without_folders_has_none_to_name(tmp_path: Path) -> None:
    entry: Any = ValidatedDataset(filepath=str(tmp_path))
    assert (
        "expected the folder of the store 'a' in the catalog entry of the dataset, found only none. Add it there under "
        "stores."
    ) in cause(entry.save, {"a": None})


def test_the_options_of_a_reference_are_those_of_json(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    entry = RunDataset(filepath=str(path), save_args={"indent": 7}, metadata={"a": 1})
    entry.save({"name": "x"})
    assert path.read_text() == '{\n       "name": "x"\n}'
    assert entry.metadata == {"a": 1}
    chosen = RunDataset(filepath=str(path), chosen="runs/x", metadata={"a": 2})
    assert chosen.metadata == {"a": 2}
    assert "a run that is chosen by its path is not trained. Remove `run` from --params." in cause(chosen.save, {})


# -- locks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the locks of files, in order: ("take", part, use), ("share", part), ("release", part)."""
    asked: list[Any] = []

    def take(path: Path, use: str) -> Any:
        asked.append(("take", path.name, use))
        if asked.count(asked[-1]) > 1:
            raise KeyboardInterrupt
        return SimpleNamespace(
            path=path, release=lambda: asked.append(("release", path.name)),
            share=lambda: asked.append(("share", path.name)) or True,
        )  # fmt: skip

    monkeypatch.setattr(locks.lock, "take", take)
    monkeypatch.setattr("kedro.framework.project.pipelines", {})
    return asked


def steps(**outputs: list[str]) -> Pipeline:
    """A node of each pipeline, which makes these outputs of nothing."""
    return Pipeline([node(lambda: 1, None, names if len(names) > 1 else names[0], name=tag, tags=tag)
                     for tag, names in outputs.items()])  # fmt: skip


def test_each_part_is_shared_once_all_of_its_own_outputs_are_saved(taken: list[Any], tmp_path: Path) -> None:
    folders = {"data": tmp_path / "d", "features": tmp_path / "f", "results": tmp_path / "r"}
    held = FolderLocks()
    held.take(steps(ingestion=["a", "b"], embedding=["c"], training=["e"]), folders)
    assert taken == [("take", f".{part}.lock", "write") for part in folders]
    taken.clear()
    for name, shared in (("a", []), ("c", ["features"]), ("e", []), ("x", []), ("b", ["data"])):
        held.saved(name)
        assert taken == [("share", f".{part}.lock") for part in shared], name
        taken.clear()
    held.release()
    assert taken == [("release", f".{part}.lock") for part in folders]
    taken.clear()
    held.release()
    assert taken == [], "of no lock twice"


def test_an_interrupted_run_releases_the_locks_that_it_has(taken: list[Any], tmp_path: Path) -> None:
    taken.append(("take", ".features.lock", "write"))
    held = FolderLocks()
    with pytest.raises(KeyboardInterrupt):
        held.take(steps(ingestion=["a"], embedding=["c"]), dict.fromkeys(("data", "features"), tmp_path))
    assert taken[-1] == ("release", ".data.lock")
    assert held._held == {}


def test_a_folder_that_cannot_be_written_to_is_named_with_the_reason_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, use: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(locks.lock, "take", refuse)
    monkeypatch.setattr("kedro.framework.project.pipelines", {})
    with pytest.raises(ConfigurationError) as error:
        FolderLocks().take(steps(ingestion=["a"]), {"data": tmp_path})
    assert str(error.value) == (
        f"the data folder cannot be written to ([Errno 13] Permission denied: '{tmp_path / '.data.lock'}'). Choose "
        "another one: `--params data=FOLDER`, or 'data' in the environment's globals.yml."
    )
