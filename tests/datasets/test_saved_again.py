"""Catalog entries that are saved a second time: what they load then is what was saved last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kedro.io import DatasetError
from mm_ldlm.app.datasets.samples import KEEP

from mm_ldlm.app.datasets import RunDataset, SamplesDataset, StoreDataset, ValidatedDataset, WorkspaceDataset
from mm_ldlm.data.store import StoreWriter
from mm_ldlm.training.checkpoints.provenance import MADE_BY

SCHEMA = pa.schema([("row", pa.int64())])
WEIGHTS = {"run": "r", "checkpoint": "step-1", "digest": "d", "weights": "last"}


def test_a_store_that_was_written_again_is_committed_again(tmp_path: Path) -> None:
    entry = StoreDataset(filepath=str(tmp_path), kind="toy")
    for rows, maker in ((3, "one"), (3, "two"), (5, "two")):
        writer = StoreWriter(tmp_path / "new", kind="toy", schema=SCHEMA)
        writer.append({"row": list(range(rows))})
        manifest = writer.finish(fingerprints={"maker": maker})
        for file in (tmp_path / "new").glob("*.arrow"):
            file.replace(tmp_path / file.name)
        entry.save(manifest)
        found = entry.load()
        assert found is not None
        assert (len(found), found.manifest) == (rows, manifest)


def samples(*vectors: Any, keep: Any = None, **weights: Any) -> pd.DataFrame:
    table = pd.DataFrame({"text": [f"t{i}" for i in range(len(vectors))], "latent": list(vectors)})
    table.attrs[MADE_BY] = {**WEIGHTS, **weights, "seed": 1}
    if keep is not None:
        table.attrs[KEEP] = keep
    return table


def test_a_table_that_was_not_requested_replaces_those_of_other_weights_alone(tmp_path: Path) -> None:
    entry = SamplesDataset(filepath=str(tmp_path / "s.parquet"), vectors="latent")
    entry.save(samples(keep=WEIGHTS))
    assert len(entry.load()) == 0, "there was none before"
    assert not (tmp_path / "s.npy").exists()
    entry.save(samples([1.0, 2.0], [3.0, 4.0]))
    entry.save(samples(keep=WEIGHTS))
    stored = np.load(tmp_path / "s.npy")
    assert (stored.tolist(), stored.dtype) == ([[1, 2], [3, 4]], np.float32)
    assert entry.load()["text"].tolist() == ["t0", "t1"]
    for name in WEIGHTS:
        entry.save(samples([1.0, 2.0], [3.0, 4.0]))
        entry.save(samples(keep={**WEIGHTS, name: "other"}))
        assert len(entry.load()) == 0, name
        assert not (tmp_path / "s.npy").exists(), name
    entry.save(samples([5.0], keep=None))
    entry.save(samples([6.0], [7.0]))
    assert np.load(tmp_path / "s.npy").tolist() == [[6], [7]], "a table that was requested is always saved"
    (tmp_path / "s.parquet").write_bytes(b"damaged")
    entry.save(samples(keep=WEIGHTS))
    assert len(entry.load()) == 0


def test_the_reference_of_a_run_is_the_last_one_and_a_chosen_run_is_not_saved(tmp_path: Path) -> None:
    entry = RunDataset(filepath=str(tmp_path / "run.json"))
    assert not entry.exists()
    for name in ("a", "b"):
        entry.save({"name": name})
        assert (entry.exists(), entry.load()) == (True, {"name": name})
    chosen = RunDataset(filepath=str(tmp_path / "none.json"), chosen="runs/x")
    assert chosen.exists()
    assert chosen._describe()["chosen"] == "runs/x"
    with pytest.raises(DatasetError, match="a run that is chosen by its path is not trained"):
        chosen.save({"name": "c"})
    assert not (tmp_path / "none.json").exists()


def test_a_workspace_keeps_what_is_in_it(tmp_path: Path) -> None:
    entry = WorkspaceDataset(filepath=str(tmp_path / "w"))
    assert entry.exists()
    (entry.load() / "part").write_text("kept")
    assert [file.read_text() for file in entry.load().iterdir()] == ["kept"]


def test_a_folder_without_its_manifest_is_no_dataset(tmp_path: Path) -> None:
    entry = ValidatedDataset(filepath=str(tmp_path))
    assert not entry.exists()
    (tmp_path / "dataset.json").write_text("{}")
    assert entry.exists()


def test_a_preview_has_as_many_rows_as_are_asked_for(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, kind="toy", schema=SCHEMA)
    writer.append({"row": list(range(25))})
    writer.finish()
    entry: Any = StoreDataset(filepath=str(tmp_path), kind="toy")
    for asked, shown in ((3, 3), (25, 25), (40, 25)):
        assert [row for (row,) in entry.preview(nrows=asked)["data"]] == list(range(shown))
    assert len(entry.preview()["data"]) == 20
