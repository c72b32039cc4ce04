"""Catalog dataset of a table of samples, which is kept when only other tasks are run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from mm_ldlm.app.datasets.table import TableDataset
from mm_ldlm.core.files import write_bytes
from mm_ldlm.training.checkpoints.provenance import KEEP, MADE_BY, weights_in


class SamplesDataset(TableDataset):
    """Parquet dataset of a table whose attributes (`DataFrame.attrs`) name the weights that made it.

    A table with the attribute `KEEP` was not requested. It is saved only if there is no table of the same checkpoint:
    samples of an earlier checkpoint would otherwise be evaluated as those of the current one.

    The vectors of the column `vectors`, if it is named, are also saved beside the table, as a `.npy` file (n, d)
    float32 that `sampling.l2t.files` reads; a table without rows has none.
    """

    def __init__(self, *, vectors: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._vectors = vectors

    def save(self, data: Any) -> None:
        if KEEP in data.attrs and self._exists() and weights_in(self._made_by()) == data.attrs[KEEP]:
            return
        # Whole or not at all: half a file, of a full disk, would stop the next run where it looks who made it.
        buffer = io.BytesIO()
        data.to_parquet(buffer, **self._save_args)
        write_bytes(Path(str(self._get_save_path())), buffer.getvalue())
        self._invalidate_cache()
        if self._vectors is not None:
            self._save_vectors(data[self._vectors])

    def _save_vectors(self, column: Any) -> None:
        import numpy as np

        path = Path(str(self._get_save_path())).with_suffix(".npy")
        path.unlink(missing_ok=True)  # those of an earlier table
        if len(column):
            buffer = io.BytesIO()
            np.save(buffer, np.stack([np.asarray(vector, dtype=np.float32) for vector in column]), allow_pickle=False)
            write_bytes(path, buffer.getvalue())

    def _made_by(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_schema(str(self._get_load_path())).metadata or {}
        except (OSError, pa.ArrowException):  # a damaged table belongs to no run, and is written again
            return None
        return json.loads(metadata.get(b"PANDAS_ATTRS", b"{}")).get(MADE_BY)
