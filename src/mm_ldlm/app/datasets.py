"""Kedro datasets for artifacts that are too large, or too structured, for one file of Kedro's own datasets.

Directories that nodes fill and manifests commit, tables, and JSON files with what they refer to. The rooms below define
the contents; nothing here computes.
"""

# No `from __future__ import annotations` here: kedro-viz reads the return type of `preview` as an object.
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kedro_datasets._typing import PlotlyPreview, TablePreview
from kedro_datasets.json import JSONDataset
from kedro_datasets.pandas import ParquetDataset
from kedro_datasets.partitions import PartitionedDataset

from mm_ldlm.app.catalog import AtPath
from mm_ldlm.core.files import InputFile, refuse_other, write_bytes, write_text
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.dataset_manifest import Dataset, commit, open_store
from mm_ldlm.data.store import NOT_NEEDED, Manifest, ShardStore
from mm_ldlm.training.checkpoints.provenance import KEEP, MADE_BY, weights_in
from mm_ldlm.training.checkpoints.reference import chosen_run

HOLDS = {"mapping": dict, "list": list, "numbers": dict[str, float]}
"""Types of the content of a JSON file of the catalog"""
PREVIEW_ROWS, _NUMBERS = 20, 8


# --- tables -----------------------------------------------------------------------------------------------------------


def preview_of(table: Any) -> TablePreview:
    """Show an Arrow table; long vectors and lists are shortened, with their length."""
    rows = [[_short(value) for value in row.values()] for row in table.to_pylist()]
    return TablePreview({"index": list(range(len(rows))), "columns": table.column_names, "data": rows})


def _short(value: Any) -> Any:
    if isinstance(value, list):
        head = ", ".join(f"{item:.3g}" if isinstance(item, float) else str(item) for item in value[:_NUMBERS])
        return f"[{head}, …] ({len(value)})" if len(value) > _NUMBERS else f"[{head}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


class TableDataset(ParquetDataset):
    """Kedro's Parquet dataset, whose own preview in kedro-viz fails on columns of lists."""

    @property
    def _path(self) -> Path:
        return Path(str(self._get_load_path()))

    def save(self, data: Any) -> None:
        write_bytes(self._path, data.to_parquet(**self._save_args))
        self._invalidate_cache()

    def preview(self, nrows: int = PREVIEW_ROWS) -> TablePreview:
        """Show the first rows as a table in kedro-viz."""
        with pq.ParquetFile(self._path) as file:
            first = next(file.iter_batches(batch_size=nrows), None)
            return preview_of(file.schema_arrow.empty_table() if first is None else first)


