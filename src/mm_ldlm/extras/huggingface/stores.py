"""Stores as `datasets.Dataset`."""

from pathlib import Path

import datasets
import pyarrow as pa
from datasets.table import InMemoryTable

from mm_ldlm.data.store import ShardStore


def open_store(folder: str | Path) -> datasets.Dataset:
    """Open the store in a folder as a `datasets.Dataset`, whose columns are its memory-mapped shards, without a copy.

    Raises:
        StoreError: there is no store, or one of its shards is missing or damaged.
    """
    store = ShardStore.open(folder)
    table = pa.concat_tables([store.schema.empty_table(), *store.iter_tables()])
    return datasets.Dataset(InMemoryTable(table), fingerprint=store.manifest.fingerprint)
