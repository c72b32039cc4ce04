"""The manifest: the contents of a store and the fingerprints of its inputs, written last to commit the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import FingerprintError, StoreError
from mm_ldlm.data.store import atomic
from mm_ldlm.data.store.fingerprint import fingerprint

FORMAT_VERSION = 1
NAME = "manifest.json"


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
        atomic.write_json(Path(directory) / NAME, dataclasses.asdict(self))

    @staticmethod
    def exists(directory: str | Path) -> bool:
        return (Path(directory) / NAME).is_file()

    @classmethod
    def read(cls, directory: str | Path) -> Manifest:
        """Read the manifest of a store.

        Raises:
            StoreError: There is none, it is damaged, or it has another format version.
        """
        path = Path(directory) / NAME
        try:
            plain = atomic.read_json(path)
        except FileNotFoundError:
            raise StoreError(
                f"{Path(directory)}: no {NAME}, so the store is not finished. Run the pipeline that writes it; "
                "existing shards are kept."
            ) from None
        except OSError as error:  # the folder is a file, a loop of links, or a name that is too long
            raise StoreError(f"{path}: cannot be read ({error.strerror}). Correct the path of the store.") from None
        except ValueError as error:
            raise StoreError(f"{path}: not readable as JSON ({error}). Remove it and run the pipeline again.") from None
        version = plain.get("format_version") if isinstance(plain, dict) else None
        if version != FORMAT_VERSION:
            raise StoreError(
                f"{path}: expected format version {FORMAT_VERSION}, found {version!r}. Write the store again."
            )
        try:
            plain["shards"] = tuple(Shard(**shard) for shard in plain["shards"])
            manifest = cls(**plain)
        except (TypeError, KeyError) as error:
            raise StoreError(f"{path}: a field is missing or unknown ({error}). Write the store again.") from None
        if wrong := manifest._wrong_types():
            raise StoreError(f"{path}: {wrong}. Write the store again.")
        total = sum(shard.rows for shard in manifest.shards)
        names = [shard.name for shard in manifest.shards]
        if outside := [name for name in names if Path(name).name != name or name in ("", ".", "..") or "\0" in name]:
            raise StoreError(f"{path}: shard {outside[0]!r} is not a file of this folder. Write the store again.")
        if len(set(names)) < len(names):
            raise StoreError(f"{path}: expected {len(names)} shards, found {len(set(names))}: some are named twice.")
        if total != manifest.rows:
            raise StoreError(
                f"{path}: expected {manifest.rows} rows, found {total} in the shards. Write the store again."
            )
        return manifest

    def _wrong_types(self) -> str | None:
        """Describe the first field whose value has another type than the manifest of a store; None if there is none."""
        for shard in self.shards:
            for name, value in dataclasses.asdict(shard).items():
                counts = name in ("rows", "bytes")
                if not (_is_count(value) if counts else isinstance(value, str)):
                    return f"expected {'a number of at least 0' if counts else 'a text'} as {name}, found {value!r:.60}"
        if not isinstance(self.kind, str) or not _is_count(self.rows):
            return f"expected a text as kind and a number as rows, found {self.kind!r:.60} and {self.rows!r:.60}"
        if not isinstance(self.fingerprints, dict) or not isinstance(self.meta, dict):
            return "expected mappings under 'fingerprints' and 'meta'"
        if other := [value for value in self.fingerprints.values() if not isinstance(value, str)]:
            return f"expected texts under 'fingerprints', found {other[0]!r:.60}"
        return None

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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
