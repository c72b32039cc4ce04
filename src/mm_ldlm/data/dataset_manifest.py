"""Validated dataset: a manifest that names the stores of a corpus with their fingerprints.

The validation pipeline commits `dataset.json`; it is the only data input that training, sampling and evaluation need.
It always names records, tokens, index and tokenizer. It names features with their normalisers (`data.features`) only if
the objective or the model uses them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import FingerprintError, StoreError
from mm_ldlm.core.files import InputFile, json_document, write_json
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.data.example_index import INDEX_SCHEMA, split_column
from mm_ldlm.data.features import FEATURES, Field, feature_of
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint

if TYPE_CHECKING:
    from mm_ldlm.models.base import DataShape

NAME = "dataset.json"
SCHEMAS = {"records": RECORD_SCHEMA, "tokens": TOKEN_SCHEMA, "index": INDEX_SCHEMA}
"""Tables that every dataset has, and their columns."""
REQUIRED = (*SCHEMAS, "tokenizer")
"""Stores that every dataset has."""
_AGAIN = "Run the pipelines that make it again: `kedro run --pipelines=ingestion,embedding,validation`."


@json_document
class Entry:
    """A store in `dataset.json`: its path relative to the file's folder, its kind and its fingerprint."""

    path: str
    kind: str
    fingerprint: str


@json_document
class Document:
    """Contents of `dataset.json`; `encoder` is the fingerprint of the encoder of the latents."""

    format_version: Literal[1]
    fingerprint: str
    encoder: str | None
    stores: dict[str, Entry]


class Dataset:
    """Committed dataset.

    Opening it reads `dataset.json`. Each store is opened and compared with its fingerprint in the manifest when it is
    first used.

    Attributes:
        directory: the folder of `dataset.json`.
        fingerprints: by store name, and of the encoder ("encoder") where the dataset has latents.
    """

    def __init__(self, directory: Path, stores: Mapping[str, Entry], *, encoder: str | None) -> None:
        self.directory = Path(directory)
        self._stores = dict(stores)
        self._opened: dict[str, Any] = {}
        self.fingerprints = {name: entry.fingerprint for name, entry in stores.items()}
        if encoder:
            self.fingerprints["encoder"] = encoder

    @classmethod
    def open(cls, directory: str | Path) -> Dataset:
        """Read `dataset.json`.

        Raises:
            StoreError: it is missing, damaged, or of another format version.
        """
        file = InputFile(Path(directory) / NAME, remedy="Run `kedro run --pipeline=validation`.")
        found: Document = file.json(Document)
        if missing := [name for name in REQUIRED if name not in found.stores]:
            file.refuse(f"the store of the {missing[0]}", f"only {', '.join(found.stores)}")
        dataset = cls(Path(directory), found.stores, encoder=found.encoder)
        if found.fingerprint != dataset.fingerprint:
            file.refuse(f"the fingerprint {dataset.fingerprint} of its stores", f"{found.fingerprint}: it was edited")
        return dataset

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprints of all stores, independent of their paths."""
        return fingerprint(self.fingerprints)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stores."""
        return tuple(self._stores)

    def __contains__(self, name: str) -> bool:
        return name in self._stores

    def __repr__(self) -> str:
        return f"Dataset({str(self.directory)!r}, {', '.join(self._stores)})"

    # -- stores -------------------------------------------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        """Return the folder of a store; StoreError if the dataset has no such store."""
        if name not in self._stores:
            raise StoreError(
                f"{self.directory / NAME}: this dataset has no {name} (it has {', '.join(self._stores)}). It was "
                f"validated for an objective and a model that do not use {name}; with the parameters of one that does, "
                "run `kedro run --pipelines=embedding,validation`."
            )
        return Path(os.path.normpath(self.directory / self._stores[name].path))

    def require(self, name: str) -> Any:
        """Open a store and compare it with its fingerprint.

        Raises:
            StoreError: the dataset has no such store, or the store is missing or damaged.
            FingerprintError: the store changed after the dataset was committed.
        """
        if name not in self._opened:
            opened, committed = open_store(self.folder(name), self._stores[name].kind), self.fingerprints[name]
            found = opened.manifest.fingerprint if isinstance(opened, ShardStore) else opened.fingerprint
            if found != committed:
                raise FingerprintError(
                    f"{self.folder(name)}: its fingerprint is {found}, but {self.directory / NAME} was committed with "
                    f"{committed}: the {name} changed after validation. Run `kedro run --pipeline=validation`, or "
                    "restore the validated store."
                )
            self._opened[name] = opened
        return self._opened[name]

    def check(self) -> None:
        """Open every store and compare it with its fingerprint."""
        for name in self._stores:
            self.require(name)

    @property
    def records(self) -> ShardStore:
        return cast(ShardStore, self.require("records"))

    @property
    def tokens(self) -> ShardStore:
        return cast(ShardStore, self.require("tokens"))

    @property
    def index(self) -> ShardStore:
        return cast(ShardStore, self.require("index"))

    @property
    def tokenizer(self) -> TextTokenizer:
        return cast(TextTokenizer, self.require("tokenizer"))

    # -- features -----------------------------------------------------------------------------------------------------

    def field(self, name: str) -> Field:
        """Open the values of a feature for the batches of a training."""
        return feature_of(name).field(self.require(name), self.tokens)

    def normaliser(self, name: str) -> Normaliser | None:
        """Return the normaliser of a feature; None if its values are not standardised."""
        folder = feature_of(name).normaliser_folder
        return None if folder is None else cast(Normaliser, self.require(folder))

    def values(self, name: str) -> npt.NDArray[Any]:
        """Read all rows (rows, d) of a feature."""
        return cast(ShardStore, self.require(name)).fixed(feature_of(name).column).take(slice(None))

    # -- examples -----------------------------------------------------------------------------------------------------

    def rows(self, split: str) -> npt.NDArray[np.int64]:
        """Read the store rows (n,) of a split's valid examples, ascending; empty if the split has none."""
        return split_column(self.index, split, "row")

    def lengths(self, split: str) -> npt.NDArray[np.int64]:
        """Read the number of tokens (n,) of each example of a split, in the order of `rows`."""
        return split_column(self.index, split, "length")

    @property
    def shape(self) -> DataShape:
        """Sizes of the data that a model is built for."""
        from mm_ldlm.models.base import DataShape

        fields = {
            name: self.field(name).shape
            for name in self.names if name in FEATURES and feature_of(name).normaliser_folder is not None
        }  # fmt: skip
        return DataShape(
            vocab_size=self.tokenizer.vocab_size,
            pad_id=self.tokenizer.pad_id,
            mask_id=self.tokenizer.mask_id,
            max_length=self.tokenizer.max_length,
            fields=fields,
        )


