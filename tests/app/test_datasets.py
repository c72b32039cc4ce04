"""Datasets of the catalog: what is saved is loaded, what is incomplete does not exist, what is wrong is refused."""

import functools
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kedro.io import AbstractDataset, DatasetError
from tests.data.corpus.examples import word_tokenizer

from mm_ldlm.app.datasets import (
    FiguresDataset,
    JsonDataset,
    RunDataset,
    SamplesDataset,
    StoreDataset,
    TableDataset,
    TokenizerDataset,
    ValidatedDataset,
)
from mm_ldlm.data.store import NOT_NEEDED, Manifest, write_store
from mm_ldlm.pipelines.sampling.pipeline import _table

SCHEMA = pa.schema([("id", pa.string()), ("value", pa.list_(pa.float32()))])


def written(folder: Path, kind: str = "rows") -> Manifest:
    columns = {"id": ["a", "b", "c"], "value": [[1.0] * 20, [float("nan")], []]}
    return write_store(folder, [columns], kind=kind, schema=SCHEMA, shard_rows=2)


@pytest.mark.parametrize(
    ("dataset", "value"),
    [
        (lambda path: JsonDataset(filepath=str(path / "x.json")), {"a": [1, "ü", None]}),
        (lambda path: JsonDataset(filepath=str(path / "x.json"), holds="list"), [1, 2]),
        (lambda path: JsonDataset(filepath=str(path / "x.json"), holds="numbers"), {"a": 1.5}),
        (lambda path: RunDataset(filepath=str(path / "x.json")), {"name": "run-1"}),
        (lambda path: TokenizerDataset(filepath=str(path / "folder")), word_tokenizer("a", "b")),
    ],
)  # fmt: skip
def test_what_is_saved_is_loaded_and_exists_only_then(dataset: Any, value: Any, tmp_path: Path) -> None:
    entry: AbstractDataset[Any, Any] = dataset(tmp_path)
    assert not entry.exists()
    with pytest.raises(DatasetError):
        entry.load()
    for _ in range(2):  # a second time as well
        entry.save(value)
        assert entry.exists()
        loaded = entry.load()
        assert getattr(loaded, "fingerprint", loaded) == getattr(value, "fingerprint", value)


@pytest.mark.parametrize(
    ("holds", "content"),
    [
        *((holds, content) for holds in ("mapping", "list", "numbers") for content in ("{", "3", "null", "")),
        ("mapping", '["a"]'), ("list", '{"a": "b"}'), ("numbers", '["a"]'), ("numbers", '{"a": "b"}'),
    ],
)  # fmt: skip
def test_a_json_file_of_another_form_is_refused(holds: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    entry = JsonDataset(filepath=str(tmp_path / "x.json"), holds=holds)
    with pytest.raises(DatasetError, match=r"x\.json"):
        entry.load()


def test_a_store_is_committed_by_its_manifest(tmp_path: Path) -> None:
    entry = StoreDataset(filepath=str(tmp_path), kind="rows")
    manifest = written(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert not entry.exists()
    for made in (manifest, replace(manifest, meta={"made": "again"})):
        entry.save(made)
        assert (entry.exists(), entry.load().manifest) == (True, made)
    assert entry.load().table([0, 1, 2]).column("id").to_pylist() == ["a", "b", "c"]
    with pytest.raises(DatasetError, match="other"):
        StoreDataset(filepath=str(tmp_path), kind="other").load()


def test_an_optional_store_may_be_absent(tmp_path: Path) -> None:
    entry = StoreDataset(filepath=str(tmp_path / "no"), kind="rows", optional=True)
    entry.save(NOT_NEEDED)
    assert entry.load() is None
    kinds: Any = (StoreDataset, {"kind": "rows"}), (TokenizerDataset, {}), (ValidatedDataset, {})
    for needed in (kind(filepath=str(tmp_path / "no"), **more) for kind, more in kinds):
        for use in (needed.load, functools.partial(needed.save, NOT_NEEDED)):
            with pytest.raises(DatasetError):
                use()


def test_previews_are_short_json(tmp_path: Path) -> None:
    written(tmp_path / "store")
    store = StoreDataset(filepath=str(tmp_path / "store"), kind="rows")
    table = TableDataset(filepath=str(tmp_path / "table.parquet"))
    table.save(pd.DataFrame({"b": [[1.0] * 20, [2.0]], "a": [float("inf"), 1.0]}))
    for preview, rows in ((store.preview(2), 2), (store.preview(), 3), (table.preview(1), 1), (table.preview(), 2)):
        assert len(json.dumps(preview, allow_nan=False)) < 400
        assert len(preview["data"]) == rows
    assert [preview["columns"], *preview["data"]] == [
        ["b", "a"], ["[1, 1, 1, 1, 1, 1, 1, 1, …] (20)", "inf"], ["[2]", 1.0]
    ]  # fmt: skip
    table.save(pd.DataFrame({"a": []}))
    assert table.preview()["data"] == []
    assert StoreDataset(filepath=str(tmp_path / "no"), kind="rows", optional=True).preview()["data"] == []


def test_a_figure_that_is_a_pipe_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"data": [], "layout": {}}')
    assert FiguresDataset(filepath=str(tmp_path)).load()["a"]().to_dict()["data"] == []
    os.mkfifo(tmp_path / "b.json")
    with pytest.raises(DatasetError, match="pipe"):
        FiguresDataset(filepath=str(tmp_path)).load()


def samples(texts: list[str], *, step: int, keep: bool = False) -> pd.DataFrame:
    frame = pd.DataFrame({"text": texts, "latent": [np.ones(2, np.float32)] * len(texts)})
    weights = {"run": "r", "checkpoint": f"step-{step}", "digest": str(step), "weights": "last"}
    task: Any = SimpleNamespace(columns=dict.fromkeys(frame, "object"), requested=not keep)
    model: Any = SimpleNamespace(parts=SimpleNamespace(weights=weights))
    return _table([frame], task, model, {"parameters": {}, "seed": 0})


def test_samples_that_were_not_requested_keep_those_of_the_same_weights_only(tmp_path: Path) -> None:
    """Pitfall 27: samples of an earlier checkpoint are never evaluated as those of the current one."""
    entry = SamplesDataset(filepath=str(tmp_path / "x.parquet"), vectors="latent")
    entry.save(samples(["a"], step=1))
    entry.save(samples([], step=1, keep=True))
    assert entry.load()["text"].tolist() == ["a"]
    assert np.load(tmp_path / "x.npy").shape == (1, 2)
    entry.save(samples([], step=2, keep=True))
    assert len(entry.load()) == 0
    assert not (tmp_path / "x.npy").exists()
    for content in (b"damaged", pd.DataFrame({"text": ["of another program"]}).to_parquet()):
        (tmp_path / "x.parquet").write_bytes(content)
        entry.save(samples(["b"], step=2, keep=True))
        assert entry.load()["text"].tolist() == ["b"]


def test_a_run_that_is_chosen_by_its_path_replaces_the_file(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run-1/checkpoints/step-00000005"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run-1/config.json").write_text("{}")
    (checkpoint / "COMPLETE").touch()
    entry = RunDataset(filepath=str(tmp_path / "run.json"), chosen=str(checkpoint))
    assert entry.exists()
    assert (entry.load()["name"], entry.load()["step"]) == ("run-1", 5)
