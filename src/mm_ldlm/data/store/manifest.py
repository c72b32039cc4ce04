"""The manifest: the contents of a store and the fingerprints of its inputs, written last to commit the store.

A file of a store is hashed once: a small record in its folder lists the name, size, times of modification and change,
and checksum of each file that was compared. A file that was written, replaced or renamed since then has other numbers
and is hashed again. The record is a cache that nothing else reads: it may be removed, and a folder that cannot be
written to is hashed once in every process. Bytes that change on the disk itself, without a write, keep their times;
only `Shard.is_intact`, which validation and extraction call, reads every byte again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from mm_ldlm.core import FingerprintError, StoreError, bounded, show
from mm_ldlm.core.files import InputFile, inside, json_document, write_json
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

NAME = "manifest.json"
VERIFIED = ".verified"
REMEDY = (
    "Remove it if it is there, and run the pipeline that writes this store; it keeps what is intact."
)  # fmt: skip
_Count = Annotated[int, bounded(ge=0, lt=2**63)]
_verified: dict[str, set[str]] = {}
"""Folder → lines of its record, and those that could not be written to it."""


@json_document
class Shard:
    """One file of a store, with its size and checksum."""

    name: Annotated[str, bounded(pattern=r"^[A-Za-z0-9._-]+\.arrow$")]
    rows: _Count
    bytes: _Count
    sha256: str

    def check(self, directory: Path) -> Path:
        """Return the path of the file; raise StoreError if it is missing, outside the folder or of another size."""
        file = InputFile(directory / self.name, remedy=REMEDY)
        if (size := file.check().stat().st_size) != self.bytes:
            file.refuse(f"a shard of {self.rows} rows in {self.bytes} bytes", f"{size} bytes")
        return inside(directory, self.name)

    def is_intact(self, directory: Path) -> bool:
        """Return whether the file exists and has the recorded checksum; reads every byte."""
        try:
            return file_sha256(self.check(directory)) == self.sha256
        except StoreError:
            return False

    def verify(self, directory: Path) -> None:
        """Compare the checksum with the file, unless that was done since the file changed; StoreError if it differs."""
        line = self.line(directory)
        if line in _lines(directory):
            return
        file = InputFile(directory / self.name, remedy=REMEDY)
        if (found := file_sha256(directory / self.name)) != self.sha256:
            file.refuse(f"the sha256 {self.sha256}", f"{found}: the bytes changed after they were written")
        remember(directory, line)

    def line(self, directory: Path) -> str:
        """Return the line of the record for the present file."""
        about = self.check(directory).stat()
        return f"{self.name} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {self.sha256}"


def remember(directory: Path, line: str) -> None:
    """Add a line to the record of verified files of a folder."""
    _lines(directory).add(line)
    # One append of one short line: writers in other processes cannot mix with it, and a torn line matches no file.
    # O_NONBLOCK: a pipe in its place would be opened only when somebody reads it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    with contextlib.suppress(OSError), open(os.open(directory / VERIFIED, flags, 0o644), "w") as file:
        file.write(f"{line}\n")


def _lines(directory: Path) -> set[str]:
    key = os.path.abspath(directory)
    if key not in _verified:
        _verified[key] = set()
        with contextlib.suppress(StoreError):
            _verified[key] |= set(InputFile(directory / VERIFIED, remedy="").lines())
    return _verified[key]


@json_document
class Manifest:
    """Contents of `manifest.json`.

    Attributes:
        kind: kind of the store ("records", "tokens", "latents", "index", ...).
        rows: rows in all shards together.
        shards: in row order; an empty store has one without rows, which has its columns.
        fingerprints: of all inputs of the store, by name ("records", "encoder", "tokenizer", "parameters", ...).
        meta: further information (dimension, vocabulary size, counts); plain JSON.
    """

    kind: str
    rows: int
    shards: tuple[Shard, ...] = ()
    fingerprints: dict[str, str] = dataclasses.field(default_factory=dict)
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)
    format_version: Literal[1] = 1

    @property
    def fingerprint(self) -> str:
        """Digest of the manifest with the shards' checksums: it changes when any byte of the store changes."""
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
        file = InputFile(Path(directory) / NAME, remedy=REMEDY)
        found: Manifest = file.json(cls)
        different = len({shard.name for shard in found.shards})
        if different < len(found.shards) or sum(shard.rows for shard in found.shards) != found.rows:
            file.refuse(f"different shards with {found.rows} rows together", show(found.shards, 200))
        return found

    @classmethod
    def finished(cls, directory: str | Path, fingerprints: dict[str, str]) -> Manifest | None:
        """Read the manifest of a finished store of these inputs; None if there is none, or a shard is damaged."""
        found = cls.read(directory) if cls.exists(directory) else None
        if found is None or found.fingerprints != fingerprints:
            return None
        return found if all(shard.is_intact(Path(directory)) for shard in found.shards) else None

    def require(self, *, directory: str | Path, **fingerprints: str) -> None:
        """Refuse the store unless it was made from the inputs with these fingerprints (`records=...`).

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
