"""Kedro datasets for artifacts that are too large, or too structured, for one file of Kedro's own datasets.

`folders.py` has directories that nodes fill and manifests commit, `tables.py` Parquet tables, `references.py` JSON
files and what they lead to. The rooms below define the contents; nothing here computes.
"""

from mm_ldlm.app.datasets.folders import (
    FeaturesDataset,
    FolderDataset,
    StoreDataset,
    ValidatedDataset,
    WorkspaceDataset,
)
from mm_ldlm.app.datasets.references import JsonDataset, RunDataset, TrackedMetricsDataset
from mm_ldlm.app.datasets.tables import SamplesDataset, TableDataset

__all__ = [
    "FeaturesDataset",
    "FolderDataset",
    "JsonDataset",
    "RunDataset",
    "SamplesDataset",
    "StoreDataset",
    "TableDataset",
    "TrackedMetricsDataset",
    "ValidatedDataset",
    "WorkspaceDataset",
]
