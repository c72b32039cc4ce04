"""The store of given vectors: the vector of every record, where the sources contain them, in the order of the records.

The embedding pipeline makes latents of them (`mm_ldlm.extras.own_vectors.latents`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.data.store import Manifest, Shard

KIND = "vectors"
COLUMN = "vector"
_SHARD_BYTES = 1 << 28


def vector_schema(dim: int) -> pa.Schema:
    """Return the columns of the store: id, and the vector of `dim` float32 numbers."""
    return pa.schema([pa.field("id", pa.string(), nullable=False), pa.field(COLUMN, pa.list_(pa.float32(), dim))])


def vector_table(ids: Sequence[str | None], vectors: Sequence[npt.NDArray[np.float32]], *, dim: int) -> pa.Table:
    """Convert n ids and n vectors (d,) to rows of the store."""
    flat = np.concatenate(vectors) if vectors else np.empty(0, np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), dim)
    return pa.Table.from_arrays([pa.array(ids, pa.string()), column], schema=vector_schema(dim))


@dataclasses.dataclass(frozen=True)
class VectorStore:
    """The folder that the ingestion fills with vectors, and the dimension that each of them must have."""

    dim: int
    workspace: Path

    @property
    def most_rows(self) -> int:
        """Rows of a shard whose vectors fit the memory that the ingestion uses for them."""
        return max(1, _SHARD_BYTES // (4 * self.dim))

    def commit(self, shards: Sequence[Shard], *, records: Manifest) -> Manifest:
        """Write the manifest of the finished store; it belongs to these records."""
        manifest = Manifest(
            kind=KIND,
            rows=sum(shard.rows for shard in shards),
            shards=tuple(shards),
            fingerprints={"records": records.fingerprint},
            meta={"columns": vector_schema(self.dim).names, "dim": self.dim},
        )
        manifest.write(self.workspace)
        return manifest
