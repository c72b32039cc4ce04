"""Kedro datasets for artifacts that are too large, or too structured, for one file.

This room contains the workspace (a directory that a node fills), the store (a directory committed by its manifest), the
folder (an object that saves itself to a directory), the validated dataset (a manifest that names stores), the reference
of a run, tables whose columns may contain lists, and the table of samples. The rooms below define the contents; nothing
here computes.
"""

from mm_ldlm.app.datasets.features import FeaturesDataset
from mm_ldlm.app.datasets.folder import FolderDataset
from mm_ldlm.app.datasets.run import RunDataset
from mm_ldlm.app.datasets.samples import SamplesDataset
from mm_ldlm.app.datasets.store import StoreDataset
from mm_ldlm.app.datasets.table import TableDataset
from mm_ldlm.app.datasets.tracked import TrackedMetricsDataset
from mm_ldlm.app.datasets.validated import ValidatedDataset
from mm_ldlm.app.datasets.workspace import WorkspaceDataset

__all__ = [
    "FeaturesDataset",
    "FolderDataset",
    "RunDataset",
    "SamplesDataset",
    "StoreDataset",
    "TableDataset",
    "TrackedMetricsDataset",
    "ValidatedDataset",
    "WorkspaceDataset",
]
