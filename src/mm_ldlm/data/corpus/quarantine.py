"""Quarantine: rows that are refused during ingestion, each with its location, a reason and an excerpt."""

from __future__ import annotations

import pyarrow as pa

from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.sources.base import excerpt, printable

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
"""Columns of the quarantine store of ingestion."""


class Quarantine:
    """Collects refused rows until the next shard is written, and counts them."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._rows: list[tuple[str, str, int, str, str, str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, source: int, label: str, *, file: str, line: int, reason: str, detail: str, text: str) -> None:
        """Refuse a row of the source with this number and label."""
        file, detail = printable(file), printable(detail)
        self.counts.quarantined[source] += 1
        self.counts.quarantined_by[reason] += 1
        self.counts.examples.setdefault(reason, f"{file}, line {line}: {detail}")
        self._rows.append((label, file, line, reason, detail, excerpt(text)))

    def take_table(self) -> pa.Table:
        """Return the rows collected since the last call as a table of `QUARANTINE_SCHEMA`."""
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(QUARANTINE_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, QUARANTINE_SCHEMA, strict=True)]
        self._rows = []
        return pa.table(arrays, schema=QUARANTINE_SCHEMA)
