"""Features: the stores that an objective or a model reads besides records and tokens, and how a batch reads them.

A feature is a dataclass. Its fields are the parameter sections that it is made with, by name; its class says how its
store is read. Latents are a feature as well, although the pipelines keep their store separately.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import ConfigurationError, Registry, StoreError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.example_index import split_column
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig, calibrated, fit
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.validation.findings import Finding

log = logging.getLogger(__name__)
Rows = npt.NDArray[np.int64]
FEATURES = Registry(
    "feature",
    {
        "latents": "mm_ldlm.data.latents.store:Latents",
        "token_vectors": "mm_ldlm.data.latents.store:TokenVectors",
    },
    group="features",
)
LATENTS = "latents"
"""The feature whose store `embed_records` fills; `make_features` makes the others."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs from which features are made."""

    records: ShardStore
    tokens: ShardStore
    tokenizer: TextTokenizer
    features: Mapping[str, ShardStore]
    """those that were made before"""


class Field:
    """The values of a feature that a batch has, read for records.

    Attributes:
        column: the values as rows (rows, d) of the store.
        shape: of one value; a batch has it flat, (d,).
    """

    def __init__(self, store: ShardStore, *, column: str, shape: tuple[int, ...] = ()) -> None:
        self.column = store.fixed(column)
        self.shape = shape or (self.column.dim,)

    def rows(self, records: Rows) -> Rows:
        """Return the rows of the store that belong to these records."""
        return records

    def batch(self, records: Rows, *, normaliser: Normaliser | None = None) -> npt.NDArray[Any]:
        """Read the values (n, d) of n records; float32 and standardised with a normaliser, else as stored."""
        return standardised(self.column.take(records), normaliser)


def standardised(values: npt.NDArray[Any], normaliser: Normaliser | None) -> npt.NDArray[Any]:
    """Return values in the scale of a normaliser, float32; without one as they are."""
    if normaliser is None:
        return values
    return np.asarray(normaliser.standardise(values.astype(np.float32)), np.float32)


class Feature:
    """Base class of features."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """of its store"""
    column: ClassVar[str] = "value"
    row_of: ClassVar[Literal["record", "token", "id", "class"]] = "record"
    """what one row of the store belongs to; rows of records are in their order and have their ids"""
    made_from: ClassVar[tuple[str, ...]] = ()
    """other features"""
    from_encoder: ClassVar[bool] = False
    """whether an encoder computes it"""
    normaliser_folder: ClassVar[str | None] = None
    """name of its normaliser in datasets and checkpoints, if its values are standardised"""

    @property
    def variant(self) -> str:
        """Suffix of the store's folder, which differs between the parameters of models that share the folder."""
        return ""

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def standardisation(self) -> NormaliserConfig:
        """The kind of normaliser to fit."""
        return NormaliserConfig()

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Fill the store in `workspace` and commit it; a finished store of the same inputs is kept.

        Raises:
            FingerprintError: the workspace contains a store of other inputs that took long to make.
        """
        raise NotImplementedError

    def refuse_sources(self, sources: Sequence[Any]) -> None:
        """Raise ConfigurationError if the records of these sources cannot have what the feature is made from."""

    def check(self, store: ShardStore, records: ShardStore) -> Iterable[Finding]:
        """Return findings about the store, and records that cannot be used, for the validation."""
        return ()

    @classmethod
    def unit_norm(cls, store: ShardStore) -> bool:
        """Return whether the values have norm 1, also after their normaliser is inverted."""
        return False

    @classmethod
    def field(cls, store: ShardStore, tokens: ShardStore) -> Field:
        """Open the values that a batch reads."""
        return Field(store, column=cls.column)

    @classmethod
    def refuse_other(cls, store: ShardStore, *, objective: Any) -> None:
        """Raise ConfigurationError if the store was made for another objective."""


@functools.cache
def feature_of(name: str) -> type[Feature]:
    """Return the class of a feature.

    Raises:
        ConfigurationError: none has this name.
    """
    if name not in FEATURES:
        raise ConfigurationError(
            f"expected the name of a feature that the objective or the model reads, found {name!r}. "
            f"Choose from: {', '.join(FEATURES)}; or register it under the entry points mm_ldlm.features."
        )
    return cast(type[Feature], FEATURES.load(name))


def sections() -> tuple[str, ...]:
    """List the parameter sections that the features are made with, and those that choose among the features."""
    own = {field.name for name in FEATURES for field in dataclasses.fields(FEATURES.load(name))}
    return tuple(sorted(own | {"objective", "model"}))


def needed(*, objective: Any, model: Any) -> tuple[str, ...]:
    """List the features that objective and model read, each after those that it is made from."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        for other in feature_of(name).made_from:
            add(other)
        found[name] = None

    for name in (*objective.fields, *objective.stores, *model.stores):
        add(name)
    return tuple(found)


def from_encoder(*, objective: Any, model: Any) -> list[str]:
    """List the features that objective and model read and an encoder computes."""
    return [name for name in needed(objective=objective, model=model) if feature_of(name).from_encoder]


def planned(typed: Mapping[str, Any]) -> dict[str, Feature]:
    """Return the features that objective and model read, with their parameters.

    Args:
        typed: parameter sections by name.
    """
    found = {}
    for name in needed(objective=typed["objective"], model=typed["model"]):
        cls: Any = feature_of(name)
        found[name] = cls(**{field.name: typed[field.name] for field in dataclasses.fields(cls)})
    return found


def make_all(plan: Mapping[str, Feature], inputs: Inputs, *, folder: Path) -> None:
    """Make the stores of all features but the latents in `folder`, in order."""
    made: dict[str, ShardStore] = {}
    for name, feature in plan.items():
        if name != LATENTS:
            feature.make(dataclasses.replace(inputs, features=made), folder / feature.folder)
            made[name] = ShardStore.open(folder / feature.folder, feature.kind)
            log.info("%s: %d rows", name, len(made[name]))


def open_all(plan: Mapping[str, Feature], *, latents: ShardStore | None, folder: Path) -> dict[str, ShardStore]:
    """Open the stores of all features of a plan.

    Raises:
        StoreError: one was never committed.
    """
    found = {}
    for name, feature in plan.items():
        place, store = folder / feature.folder, latents
        if name != LATENTS:
            store = ShardStore.open(place, feature.kind) if Manifest.exists(place) else None
        if store is None:
            raise StoreError(
                f"{folder}: expected the store '{name}', which the objective or the model reads, found none. Run "
                "`kedro run --pipeline=embedding` first."
            )
        found[name] = store
    return found


def fit_all(
    plan: Mapping[str, Feature], stores: Mapping[str, ShardStore], *, tokens: ShardStore, index: ShardStore
) -> dict[str, Normaliser]:
    """Fit the normalisers of the features that have one, by the names of their folders, on the valid training examples.

    Features with one row for each record also get a range, from the validation split, and vectors of an encoder a
    signature.
    """
    found = dict[str, Normaliser]()
    train, validation = (split_column(index, split, "row") for split in ("train", "validation"))
    for name, feature in plan.items():
        if feature.normaliser_folder is None:
            continue
        field = feature.field(stores[name], tokens)
        fitted = fit(
            field.column, rows=field.rows(train), config=feature.standardisation,
            unit_norm=feature.unit_norm(stores[name]),
        )  # fmt: skip
        if feature.row_of == "record":
            fitted = calibrated(fitted, field.column, rows=validation, fitted=train if feature.from_encoder else None)
        found[feature.normaliser_folder] = fitted
    return found
