"""Merge prepared chunks in the order of the sources: remove duplicates, assign splits, and count every row.

A text that describes something, such as an image, is a duplicate only if the same text occurs with the same thing; the
thing alone decides its split, so that no image is in two splits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from mm_ldlm.core.messages import shorten
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.dedup import DigestMap, NearDuplicates, as_words, signature
from mm_ldlm.data.corpus.preparing import Prepared
from mm_ldlm.data.corpus.record import (
    PAIR,
    RECORD_SCHEMA,
    comparison_digest,
    comparison_form,
    described_by,
    meta_value,
    whole_text,
)
from mm_ldlm.data.corpus.side import SideStore
from mm_ldlm.data.corpus.sources.base import DAMAGE, HELD_OUT, BadRow, Row, printable
from mm_ldlm.data.corpus.splits import SPLITS, Split
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
        self._labels = [source.label for source in config.sources]
        self._ids, self._forms = DigestMap(), DigestMap()
        self._near = NearDuplicates(config.near_duplicates) if config.near_duplicates else None
        self._accepted: list[tuple[str, str, str, Split, str | None]] = []
        self._refused: list[tuple[str, str, int, str, str, str]] = []
        self._values: list[Any] = []

    def merge(self, prepared: Prepared) -> None:
        """Sort the rows of the next chunk into accepted, duplicate and quarantined."""
        for outcome, numbers in (("read", prepared.read), ("from_splitting", prepared.from_splitting)):
            for source, number in numbers.items():
                self.counts.sources[self._labels[source]][outcome] += number
        self.counts.truncated += prepared.truncated
        for source, bad in prepared.refused:
            self._refuse(self._labels[source], bad)
        if prepared.rows:
            self._remove_duplicates(prepared)

    def _remove_duplicates(self, prepared: Prepared) -> None:
        known_ids = self._ids.lookup(as_words(prepared.ids)).tolist()
        known_forms = self._forms.lookup(as_words(prepared.forms)).tolist()
        new_ids, new_forms = dict[bytes, int](), dict[bytes, int]()
        for i, (source, row) in enumerate(prepared.rows):
            identity, form = prepared.ids[i], prepared.forms[i]
            split = SPLITS.index(self._split(row, form))
            elsewhere = known_forms[i] if known_forms[i] >= 0 else new_forms.get(form, split)
            near = None if self._near is None or row.describes is not None else prepared.signatures[i]
            if known_ids[i] >= 0 or identity in new_ids:
                kind = "exact"
            elif elsewhere != split:
                place = SPLITS[elsewhere]
                kind = f"in_{place}_but_for_case" if row.describes is None else f"described_in_{place}"
            elif self._near is not None and near is not None and self._near.seen(near):
                kind = "near"
            else:
                new_ids[identity] = 0
                if known_forms[i] < 0:
                    new_forms[form] = split
                if self._near is not None and near is not None:
                    self._near.add(near)
                self._accept(self._labels[source], row, identity.hex(), SPLITS[split], prepared.metas[i])
                continue
            self.counts.sources[self._labels[source]]["duplicates"] += 1
            self.counts.duplicates_by_kind[kind] += 1
        self._remember(new_ids, new_forms)

    def _split(self, row: Row, form: bytes) -> Split:
        """Return the split of a row: its own, or that of the hash."""
        if row.split in SPLITS:
            return row.split
        return self.config.splits.split_of(form, held_out=row.split == HELD_OUT)

    def _remember(self, ids: dict[bytes, int], forms: dict[bytes, int]) -> None:
        for known, new in ((self._ids, ids), (self._forms, forms)):
            known.add(as_words(list(new)), np.array(list(new.values()), np.uint8))

    def _accept(self, label: str, row: Row, identity: str, split: Split, meta: str | None) -> None:
        self.counts.sources[label]["accepted"] += 1
        self.counts.splits[split] += 1
        self._accepted.append((identity, row.text, label, split, meta))
        self._values.append(row.vector)

    def _refuse(self, label: str, bad: BadRow) -> None:
        file, detail = printable(bad.file), printable(shorten(bad.detail, 400))
        self.counts.sources[label]["quarantined"] += 1
        self.counts.quarantined_by_reason[bad.reason] += 1
        self.counts.first_example_by_reason.setdefault(bad.reason, f"{file}, line {bad.line}: {detail}")
        self._refused.append((label, file, bad.line, bad.reason, detail, bad.excerpt))

    # -- stores --------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the next shard of the records or of the quarantine."""
        return max(len(self._accepted), len(self._refused))

    def take_tables(self) -> dict[str, pa.Table]:
        """Return the rows accepted and refused since the last call, and their values for the side store."""
        tables = {
            "records": _table(self._accepted, RECORD_SCHEMA),
            "quarantine": _table(self._refused, QUARANTINE_SCHEMA),
        }
        if self.side is not None:
            tables["side"] = self.side.table([row[0] for row in self._accepted], self._values)
        self._accepted, self._refused, self._values = [], [], []
        return tables

    def restore(self, records: ShardStore) -> None:
        """Restore the state of an interrupted run from the records that it committed."""
        key = self.config.splits.key.encode()
        for table in records.iter_tables(columns=["id", "text", "split", "meta"]):
            ids, forms = dict[bytes, int](), dict[bytes, int]()
            for identity, text, split, meta in zip(*table.to_pydict().values(), strict=True):
                described = described_by(meta)
                ids[bytes.fromhex(identity)] = 0
                forms.setdefault(comparison_digest(described or text, key=key), SPLITS.index(split))
                if self._near is not None and described is None:
                    form = comparison_form(whole_text(text, meta_value(meta, PAIR)))
                    self._near.add(signature(form, self._near.config))
            known = self._forms.lookup(as_words(list(forms)))
            fresh = [form for form, number in zip(forms, known.tolist(), strict=True) if number < 0]
            self._remember(ids, {form: forms[form] for form in fresh})


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
