"""Validated dataset: a manifest that names the stores of a corpus with their fingerprints.

The validation pipeline commits `dataset.json`; it is the only data input that training, sampling and evaluation need.
It always names records, tokens, index and tokenizer. It names latents with their normaliser, token vectors or further
fields only if the objective or the model uses them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.core.files import InputFile, write_json
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.index import split_column
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.needs import MADE_FROM
from mm_ldlm.models.base import DataShape

NAME = "dataset.json"
FORMAT_VERSION = 1
REQUIRED = ("records", "tokens", "index", "tokenizer")
"""Stores that every dataset has."""
NORMALISERS = {"latents": "normaliser", "token_states": "state_normaliser", "images": "image_normaliser"}
"""Store of vectors → the store of their normaliser; a dataset with the first also needs the second."""
_FOLDERS: dict[str, type[TextTokenizer] | type[Normaliser]] = {
    "tokenizer": TextTokenizer, **dict.fromkeys(NORMALISERS.values(), Normaliser)
}  # fmt: skip
_KINDS = {name: name for name in ("records", "tokens", "index", "latents")} | {"token_vectors": "latents"}
"""Kind of the stores that the project itself reads"""
_MADE_FROM = MADE_FROM | {"latents": "records", "token_vectors": "tokenizer"}
"""The store that a store was made from, which distinguishes two of one kind: latents of texts, vectors of tokens"""
_AGAIN = "Run the pipelines that make it again: `kedro run --pipelines=ingestion,embedding,validation`."


class Dataset:
    """Committed dataset.

    Opening it reads `dataset.json`. Each store is opened and compared with its fingerprint in the manifest when it is
    first used.

    Attributes:
        directory: the folder of `dataset.json`.
        fingerprints: by store name, and of the encoder ("encoder") where the dataset has latents.
    """

    def __init__(self, directory: Path, stores: Mapping[str, Mapping[str, str]], *, encoder: str | None) -> None:
        self.directory = Path(directory)
        self._stores = {name: dict(about) for name, about in stores.items()}
        self._opened: dict[str, Any] = {}
        self.fingerprints = {name: about["fingerprint"] for name, about in self._stores.items()}
        if encoder:
            self.fingerprints["encoder"] = encoder

    @classmethod
    def open(cls, directory: str | Path) -> Dataset:
        """Read `dataset.json`.

        Raises:
            StoreError: it is missing, damaged, or of another format version.
        """
        path = Path(directory) / NAME
        found = InputFile(path, remedy="Run `kedro run --pipeline=validation`.").json(dict)
        version = found.get("format_version")
        if version != FORMAT_VERSION:
            raise StoreError(f"{path}: expected format version {FORMAT_VERSION}, found {version!r}. Validate again.")
        stores = found.get("stores")
        if not isinstance(stores, dict) or not all(_is_entry(about) for about in stores.values()):
            raise StoreError(f"{path}: 'stores' must map each name to its path, kind and fingerprint. Validate again.")
        if missing := [name for name in REQUIRED if name not in stores]:
            raise StoreError(f"{path}: names no {missing[0]} (it has {', '.join(stores)}). Validate again.")
        dataset = cls(Path(directory), stores, encoder=found.get("encoder"))
        if found.get("fingerprint") != dataset.fingerprint:
            raise StoreError(
                f"{path}: expected the fingerprint {dataset.fingerprint} of its stores, found "
                f"{found.get('fingerprint')}: the file was edited. Validate again."
            )
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
        return Path(os.path.normpath(self.directory / self._stores[name]["path"]))

    def require(self, name: str) -> Any:
        """Open a store and compare it with its fingerprint.

        Raises:
            StoreError: the dataset has no such store, or the store is missing or damaged.
            FingerprintError: the store changed after the dataset was committed.
        """
        if name not in self._opened:
            opened = _open(name, self.folder(name), self._stores[name]["kind"])
            found, committed = _fingerprint(opened), self._stores[name]["fingerprint"]
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

    def _optional(self, name: str) -> Any:
        return self.require(name) if name in self else None

    @property
    def records(self) -> ShardStore:
        store: ShardStore = self.require("records")
        return store

    @property
    def tokens(self) -> ShardStore:
        store: ShardStore = self.require("tokens")
        return store

    @property
    def index(self) -> ShardStore:
        store: ShardStore = self.require("index")
        return store

    @property
    def tokenizer(self) -> TextTokenizer:
        tokenizer: TextTokenizer = self.require("tokenizer")
        return tokenizer

    @property
    def latents(self) -> LatentStore | None:
        """Raw encoder vectors; None for a dataset without latents."""
        store: LatentStore | None = self._optional("latents")
        return store

    @property
    def normaliser(self) -> Normaliser | None:
        """Normaliser of the latents; None for a dataset without latents."""
        normaliser: Normaliser | None = self._optional("normaliser")
        return normaliser

    @property
    def images(self) -> LatentStore | None:
        """Images as vectors of their pixels, 0 to 1; None for a dataset without images."""
        store: LatentStore | None = self._optional("images")
        return store

    @property
    def token_vectors(self) -> LatentStore | None:
        """Encoder's vector of each token; None if the model does not initialise its embeddings from them."""
        store: LatentStore | None = self._optional("token_vectors")
        return store

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
        latents, images = self.latents, self.images
        return DataShape(
            vocab_size=self.tokenizer.vocab_size,
            pad_id=self.tokenizer.pad_id,
            mask_id=self.tokenizer.mask_id,
            max_length=self.tokenizer.max_length,
            latent_dim=None if latents is None else latents.dim,
            state_dim=self.require("state_normaliser").dim if "token_states" in self else None,
            image_size=None if images is None else tuple(images.manifest.meta["image_size"]),
        )


