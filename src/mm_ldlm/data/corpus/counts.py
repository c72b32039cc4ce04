"""Conservation counts of an ingestion: every row is accepted, a duplicate, or quarantined."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from mm_ldlm.data.corpus.sources.base import DAMAGE
from mm_ldlm.data.corpus.splits import SPLITS


@dataclasses.dataclass
class Counts:
    """Row counts of an ingestion. The lists have one entry per source.

    All fields are sums, so that an interrupted and resumed run has the same counts as an uninterrupted one.
    """

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
        """Rows that entered the cleaning: the rows read, plus the extra pieces of rows that were split."""
        return sum(self.read) + sum(self.from_splitting)

    @property
    def damaged(self) -> int:
        """Quarantined rows that indicate a damaged or misread source rather than a filter."""
        return sum(self.quarantined_by[reason] for reason in DAMAGE)

    @property
    def balanced(self) -> bool:
        """Whether every row was accepted, dropped as a duplicate, or quarantined."""
        return self.rows_in == sum(self.accepted) + sum(self.duplicates) + sum(self.quarantined)

    def to_dict(self) -> dict[str, Any]:
        return {name: dict(item) if isinstance(item, dict) else item for name, item in vars(self).items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Counts:
        counters = {name: Counter(plain[name]) for name in ("duplicates_by", "quarantined_by", "splits")}
        return cls(**{**plain, **counters})
