"""How far a preparation has come: written after each committed shard, read when it starts again."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from mm_ldlm.corpus.record import SPLITS
from mm_ldlm.corpus.sources.base import DAMAGE
from mm_ldlm.store import Shard, atomic
from mm_ldlm.store.fingerprint import file_sha256

NAME = "progress.json"


@dataclasses.dataclass
class Counts:
    """Where the rows went. Everything is a sum, so a run in pieces counts like a run in one."""

    read: list[int]
    accepted: list[int]
    duplicates: list[int]
    quarantined: list[int]
    from_splitting: list[int]
    truncated: int = 0
    duplicates_by: Counter[str] = dataclasses.field(default_factory=Counter)
    quarantined_by: Counter[str] = dataclasses.field(default_factory=Counter)
    splits: Counter[str] = dataclasses.field(default_factory=lambda: Counter(dict.fromkeys(SPLITS, 0)))
    examples: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def empty(cls, sources: int) -> Counts:
        zeros = [0] * sources
        return cls(read=[*zeros], accepted=[*zeros], duplicates=[*zeros], quarantined=[*zeros], from_splitting=zeros)

    @property
    def rows_in(self) -> int:
        """Rows read, and those that a too long row was split into beyond the first."""
        return sum(self.read) + sum(self.from_splitting)

    @property
    def damaged(self) -> int:
        """Quarantined rows that speak of a damaged or misread source, not of a filter."""
        return sum(self.quarantined_by[reason] for reason in DAMAGE)

    @property
    def balanced(self) -> bool:
        return self.rows_in == sum(self.accepted) + sum(self.duplicates) + sum(self.quarantined)

    def plain(self) -> dict[str, Any]:
        return {name: dict(item) if isinstance(item, dict) else item for name, item in vars(self).items()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Counts:
        counters = {name: Counter(plain[name]) for name in ("duplicates_by", "quarantined_by", "splits")}
        return cls(**{**plain, **counters})


@dataclasses.dataclass
class Journal:
    """State at the last commit: shards on disk, rows consumed of each source, counts."""

    fingerprint: str
    consumed: list[int]
    exhausted: list[bool]
    counts: Counts
    records: list[Shard]
    quarantine: list[Shard]
    done: bool = False

    @classmethod
    def start(cls, fingerprint: str, sources: int) -> Journal:
        return cls(fingerprint, [0] * sources, [False] * sources, Counts.empty(sources), [], [])

    def write(self, workspace: Path) -> None:
        shards = {
            name: [dataclasses.asdict(shard) for shard in getattr(self, name)] for name in ("records", "quarantine")
        }
        plain = {**vars(self), **shards, "counts": self.counts.plain()}
        atomic.write_json(workspace / NAME, plain)

    @classmethod
    def resume(cls, workspace: Path, quarantine: Path, *, fingerprint: str, sources: int) -> Journal:
        """The journal of an interrupted or finished run of the same making, whose shards are all there unharmed;
        else a new one.
        """
        fresh = cls.start(fingerprint, sources)
        try:
            plain = json.loads((workspace / NAME).read_text(encoding="utf-8"))
            if plain["fingerprint"] != fingerprint:
                return fresh
            plain["counts"] = Counts.from_plain(plain["counts"])
            for name in ("records", "quarantine"):
                plain[name] = [Shard(**shard) for shard in plain[name]]
            journal = cls(**plain)
        except (OSError, ValueError, KeyError, TypeError):
            return fresh
        shards = [(workspace, shard) for shard in journal.records] + [
            (quarantine, shard) for shard in journal.quarantine
        ]
        return journal if all(_unharmed(folder / shard.name, shard) for folder, shard in shards) else fresh


def _unharmed(path: Path, shard: Shard) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and file_sha256(path) == shard.sha256
