"""Kedro datasets: how the catalog holds what is too large, or too structured, for one file.

Here live the workspace (a directory handed to long work), the store (a directory committed by its manifest), the folder
(an object that saves itself into a directory) and the text behind them. What the bytes mean is said by the rooms below;
nothing here computes.
"""

from mm_ldlm.datasets.folder import FolderDataset
from mm_ldlm.datasets.store import StoreDataset
from mm_ldlm.datasets.workspace import WorkspaceDataset

__all__ = ["FolderDataset", "StoreDataset", "WorkspaceDataset"]
