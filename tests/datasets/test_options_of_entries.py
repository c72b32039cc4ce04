"""Options of catalog entries that reach the files, and files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kedro.io import DatasetError
from mm_ldlm.app.datasets.samples import KEEP
from mm_ldlm.app.datasets.store import READERS

from mm_ldlm.app.datasets import FolderDataset, SamplesDataset, StoreDataset, samples
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.store import NOT_NEEDED, Manifest, StoreWriter
from mm_ldlm.training.checkpoints.provenance import MADE_BY

HOLDS = "mm_ldlm.data.latents.normaliser:Normaliser"
WEIGHTS = {"run": "r", "checkpoint": "step-1", "digest": "d", "weights": "last"}


def table(*texts: str, keep: Any = None) -> pd.DataFrame:
    found = pd.DataFrame({"text": list(texts), "latent": [[float(len(text)), -1.0] for text in texts]})
    found.attrs[MADE_BY] = {**WEIGHTS, "seed": 1}
    if keep is not None:
        found.attrs[KEEP] = keep
    return found


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_the_options_of_saving_and_loading_reach_the_file(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.parquet"
    entry = SamplesDataset(
        filepath=str(path), save_args={"compression": compression}, load_args={"columns": ["latent"]}
    )
    entry.save(table("a", "bb"))
    assert pq.read_metadata(path).row_group(0).column(0).compression == compression.upper()
    assert list(entry.load().columns) == ["latent"]
    assert pq.read_table(path).column_names == ["text", "latent"]


def test_a_table_and_its_vectors_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = samples.write_bytes, []
    monkeypatch.setattr(samples, "write_bytes", lambda path, data: written.append(path) or real(path, data))
    entry = SamplesDataset(filepath=str(tmp_path / "s.parquet"), vectors="latent")
    entry.save(table("a", "bb"))
    assert written == [tmp_path / "s.parquet", tmp_path / "s.npy"]
    assert np.load(tmp_path / "s.npy").tolist() == [[1, -1], [2, -1]]
    entry.save(table())
    assert written[2:] == [tmp_path / "s.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.parquet"]


def test_a_table_without_a_note_of_its_weights_is_replaced(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["of another program"]}), tmp_path / "s.parquet")
    entry = SamplesDataset(filepath=str(tmp_path / "s.parquet"))
    entry.save(table(keep=WEIGHTS))
    assert len(entry.load()) == 0
    plain = pd.DataFrame({"text": ["one"]})
    entry.save(plain)
    entry.save(table(keep=WEIGHTS))
    assert len(entry.load()) == 0


def test_a_folder_is_written_beside_its_place_first(tmp_path: Path) -> None:
    """An object that cannot be saved leaves the earlier one."""
    entry = FolderDataset(filepath=str(tmp_path / "n"), holds=HOLDS, marker="normaliser.json")
    entry.save(Normaliser("standard", np.zeros(3), np.ones(3), False))
    seen: list[Path] = []

    class Failing(Normaliser):
        def save(self, directory: Any) -> None:
            seen.append(Path(directory))
            (Path(directory) / "normaliser.json").write_text("half")
            raise OSError("disk full")

    with pytest.raises(DatasetError, match="disk full"):
        entry.save(Failing("robust", np.zeros(3), np.ones(3), False))
    assert (seen[0].parent, seen[0] != tmp_path / "n") == (tmp_path, True)
    assert (entry.load().kind, [path.name for path in tmp_path.iterdir()]) == ("standard", ["n"])


@pytest.mark.parametrize("optional", [True, False])
def test_only_an_optional_entry_may_stay_empty(optional: bool, tmp_path: Path) -> None:
    folder: Any = FolderDataset(filepath=str(tmp_path / "f"), holds=HOLDS, marker="normaliser.json", optional=optional)
    store: Any = StoreDataset(filepath=str(tmp_path / "s"), kind="toy", optional=optional)
    for entry in (folder, store):
        if optional:
            entry.save(NOT_NEEDED)
            assert entry.load() is None
        else:
            with pytest.raises(DatasetError, match="NotNeeded"):
                entry.save(NOT_NEEDED)
            with pytest.raises(DatasetError):
                entry.load()
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_committed_with_the_manifest_of_the_node_as_a_whole(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, kind="toy", schema=pa.schema([("a", pa.int64())]))
    writer.append({"a": [1, 2, 3]})
    first = writer.finish(fingerprints={"maker": "one"}, meta={"n": 1})
    entry = StoreDataset(filepath=str(tmp_path), kind="toy")
    for change in ({"meta": {"n": 2}}, {"fingerprints": {"maker": "two"}}, {}):
        manifest = Manifest(**{**vars(first), **change})  # type: ignore[arg-type]
        entry.save(manifest)
        assert Manifest.read(tmp_path) == manifest
    assert READERS == {"latents": "mm_ldlm.data.latents.store:LatentStore"}
