"""Catalog dataset of a table of samples, which is kept when only other tasks are run."""

from __future__ import annotations

import json
from typing import Any

from kedro_datasets.pandas import ParquetDataset

from mm_ldlm.checkpoints.provenance import MADE_BY, weights_in

KEEP = "keep_if_made_by"
"""Attribute of a table that was not requested: the weights whose earlier table stays, whatever its parameters were."""


class SamplesDataset(ParquetDataset):
    """Parquet dataset of a table whose attributes (`DataFrame.attrs`) name the weights that made it.

    A table with the attribute `KEEP` was not requested. It is saved only if there is no table of the same checkpoint:
    samples of an earlier checkpoint would otherwise be evaluated as those of the current one.
    """

    def save(self, data: Any) -> None:
        if KEEP in data.attrs and self._exists() and weights_in(self._made_by()) == data.attrs[KEEP]:
            return
        super().save(data)

    def _made_by(self) -> Any:
        import pyarrow.parquet as pq

        metadata = pq.read_schema(str(self._get_load_path())).metadata or {}
        return json.loads(metadata.get(b"PANDAS_ATTRS", b"{}")).get(MADE_BY)
