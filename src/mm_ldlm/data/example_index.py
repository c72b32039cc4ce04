"""Index of the valid examples, quarantine of the others, and the examples of a split."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_ldlm.core import ValidationError
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.store import Manifest, ShardStore, write_store

INDEX_SCHEMA = pa.schema([("id", pa.string()), ("row", pa.int64()), ("split", pa.string()), ("length", pa.int32())])
"""One entry per valid example; `row` is its row in the record, token and latent stores, `length` counts tokens."""
QUARANTINE_SCHEMA = pa.schema(
    [("row", pa.int64()), ("id", pa.string()), ("split", pa.string()), ("reason", pa.string()), ("text", pa.string())]
)
"""One entry per row that failed a check, and reason"""
_ROWS = 65_536


def write_quarantine(records: ShardStore, failing: dict[str, npt.NDArray[np.int64]], workspace: Path) -> Manifest:
    """Write the failed rows with their reasons, in row order."""
    pairs = sorted((int(row), reason) for reason, rows in failing.items() for row in rows if row < len(records))

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(pairs), _ROWS):
            rows, reasons = zip(*pairs[start : start + _ROWS], strict=True)
            yield records.table(rows).append_column("row", [rows]).append_column("reason", [reasons])

    return write_store(
        workspace, tables(), kind="quarantine", schema=QUARANTINE_SCHEMA,
        fingerprints={"records": records.manifest.fingerprint},
        meta={"reasons": dict(sorted(Counter(reason for _, reason in pairs).items()))},
    )  # fmt: skip


def write_index(
    records: ShardStore, tokens: ShardStore, latents: ShardStore | None, quarantine: ShardStore, workspace: Path
) -> Manifest:
    """Write every row that is not in quarantine; `latents` is None for a corpus without latents.

    Raises:
        ValidationError: no example of the training split is left.
    """
    valid = np.ones(len(records), bool)
    if len(quarantine):
        valid[quarantine.gather("row", slice(None)).to_numpy()] = False
    rows = np.flatnonzero(valid)
    counts = {each["values"]: each["counts"] for each in pc.value_counts(records.gather("split", rows)).to_pylist()}
    splits = {split: counts.get(split, 0) for split in SPLITS}
    if not splits["train"]:
        raise ValidationError(
            f"expected training examples, found none: {len(records)} records, {int((~valid).sum())} in quarantine, "
            f"splits {splits}. See validation_report for the reasons, and check ingestion.splits."
        )
    tables = (
        {
            "id": records.gather("id", part), "split": records.gather("split", part), "row": part,
            "length": tokens.gather("length", part),
        }
        for part in np.split(rows, range(_ROWS, len(rows), _ROWS))
    )  # fmt: skip
    stores = {"records": records, "tokens": tokens, "latents": latents, "quarantine": quarantine}
    return write_store(
        workspace, tables, kind="index", schema=INDEX_SCHEMA, shard_rows=1 << 20,
        fingerprints={name: store.manifest.fingerprint for name, store in stores.items() if store is not None},
        meta={"splits": splits, "quarantined": int((~valid).sum())},
    )  # fmt: skip


def split_column(index: ShardStore, split: str, column: str) -> npt.NDArray[np.int64]:
    """Read an integer column (n,) of the index ("row", "length") for the examples of one split, in order.

    The index is streamed, so the examples of other splits take no memory.
    """
    tables = index.iter_tables(columns=["split", column])
    parts = [table.column(column).filter(pc.equal(table.column("split"), split)).to_numpy() for table in tables]
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
