"""Data of training: the dataset as a source of tokens and of the fields that the objective reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.errors import ConfigurationError, FingerprintError, StoreError
from mm_ldlm.data.dataset import NORMALISERS, Dataset, values
from mm_ldlm.families.ccdd import token_states
from mm_ldlm.models.base import DataShape
from mm_ldlm.training.batches import Ints, Source
from mm_ldlm.training.spec import TrainingSpec


def stores_of_fields(fields: Collection[str]) -> tuple[str, ...]:
    """List the stores that the fields of a batch are read from: vectors with their normaliser, others by name."""
    return tuple(
        store for field in fields for store in ((field, NORMALISERS[field]) if field in NORMALISERS else (field,))
    )


class StoreSource:
    """Examples of one split of the validated dataset."""

    def __init__(self, dataset: Dataset, split: str, *, fields: Collection[str]) -> None:
        self._rows, self.lengths = dataset.rows(split), dataset.lengths(split)
        self.pad_id = dataset.tokenizer.pad_id
        self._tokens = dataset.tokens.lists("input_ids")
        self._columns = {name: dataset.require(name).fixed(_COLUMNS.get(name, "value")) for name in fields}
        self._normalisers = {name: dataset.require(NORMALISERS[name]) for name in fields if name in NORMALISERS}
        # Token states have one row for each token; those of other fields are the rows of the records.
        per_token = "token_states" in fields
        self._starts = token_states.starts(dataset.tokens.ints("length").take(slice(None))) if per_token else None

    def tokens(self, rows: Ints, *, length: int) -> Ints:
        return self._tokens.padded(self._rows[rows], pad=self.pad_id, length=length)

    def field(self, name: str, rows: Ints) -> npt.NDArray[Any]:
        if name == "token_states":
            return self._states(self._rows[rows])
        return self._standardised(name, self._columns[name].take(self._rows[rows]))

    def _states(self, records: Ints) -> npt.NDArray[np.float32]:
        """Read the states of the tokens of these records, (n, L, d), padded with 0 to the longest of them."""
        assert self._starts is not None
        found_nd = self._columns["token_states"].take(token_states.rows_of_tokens(self._starts, records))
        lengths = self._starts[records + 1] - self._starts[records]
        out = np.zeros((len(records), int(lengths.max(initial=0)), found_nd.shape[1]), np.float32)
        out[np.arange(out.shape[1]) < lengths[:, None]] = self._standardised("token_states", found_nd)
        return out

    def _standardised(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if name not in self._normalisers:
            return values
        return np.asarray(self._normalisers[name].standardise(values.astype(np.float32)), np.float32)


_COLUMNS = {"latents": "latent", "images": "latent", "token_states": token_states.COLUMN}
"""Column of a field's store, if it is not "value"."""
_COUNTED_ROWS = 8192
"""Rows that are read at once while tokens are counted"""


def token_counts(source: Source, shape: DataShape) -> torch.Tensor:
    """Count how often each id occurs in a split, (ids,) int64 on the CPU; pads count 0."""
    ids = max(shape.vocab_size, shape.pad_id + 1, shape.mask_id + 1)
    counts = np.zeros(ids, np.int64)
    for start in range(0, len(source.lengths), _COUNTED_ROWS):
        rows = np.arange(start, min(start + _COUNTED_ROWS, len(source.lengths)))
        tokens = source.tokens(rows, length=shape.max_length)
        counts += np.bincount(tokens.reshape(-1), minlength=ids)
    counts[shape.pad_id] = 0
    return torch.from_numpy(counts)


def no_examples(directory: Path) -> StoreError:
    """Make the error for a dataset without training examples."""
    return StoreError(f"{directory}: expected examples of split 'train', found none. Check ingestion.splits.")


def no_validation(validate_every: int) -> ConfigurationError:
    """Make the error for a training with validations and a dataset without validation examples."""
    return ConfigurationError(
        f"parameter 'training.validate_every' is {validate_every}, but the split 'validation' has no examples. Add "
        "texts, hold out more of them (`--params ingestion.splits.validation=0.1,ingestion.splits.test=0.1`), or set "
        "training.validate_every to 0."
    )


@dataclasses.dataclass(frozen=True)
class Data:
    """Data of a run, with the folders that its checkpoints include so that the run folder suffices for sampling."""

    train: Source
    validation: Source | None
    shape: DataShape
    folders: dict[str, Path]
    """folders copied into every checkpoint: tokenizer, normaliser of latents or images, stores of the objective"""
    token_vectors: npt.NDArray[np.float32] | None = None
    """(vocab_size, d): initial token embeddings, if they are not random"""
    stores: dict[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)
    """(rows, d) by name: the values of the stores that the objective is made from"""


def open_data(spec: TrainingSpec, root: Path) -> Data:
    """Open the dataset and compare it with the fingerprints of the spec.

    Raises:
        StoreError: a store is missing or damaged, or the training split has no examples.
        FingerprintError: a store differs from the one that the spec was planned with.
    """
    dataset = Dataset.open(root / spec.dataset)
    for name, planned in spec.fingerprints.items():
        if (found := dataset.fingerprints.get(name)) != planned:
            raise FingerprintError(
                f"{dataset.directory}: expected {name} with the fingerprint {planned}, as in the spec, "
                f"found {found}. The data changed since then: plan again (`kedro run --pipelines=training`), or "
                "restore the data."
            )
    fields = spec.objective.fields
    if not len(dataset.rows("train")):
        raise no_examples(dataset.directory)
    validation = StoreSource(dataset, "validation", fields=fields) if len(dataset.rows("validation")) else None
    carried = (
        "tokenizer",
        *(NORMALISERS[name] for name in ("latents", "images") if name in fields),
        *spec.objective.stores,
    )
    vectors = dataset.require("token_vectors") if "token_vectors" in spec.model.stores else None
    return Data(
        train=StoreSource(dataset, "train", fields=fields),
        validation=validation,
        shape=spec.shape,
        folders={name: dataset.folder(name) for name in carried},
        token_vectors=None if vectors is None else values(vectors),
        stores={name: values(dataset.require(name)) for name in spec.objective.stores},
    )
