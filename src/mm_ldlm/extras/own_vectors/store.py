"""The store of given vectors: the vector of every record, where the sources contain them, in the order of the records.

The embedding pipeline makes latents of them (`mm_ldlm.extras.own_vectors.latents`).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import setting
from mm_ldlm.data.corpus.vectors import vector_of
from mm_ldlm.data.store import Manifest, Shard, fixed_lists
from mm_ldlm.data.store.fingerprint import fingerprint

KIND = "vectors"
COLUMN = "vector"
_SHARD_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class VectorStore:
    """The folder that ingestion fills with vectors (a `SideStore`), and the dimension that each must have."""

    dim: int
    workspace: Path

    @property
    def most_rows(self) -> int:
        """Rows of a shard whose vectors fit the memory that ingestion uses for them."""
        return max(1, _SHARD_BYTES // (4 * self.dim))

    @property
    def fingerprint(self) -> str:
        """Digest of the dimension."""
        return fingerprint(self.dim)

    def accept(self, value: Any) -> npt.NDArray[np.float32]:
        """Return the vector of a row (d,) as finite float32; `Unusable` for others (`vector_of`)."""
        return vector_of(
            value, dim=self.dim, remedy=lambda found: f"If all are like this, add {setting('encoder.dim', found)}."
        )

    def table(self, ids: Sequence[str], values: Sequence[npt.NDArray[np.float32]]) -> pa.Table:
        """Return n ids and n vectors as rows of the store."""
        matrix_nd = np.stack(values) if len(values) else np.empty((0, self.dim), np.float32)
        return pa.table({"id": pa.array(ids, pa.string()), COLUMN: fixed_lists(matrix_nd)})

    def commit(self, shards: Sequence[Shard], *, records: Manifest) -> None:
        """Write the manifest of the finished store; it belongs to these records."""
        Manifest(
            kind=KIND,
            rows=sum(shard.rows for shard in shards),
            shards=tuple(shards),
            fingerprints={"records": records.fingerprint},
            meta={"columns": ["id", COLUMN], "dim": self.dim},
        ).write(self.workspace)
