"""The quarantine of the rows that fail a check of the validation, each with its reason."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.data.store import Manifest, ShardStore, write_store

QUARANTINE_SCHEMA = pa.schema(
    [("row", pa.int64()), ("id", pa.string()), ("split", pa.string()), ("reason", pa.string()), ("text", pa.string())]
)
"""One entry per failed row and reason."""
_QUARANTINE_ROWS = 65_536


def write_quarantine(records: ShardStore, failing: dict[str, npt.NDArray[np.int64]], workspace: Path) -> Manifest:
    """Write the failed rows with their reasons, in row order."""
    pairs = sorted((int(row), reason) for reason, rows in failing.items() for row in rows if row < len(records))

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(pairs), _QUARANTINE_ROWS):
            rows, reasons = zip(*pairs[start : start + _QUARANTINE_ROWS], strict=True)
            yield records.table(rows).append_column("row", [rows]).append_column("reason", [reasons])

    return write_store(
        workspace, tables(), kind="quarantine", schema=QUARANTINE_SCHEMA,
        fingerprints={"records": records.manifest.fingerprint},
        meta={"reasons": {reason: len(rows) for reason, rows in sorted(failing.items())}},
    )  # fmt: skip