def commit(directory: str | Path, *, stores: Mapping[str, str | Path]) -> Dataset:
    """Write `dataset.json` for the stores in these folders and return the dataset.

    Args:
        stores: folder of each store by name: "records", "tokens", "index", "tokenizer", and those of features and of
            their normalisers.

    Raises:
        StoreError: a store is missing or damaged.
        FingerprintError: the stores were not made from one another.
    """
    directory = Path(directory)
    features = {name: feature_of(name) for name in stores if name in FEATURES}
    entries: dict[str, Entry] = {}
    made_from: dict[str, dict[str, str]] = {}
    for name, folder in stores.items():
        path = Path(os.path.relpath(Path(folder).resolve(), directory.resolve())).as_posix()
        if Manifest.exists(folder):
            manifest = Manifest.read(folder)
            entries[name], made_from[name] = Entry(path, manifest.kind, manifest.fingerprint), manifest.fingerprints
        else:
            kind = name if name in REQUIRED else _NORMALISER
            entries[name] = Entry(path, kind, open_store(Path(folder), kind).fingerprint)
    for name, cls in features.items():
        if (rows_of := {"record": "records", "id": "tokenizer"}.get(cls.row_of)) is not None:
            made_from[name].setdefault(rows_of, "none")
    for name, ingredients in made_from.items():
        for other, wanted in ingredients.items():
            if other in entries and entries[other].fingerprint != wanted:
                raise FingerprintError(
                    f"{stores[name]}: expected the {name} to be made with {other} {entries[other].fingerprint}, which "
                    f"{stores[other]} contains, found {wanted}. {_AGAIN}"
                )
    encoder = made_from.get("latents", {}).get("encoder")
    dataset = Dataset(directory, entries, encoder=encoder)
    document = Document(1, dataset.fingerprint, encoder, entries)
    write_json(directory / NAME, dataclasses.asdict(document))
    return dataset


_NORMALISER = "normaliser"
"""Kind of the normalisers; earlier versions wrote their names, which end in it."""


def open_store(folder: Path, kind: str) -> Any:
    """Open a store, a tokenizer or a normaliser by its kind.

    Raises:
        StoreError: it is missing or damaged, or a table has other columns than its kind.
    """
    if kind == "tokenizer":
        return TextTokenizer.load(folder)
    if kind.endswith(_NORMALISER):
        return Normaliser.load(folder)
    store = (LatentStore if kind == "latents" else ShardStore).open(folder, kind)
    columns = SCHEMAS.get(kind)
    if columns is not None and not store.schema.equals(columns):
        raise StoreError(
            f"{folder}: expected the columns {columns.names}, found {store.schema.names} or other types. {_AGAIN}"
        )
    return store
