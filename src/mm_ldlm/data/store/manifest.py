"""The manifest: the contents of a store and the fingerprints of its inputs, written last to commit the store."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import FingerprintError
from mm_ldlm.core.files import InputFile, write_json
from mm_ldlm.core.messages import show
from mm_ldlm.data.store.fingerprint import fingerprint

FORMAT_VERSION = 1
NAME = "manifest.json"
_SHARD_NAME = re.compile(r"[A-Za-z0-9._-]+\.arrow")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of a store, with its size and checksum."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of `manifest.json`.

    Attributes:
        kind: kind of the store ("records", "tokens", "latents", "index", ...).
        rows: rows in all shards together.
        shards: in row order.
        fingerprints: of all inputs of the store, by name ("records", "encoder", "tokenizer", "parameters", ...).
        meta: further information (dimension, vocabulary size, counts); plain JSON.
    """

    kind: str
    rows: int
    shards: tuple[Shard, ...] = ()
    fingerprints: dict[str, str] = dataclasses.field(default_factory=dict)
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """Digest of the whole manifest with the shards' checksums: it changes when any byte of the store changes."""
        return fingerprint(dataclasses.asdict(self))

    def write(self, directory: str | Path) -> None:
        """Commit the store in `directory`."""
        write_json(Path(directory) / NAME, dataclasses.asdict(self))

    @staticmethod
    def exists(directory: str | Path) -> bool:
        return (Path(directory) / NAME).is_file()

    @classmethod
    def read(cls, directory: str | Path) -> Manifest:
        """Read the manifest of a store.

        Raises:
            StoreError: There is none, it is damaged, or it has another format version.
        """
        file = InputFile(
            Path(directory) / NAME, remedy="Run the pipeline that writes this store; if the file is there, remove it."
        )  # fmt: skip
        found: Manifest = file.json(cls)
        if found.format_version != FORMAT_VERSION:
            file.refuse(f"format version {FORMAT_VERSION}", str(found.format_version))
        names = [shard.name for shard in found.shards]
        if other := [name for name in names if not _SHARD_NAME.fullmatch(name) or names.count(name) > 1]:
            file.refuse("names of different shards of this folder", show(other, 200))
        counts = [count for shard in found.shards for count in (shard.rows, shard.bytes)]
        if not all(0 <= count < 2**63 for count in counts) or sum(shard.rows for shard in found.shards) != found.rows:
            file.refuse(f"shards with {found.rows} rows together", show(found.shards, 200))
        return found

    def require(self, *, directory: str | Path, **fingerprints: str) -> None:
        """Refuse the store unless it was made from the inputs with these fingerprints (`encoder=...`, `records=...`).

        Raises:
            FingerprintError: An input differs; the message names the store, the input and both fingerprints.
        """
        for name, wanted in fingerprints.items():
            found = self.fingerprints.get(name)
            if found != wanted:
                raise FingerprintError(
                    f"{Path(directory)}: expected a {self.kind} store made with {name} {wanted}, found {name} {found}. "
                    f"Use the {name} that the store was made with, or remove the directory and run the pipeline again."
                )
