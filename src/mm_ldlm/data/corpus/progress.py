"""Progress of an ingestion: written after each committed shard, and read when an interrupted run is resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.store import Shard
from mm_ldlm.data.store.fingerprint import file_sha256

NAME = "progress.json"
_STORES = ("records", "quarantine", "vectors")


@dataclasses.dataclass
class Progress:
    """State at the last commit: shards on disk, rows consumed from each source, and counts."""

    fingerprint: str
    consumed: list[int]
    exhausted: list[bool]
    counts: Counts
    records: list[Shard]
    quarantine: list[Shard]
    vectors: list[Shard] = dataclasses.field(default_factory=list)
    done: bool = False

    @classmethod
    def start(cls, fingerprint: str, sources: int) -> Progress:
        return cls(fingerprint, [0] * sources, [False] * sources, Counts.empty(sources), [], [])

    def write(self, workspace: Path) -> None:
        shards = {name: [dataclasses.asdict(shard) for shard in getattr(self, name)] for name in _STORES}
        plain = {**vars(self), **shards, "counts": self.counts.to_dict()}
        write_json(workspace / NAME, plain)

    @classmethod
    def resume(
        cls, workspace: Path, quarantine: Path, vectors: Path | None = None, *, fingerprint: str, sources: int
    ) -> Progress:
        """Read the progress of an earlier run with this fingerprint if its shards are intact; otherwise start again."""
        fresh = cls.start(fingerprint, sources)
        try:
            plain = recorded(workspace / NAME) or {}
            if plain["fingerprint"] != fingerprint:
                return fresh
            plain["counts"] = Counts.from_dict(plain["counts"])
            for name in _STORES:
                plain[name] = [Shard(**shard) for shard in plain.get(name, [])]
            progress = cls(**plain)
        except (OSError, ValueError, KeyError, TypeError):
            return fresh
        stores = [(workspace, progress.records), (quarantine, progress.quarantine), (vectors, progress.vectors)]
        intact = all(
            folder is not None and _is_intact(folder / shard.name, shard)
            for folder, shards in stores
            for shard in shards
        )
        return progress if intact else fresh


def _is_intact(path: Path, shard: Shard) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and file_sha256(path) == shard.sha256
