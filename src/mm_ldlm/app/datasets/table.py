"""Catalog dataset of a Parquet table whose columns may contain lists."""

# No `from __future__ import annotations` here: kedro-viz reads the return type of `preview` as an object.
from kedro_datasets._typing import TablePreview
from kedro_datasets.pandas import ParquetDataset

from mm_ldlm.app.datasets.preview import PREVIEW_ROWS, preview_of


class TableDataset(ParquetDataset):
    """Kedro's Parquet dataset, whose own preview in kedro-viz fails on columns of lists."""

    def preview(self, nrows: int = PREVIEW_ROWS) -> TablePreview:
        """Show the first rows as a table in kedro-viz."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(str(self._get_load_path())) as file:
            first = next(file.iter_batches(batch_size=nrows), None)
            return preview_of(file.schema_arrow.empty_table() if first is None else first)
