"""Catalog datasets of tables: Parquet files, written as a whole or not at all, that kedro-viz can preview."""

# No `from __future__ import annotations` here: kedro-viz reads the return type of `preview` as an object.
import io
import json
import math
from pathlib import Path
from typing import Any

from kedro_datasets._typing import TablePreview
from kedro_datasets.pandas import ParquetDataset

from mm_ldlm.core.files import write_bytes
from mm_ldlm.training.checkpoints.provenance import KEEP, MADE_BY, weights_in

PREVIEW_ROWS = 20
_NUMBERS = 8


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
        buffer = io.BytesIO()
        data.to_parquet(buffer, **self._save_args)
        write_bytes(self._path, buffer.getvalue())
        self._invalidate_cache()

    def preview(self, nrows: int = PREVIEW_ROWS) -> TablePreview:
        """Show the first rows as a table in kedro-viz."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path) as file:
            first = next(file.iter_batches(batch_size=nrows), None)
            return preview_of(file.schema_arrow.empty_table() if first is None else first)


class SamplesDataset(TableDataset):
    """Parquet dataset of a table whose attributes (`DataFrame.attrs`) name the weights that made it.

    A table with the attribute `KEEP` was not requested. It is saved only if there is no table of the same checkpoint:
    samples of an earlier checkpoint would otherwise be evaluated as those of the current one.

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
        import numpy as np

        self._path.with_suffix(".npy").unlink(missing_ok=True)  # those of an earlier table
        if len(column := data[self._vectors]):
            buffer = io.BytesIO()
            np.save(buffer, np.stack([np.asarray(vector, dtype=np.float32) for vector in column]), allow_pickle=False)
            write_bytes(self._path.with_suffix(".npy"), buffer.getvalue())

    def _made_by(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_schema(self._path).metadata or {}
            return json.loads(metadata.get(b"PANDAS_ATTRS", b"{}")).get(MADE_BY)
        except (OSError, ValueError, pa.ArrowException):  # a damaged table belongs to no run, and is written again
            return None
