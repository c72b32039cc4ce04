"""Merging of prepared rows in the order of the sources: duplicates, splits, counts and quarantine."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mm_ldlm.core import shorten
from mm_ldlm.data.corpus.cleaning import Candidate, Prepared, SideStore
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.duplicates import DigestMap, NearDuplicates, joined
from mm_ldlm.data.corpus.quarantine import DAMAGE, QUARANTINE_SCHEMA, printable
from mm_ldlm.data.corpus.record import (
    PAIR,
    PIECE_OF,
    RECORD_SCHEMA,
    comparison_digest,
    comparison_form,
    described_by,
    meta_value,
    whole_text,
)
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.store import ShardStore

SHARD_CHARACTERS = 1 << 28
"""Characters of texts after which a shard is full: an Arrow column has at most 2 GiB, and a character four bytes"""


@dataclasses.dataclass
class Counts:
    """Counts of rows; all are sums, so that a resumed run has the counts of an uninterrupted one.

    `vars` of them are plain JSON.

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
        self._accepted, self._refused = list[dict[str, Any]](), list[dict[str, Any]]()
        self._values = list[Any]()
        self._characters = 0

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
            self._refused.append(
                {"source": source, "file": file, "line": bad.line, "reason": bad.reason, "detail": detail,
                 "excerpt": bad.excerpt}
            )  # fmt: skip
        for _, pieces in itertools.groupby(prepared.candidates, key=lambda candidate: candidate.document):
            self._merge_document(list(pieces))

    def _merge_document(self, pieces: Sequence[Candidate]) -> None:
        counts, split = self.counts, pieces[0].split(self.config.splits)
        number, accepted, divided = SPLITS.index(split), list[Any](), len(pieces) > 1
        whole = self._near_split(joined([piece.signature for piece in pieces]), number)
        for source, row, meta, identity, form, _, signature, _ in pieces:
            elsewhere = self._forms.get(form)
            if self._ids.get(identity) is not None:
                kind = "exact"
            elif elsewhere not in (None, number):
                place = SPLITS[elsewhere or 0]
                kind = f"in_{place}_but_for_case" if row.describes is None else f"described_in_{place}"
            elif (near := self._near_split(signature, number) if divided and whole is None else whole) is not None:
                kind = "near" if near == number else f"near_in_{SPLITS[near]}"
            else:
                self._remember(identity, form, number, signature)
                accepted.append(signature)
                counts.sources[source]["accepted"] += 1
                counts.splits[split] += 1
                self._accepted.append(
                    {"id": identity.hex(), "text": row.text, "source": source, "split": split, "meta": meta}
                )
                self._values.append(row.vector)
                self._characters += len(row.text) + len(meta or "")
                continue
            counts.sources[source]["duplicates"] += 1
            counts.duplicates_by_kind[kind] += 1
        self._remember_document(accepted, number)

    def _near_split(self, signature: Any, number: int) -> int | None:
        return None if self._near is None or signature is None else self._near.split_of(signature, split=number)

    def _remember(self, identity: bytes, form: bytes, number: int, signature: Any) -> None:
        self._ids.put(identity, 0)
        self._forms.put(form, number)
        if self._near is not None and signature is not None:
            self._near.add(signature, split=number)

    def _remember_document(self, accepted: Sequence[Any], number: int) -> None:
        """Keep the signature of all accepted pieces of a document together, in addition to the pieces' signatures."""
        if self._near is not None and len(accepted) > 1 and (whole := joined(accepted)) is not None:
            self._near.add(whole, split=number)

    def fills_shard(self, rows: int) -> bool:
        """Return whether the records or the quarantine have so many rows for the next shard, or their texts fill it."""
        return max(len(self._accepted), len(self._refused)) >= rows or self._characters >= SHARD_CHARACTERS

    def take_tables(self) -> dict[str, pa.Table]:
        """Return the rows accepted and refused since the last call, and their values for the side store."""
        tables = {
            "records": pa.Table.from_pylist(self._accepted, schema=RECORD_SCHEMA),
            "quarantine": pa.Table.from_pylist(self._refused, schema=QUARANTINE_SCHEMA),
        }
        if self.side is not None:
            tables["side"] = self.side.table([row["id"] for row in self._accepted], self._values)
        self._accepted, self._refused, self._values, self._characters = [], [], [], 0
        return tables

    def restore(self, records: ShardStore) -> None:
        """Restore the state of an interrupted run from the records that it committed."""
        key, near = self.config.splits.key.encode(), self.config.near_duplicates
        rows = (
            row
            for table in records.iter_tables(columns=["id", "text", "split", "meta"])
            for row in zip(*table.to_pydict().values(), strict=True)
        )
        for _, pieces in itertools.groupby(rows, key=lambda row: meta_value(row[3], PIECE_OF) or row[0]):
            accepted, number = list[Any](), 0
            for identity, text, split, meta in pieces:
                described, signature, number = described_by(meta), None, SPLITS.index(split)
                if near is not None and described is None:
                    signature = near.signature(comparison_form(whole_text(text, meta_value(meta, PAIR))))
                form = comparison_digest(described or text, key=key)
                self._remember(bytes.fromhex(identity), form, number, signature)
                accepted.append(signature)
            self._remember_document(accepted, number)
