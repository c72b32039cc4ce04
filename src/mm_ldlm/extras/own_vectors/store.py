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
from mm_ldlm.data.corpus.sources import Unusable
from mm_ldlm.data.store import Manifest, Shard, fixed_lists
from mm_ldlm.data.store.fingerprint import fingerprint

KIND = "vectors"
COLUMN = "vector"
_SHARD_BYTES = 1 << 28
_BRACKETS = {"[": "]", "{": "}", "(": ")"}


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
        """Return the vector of a row (d,) as finite float32: a list, an array, or a text such as "[0.1, 0.2]"."""
        if value is None:
            raise Unusable("no_vector", "the source contains no vector for this text, and encoder.kind is precomputed")
        try:
            vector = np.asarray(_written(value) if isinstance(value, str) else value)
        except (ValueError, OverflowError) as error:
            raise Unusable("wrong_type", f"expected a list of numbers as the vector ({error})", value) from None
        if vector.ndim != 1 or vector.dtype.kind not in "iuf":
            raise Unusable(
                "wrong_type",
                f"expected a list of numbers as the vector, found shape {vector.shape} and type {vector.dtype}",
                value,
            )
        if len(vector) != self.dim:
            raise Unusable(
                "wrong_dimension",
                f"a vector of dimension {len(vector)}, encoder.dim is {self.dim}. If all are like "
                f"this, add {setting('encoder.dim', len(vector))}.",
            )
        with np.errstate(over="ignore"):
            vector = vector.astype(np.float32, copy=False)
        if not np.isfinite(vector).all():
            raise Unusable("not_finite", "the vector contains NaN, infinity or a number beyond float32")
        return vector

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


def _written(text: str) -> npt.NDArray[np.float64]:
    """Parse a list of numbers in brackets, separated by commas or by white space."""
    inner = text.strip()
    if len(inner) < 2 or _BRACKETS.get(inner[0]) != inner[-1] or not inner.isascii() or "_" in inner:
        raise ValueError("write it as [0.1, 0.2]")
    inner = inner[1:-1]
    return np.array([float(word) for word in (inner.split(",") if "," in inner else inner.split())], np.float64)
