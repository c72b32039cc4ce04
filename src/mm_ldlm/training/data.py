"""Data of training: the dataset as a source of tokens and of the fields that the objective reads."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core import FingerprintError
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.models.base import DataShape
from mm_ldlm.training.batches import Source
from mm_ldlm.training.spec import TrainingSpec, stores_of_fields

_COUNTED_ROWS = 8192
"""Number of rows that are read at once to count tokens"""


def token_counts(source: Source, shape: DataShape) -> torch.Tensor:
    """Count how often each id occurs in a split, (ids,) int64 on the CPU; pads count 0."""
    ids = max(shape.vocab_size, shape.pad_id + 1, shape.mask_id + 1)
    counts = np.zeros(ids, np.int64)
    for start in range(0, len(source.lengths), _COUNTED_ROWS):
        rows = np.arange(start, min(start + _COUNTED_ROWS, len(source.lengths)))
        counts += np.bincount(source.tokens(rows, length=shape.max_length).reshape(-1), minlength=ids)
    counts[shape.pad_id] = 0
    return torch.from_numpy(counts)


@dataclasses.dataclass(frozen=True)
class Data:
    """Data of a run, and the folders that every checkpoint includes, so that sampling needs only the run folder."""

    train: Source
    validation: Source | None
    shape: DataShape
    folders: dict[str, Path]
    """folders copied into every checkpoint: tokenizer, normalisers, stores of the objective"""
    stores: dict[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)
    """name → values (rows, d) of a store from which the objective or the initial weights are made"""


def open_data(spec: TrainingSpec, root: Path) -> Data:
    """Open the dataset and compare it with the fingerprints of the spec.

    Raises:
        StoreError: a store is missing or damaged.
        FingerprintError: a store differs from the one that the spec was planned with.
    """
    dataset = Dataset.open(root / spec.dataset)
    for name, planned in spec.fingerprints.items():
        if (found := dataset.fingerprints.get(name)) != planned:
            raise FingerprintError(
                f"{dataset.directory}: expected {name} with the fingerprint {planned}, as in the spec, "
                f"found {found}. The data changed after the spec was planned: plan again "
                "(`kedro run --pipelines=training`), or restore the data."
            )
    fields = spec.objective.fields
    validation = Source(dataset, "validation", fields=fields) if len(dataset.rows("validation")) else None
    normalisers = [store for store in stores_of_fields(fields) if store not in fields]
    carried = ("tokenizer", *normalisers, *spec.objective.stores)
    return Data(
        train=Source(dataset, "train", fields=fields),
        validation=validation,
        shape=spec.shape,
        folders={name: dataset.folder(name) for name in carried},
        stores={name: dataset.values(name) for name in (*spec.model.stores, *spec.objective.stores)},
    )