class SamplesDataset(TableDataset):
    """Parquet dataset of a table whose attributes (`DataFrame.attrs`) name the weights that made it.

    A table with the attribute `KEEP` was not requested. It is saved only if there is no table of the same checkpoint:
    samples of an earlier checkpoint would otherwise be evaluated as the current ones.

    The vectors of the column `vectors`, if it is named, are also saved next to the table, as a `.npy` file (n, d)
    float32 that `sampling.l2t.files` reads; a table without rows has none.
    """

    def __init__(self, *, vectors: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._vectors = vectors

    def save(self, data: Any) -> None:
        if KEEP in data.attrs and self._exists() and weights_in(self._made_by()) == data.attrs[KEEP]:
            return
        super().save(data)
        if self._vectors is None:
            return
        self._path.with_suffix(".npy").unlink(missing_ok=True)  # of an earlier table
        if len(column := data[self._vectors]):
            buffer = io.BytesIO()
            np.save(buffer, np.stack([np.asarray(vector, dtype=np.float32) for vector in column]), allow_pickle=False)
            write_bytes(self._path.with_suffix(".npy"), buffer.getvalue())

    def _made_by(self) -> Any:
        try:
            metadata = pq.read_schema(self._path).metadata or {}
            return json.loads(metadata.get(b"PANDAS_ATTRS", b"{}")).get(MADE_BY)
        except (OSError, ValueError, pa.ArrowException):  # a damaged table belongs to no run, and is written again
            return None


class FiguresDataset(PartitionedDataset):
    """Folder of Plotly figures, one JSON file for each; saving replaces the folder.

    kedro-viz previews one of them, which `preview_args: {name: …}` in the metadata of the entry chooses.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(
            path=filepath, dataset="plotly.JSONDataset", filename_suffix=".json", overwrite=True, metadata=metadata
        )

    def load(self) -> dict[str, Any]:
        for path in self._list_partitions():
            refuse_other(path)
        return super().load()

    def preview(self, name: str) -> PlotlyPreview:
        """Show one figure in kedro-viz."""
        return json.loads(self.load()[name]().to_json())


# --- directories ------------------------------------------------------------------------------------------------------


class StoreDataset(AtPath):
    """Dataset of a directory of Arrow shards; it exists if its `manifest.json` does.

    A node fills the directory, which it receives as the parameter `{name}_workspace`, and returns the `Manifest`.
    Saving writes it (nothing changes if the node has already written it). Loading opens the reader; shards stay on
    disk, memory-mapped.
    """

    def __init__(self, *, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._kind = kind

    def load(self) -> ShardStore | None:
        return None if self._optional and not self._exists() else open_store(self._path, self._kind)

    def save(self, data: Any) -> None:
        if data is NOT_NEEDED and self._optional:
            return
        if not Manifest.exists(self._path) or Manifest.read(self._path) != data:
            data.write(self._path)

    def _exists(self) -> bool:
        return Manifest.exists(self._path)

    def preview(self, nrows: int = PREVIEW_ROWS) -> TablePreview:
        """Show the first rows as a table in kedro-viz."""
        store = self.load()
        if store is None:
            return TablePreview({"index": [], "columns": [], "data": []})
        return preview_of(store.table(range(min(nrows, len(store)))))


class TokenizerDataset(AtPath):
    """Dataset of the folder of a tokenizer; it exists if its `vocabulary.json` does."""

    def load(self) -> TextTokenizer:
        return TextTokenizer.load(self._path)

    def save(self, data: Any) -> None:
        data.save(self._path)

    def _exists(self) -> bool:
        return (self._path / "vocabulary.json").is_file()


class ValidatedDataset(AtPath):
    """Dataset of a folder with `dataset.json`; it loads as a `Dataset`, and saving receives folders by name."""

    def load(self) -> Dataset | None:
        return None if self._optional and not self._exists() else Dataset.open(self._path)

    def save(self, data: Mapping[str, Path]) -> None:
        commit(self._path, stores=data)

    def _exists(self) -> bool:
        return (self._path / "dataset.json").is_file()


# --- references -------------------------------------------------------------------------------------------------------


class JsonDataset(JSONDataset):
    """JSON dataset of a value of one form, which refuses a file that was edited or replaced by another one.

    Args:
        holds: a key of `HOLDS`.
    """

    def __init__(self, *, filepath: str, holds: str = "mapping", **options: Any) -> None:
        super().__init__(filepath=filepath, **options)
        self._path, self._holds = Path(filepath), HOLDS[holds]

    def load(self) -> Any:
        self._path.lstat()  # a file that is missing is not a damaged one
        return InputFile(self._path, remedy="Remove it, and run the pipeline that writes it again.").json(self._holds)

    def save(self, data: Any) -> None:
        write_text(self._path, json.dumps(data, **self._save_args))
        self._invalidate_cache()


class RunDataset(JsonDataset):
    """JSON dataset of the reference {name, path, fingerprint, step, checkpoint, metrics} that the training saves.

    `chosen`, the path of a run or of one of its checkpoints (`--params run=PATH`), replaces the file.
    """

    def __init__(self, *, filepath: str, chosen: str | None = None, **options: Any) -> None:
        super().__init__(filepath=filepath, **options)
        self._chosen = chosen

    def load(self) -> Any:
        return super().load() if self._chosen is None else chosen_run(self._chosen)

    def _exists(self) -> bool:
        return self._chosen is not None or bool(super()._exists())
