"""Merge prepared chunks in the order of the sources: remove duplicates, assign splits, and count every row.

A text that describes something, such as an image, is a duplicate only if the same text occurs with the same thing; the
thing alone decides its split, so that no image is in two splits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pyarrow as pa

from mm_ldlm.core.messages import shorten
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.dedup import DigestMap, NearDuplicates
from mm_ldlm.data.corpus.preparing import Prepared, SideStore
from mm_ldlm.data.corpus.record import (
    PAIR,
    RECORD_SCHEMA,
    comparison_digest,
    comparison_form,
    described_by,
    meta_value,
    whole_text,
)
from mm_ldlm.data.corpus.sources.base import DAMAGE, HELD_OUT, printable
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.store import ShardStore

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)
"""Columns of the quarantine store of ingestion"""


@dataclasses.dataclass
class Counts:
    """Counts of rows; all are sums, so that a resumed run has the counts of an uninterrupted one.

    Attributes:
        sources: source → outcome (read, from_splitting, accepted, duplicates, quarantined) → rows.
        truncated: texts of which only the first tokens are used.
    """

    sources: dict[str, Counter[str]]
    duplicates_by_kind: Counter[str] = dataclasses.field(default_factory=Counter)
    quarantined_by_reason: Counter[str] = dataclasses.field(default_factory=Counter)
    splits: Counter[str] = dataclasses.field(default_factory=lambda: Counter(dict.fromkeys(SPLITS, 0)))
    first_example_by_reason: dict[str, str] = dataclasses.field(default_factory=dict)
    truncated: int = 0

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Counts:
        """Return the counts from their JSON form, which is `vars`."""
        counters = {name: Counter(plain[name]) for name in ("duplicates_by_kind", "quarantined_by_reason", "splits")}
        return cls(**{**plain, **counters, "sources": {name: Counter(each) for name, each in plain["sources"].items()}})

    def total(self, *outcomes: str) -> int:
        """Return the number of rows of all sources with these outcomes."""
        return sum(counts[outcome] for counts in self.sources.values() for outcome in outcomes)

    @property
    def rows_in(self) -> int:
        """Rows read, and the further rows that splitting made of them."""
        return self.total("read", "from_splitting")

    @property
    def damaged(self) -> int:
        """Quarantined rows that indicate a damaged or misread source rather than a filter."""
        return sum(self.quarantined_by_reason[reason] for reason in DAMAGE)


class Merger:
    """Merges chunks. It keeps the digests of the accepted texts, and the rows that wait for the next shard."""

    def __init__(self, config: IngestionConfig, counts: Counts, side: SideStore | None = None) -> None:
        self.config, self.counts, self.side = config, counts, side
        self._ids, self._forms = DigestMap(), DigestMap()
        self._near = None if config.near_duplicates is None else NearDuplicates(config.near_duplicates)
        self._accepted: list[tuple[str, str, str, str, str | None]] = []
        self._refused: list[tuple[str, str, int, str, str, str]] = []
        self._values: list[Any] = []

    def merge(self, prepared: Prepared) -> None:
        """Sort the rows of the next chunk into accepted, duplicate and quarantined."""
        counts = self.counts
        counts.truncated += prepared.truncated
        for (source, outcome), number in prepared.counts.items():
            counts.sources[source][outcome] += number
        for source, bad in prepared.refused:
            file, detail = printable(bad.file), printable(shorten(bad.detail, 400))
            counts.sources[source]["quarantined"] += 1
            counts.quarantined_by_reason[bad.reason] += 1
            counts.first_example_by_reason.setdefault(bad.reason, f"{file}, line {bad.line}: {detail}")
            self._refused.append((source, file, bad.line, bad.reason, detail, bad.excerpt))
        for source, row, meta, identity, form, signature in prepared.candidates:
            split = row.split or ""
            if split not in SPLITS:
                split = self.config.splits.split_of(form, held_out=split == HELD_OUT)
            number, elsewhere = SPLITS.index(split), self._forms.get(form)
            if self._ids.get(identity) is not None:
                kind = "exact"
            elif elsewhere not in (None, number):
                place = SPLITS[elsewhere or 0]
                kind = f"in_{place}_but_for_case" if row.describes is None else f"described_in_{place}"
            elif self._near is not None and signature is not None and self._near.seen(signature):
                kind = "near"
            else:
                self._remember(identity, form, number, signature)
                counts.sources[source]["accepted"] += 1
                counts.splits[split] += 1
                self._accepted.append((identity.hex(), row.text, source, split, meta))
                self._values.append(row.vector)
                continue
            counts.sources[source]["duplicates"] += 1
            counts.duplicates_by_kind[kind] += 1

    def _remember(self, identity: bytes, form: bytes, number: int, signature: Any) -> None:
        self._ids.put(identity, 0)
        if self._forms.get(form) is None:
            self._forms.put(form, number)
        if self._near is not None and signature is not None:
            self._near.add(signature)

    # -- stores --------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the next shard of the records or of the quarantine."""
        return max(len(self._accepted), len(self._refused))

    def take_tables(self) -> dict[str, pa.Table]:
        """Return the rows accepted and refused since the last call, and their values for the side store."""
        named = (("records", self._accepted, RECORD_SCHEMA), ("quarantine", self._refused, QUARANTINE_SCHEMA))
        tables = {name: _table(rows, schema) for name, rows, schema in named}
        if self.side is not None:
            tables["side"] = self.side.table([row[0] for row in self._accepted], self._values)
        self._accepted, self._refused, self._values = [], [], []
        return tables

    def restore(self, records: ShardStore) -> None:
        """Restore the state of an interrupted run from the records that it committed."""
        key, near = self.config.splits.key.encode(), self.config.near_duplicates
        for table in records.iter_tables(columns=["id", "text", "split", "meta"]):
            for identity, text, split, meta in zip(*table.to_pydict().values(), strict=True):
                described, signature = described_by(meta), None
                if near is not None and described is None:
                    signature = near.signature(comparison_form(whole_text(text, meta_value(meta, PAIR))))
                form = comparison_digest(described or text, key=key)
                self._remember(bytes.fromhex(identity), form, SPLITS.index(split), signature)


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