def commit(directory: str | Path, *, stores: Mapping[str, str | Path]) -> Dataset:
    """Write `dataset.json` for the stores in these folders and return the dataset.

    Args:
        stores: folder of each store by name: "records", "tokens", "index", "tokenizer" and, where used, "latents" with
            "normaliser", "token_states" with "state_normaliser", "images" with "image_normaliser", "token_vectors",
            "token_clusters", and any further shard store that an objective reads.

    Raises:
        StoreError: a store is missing or damaged, or a required store is not named.
        FingerprintError: the stores were not made from one another.
    """
    directory = Path(directory)
    if missing := [name for name in REQUIRED if name not in stores]:
        raise StoreError(
            f"{directory}: expected the stores {', '.join(REQUIRED)}, found no {missing[0]} among {list(stores)}."
        )
    for name, normaliser in NORMALISERS.items():
        if name in stores and normaliser not in stores:
            raise StoreError(f"{directory}: a dataset with {name} needs their normaliser. {_AGAIN}")
    about, made_from = {}, {}
    for name, folder in stores.items():
        if name in _FOLDERS:
            found, kind = _fingerprint(_FOLDERS[name].load(folder)), name
        else:
            manifest = Manifest.read(folder)
            found, kind, made_from[name] = manifest.fingerprint, manifest.kind, manifest.fingerprints
            _refuse_other_store(name, folder, manifest)
        path = Path(os.path.relpath(Path(folder).resolve(), directory.resolve())).as_posix()
        about[name] = {"path": path, "kind": kind, "fingerprint": found}
    for name, ingredients in made_from.items():
        for other, wanted in ingredients.items():
            if other in about and about[other]["fingerprint"] != wanted:
                raise FingerprintError(
                    f"{stores[name]}: the {name} were made with {other} {wanted}, but the {other} in {stores[other]} "
                    f"have fingerprint {about[other]['fingerprint']}. {_AGAIN}"
                )
    for name, normaliser in NORMALISERS.items():
        if name not in stores:
            continue
        is_latents = about[name]["kind"] == "latents"
        dim = LatentStore.open(stores[name]).dim if is_latents else Manifest.read(stores[name]).meta.get("dim")
        if dim != (fitted := Normaliser.load(stores[normaliser]).dim):
            raise StoreError(f"{stores[normaliser]}: expected a normaliser of dim {dim}, found {fitted}. {_AGAIN}")
    encoder = made_from.get("latents", {}).get("encoder")
    dataset = Dataset(directory, about, encoder=encoder)
    document = {"format_version": FORMAT_VERSION, "fingerprint": dataset.fingerprint, "encoder": encoder}
    write_json(directory / NAME, {**document, "stores": about})
    return dataset


def _refuse_other_store(name: str, folder: str | Path, manifest: Manifest) -> None:
    """Raise StoreError if a folder contains another store than the one that it is named as."""
    if manifest.kind != _KINDS.get(name, manifest.kind):
        raise StoreError(
            f"{folder}: expected the store of the {name}, of kind '{_KINDS[name]}', found one of kind "
            f"'{manifest.kind}'. Name its folder."
        )
    source = _MADE_FROM.get(name)
    if source is not None and source not in manifest.fingerprints:
        raise StoreError(
            f"{folder}: expected the store of the {name}, made from {source}, found one made from "
            f"{', '.join(manifest.fingerprints) or 'nothing'}. Name its folder."
        )


def values(store: ShardStore) -> npt.NDArray[Any]:
    """All values of a store, (rows, d): the column `latent` of a store of vectors, else the column `value`."""
    found: npt.NDArray[Any] = store.fixed("latent" if store.manifest.kind == "latents" else "value").take(slice(None))
    return found


def _open(name: str, folder: Path, kind: str) -> Any:
    if name in _FOLDERS:
        return _FOLDERS[name].load(folder)
    return (LatentStore if kind == "latents" else ShardStore).open(folder, kind)


def _fingerprint(opened: Any) -> str:
    value: str = opened.manifest.fingerprint if isinstance(opened, ShardStore) else opened.fingerprint
    return value


def _is_entry(about: Any) -> bool:
    return isinstance(about, dict) and all(isinstance(about.get(key), str) for key in ("path", "kind", "fingerprint"))
