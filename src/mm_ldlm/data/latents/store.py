"""The latent store: columns `id` and `latent`, one row per record, in the order of the records."""

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.data.features import Feature
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.data.store import ShardStore, fixed_lists
from mm_ldlm.data.store.shards import Rows

KIND = "latents"
StoredType = Literal["float32", "float16"]


def schema(dim: int, dtype: StoredType) -> pa.Schema:
    """Return the columns of a latent store with vectors of `dim` numbers."""
    value = pa.float32() if dtype == "float32" else pa.float16()
    return pa.schema([("id", pa.string()), ("latent", pa.list_(value, dim))])


def table(ids: list[str], vectors_nd: npt.NDArray[Any]) -> pa.Table:
    """Convert vectors (n, d) and their ids to rows of a latent store, in the type of the vectors."""
    return pa.table({"id": pa.array(ids, pa.string()), "latent": fixed_lists(vectors_nd)})


@dataclasses.dataclass(frozen=True)
class Latents(Feature):
    """The encoder's vector of each record."""

    normaliser: NormaliserConfig

    name = kind = KIND
    column = "latent"
    from_encoder = True
    normaliser_folder = "normaliser"

    @property
    def standardisation(self) -> NormaliserConfig:
        return self.normaliser

    @classmethod
    def unit_norm(cls, store: ShardStore) -> bool:
        return bool(store.manifest.meta["encoder"]["normalised"])


class LatentStore(ShardStore):
    """A finished store of kind "latents"; vectors are returned as float32, whatever the stored type."""

    @property
    def dim(self) -> int:
        """Dimension d of the vectors."""
        return self.fixed("latent").dim

    def take(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return (n, d) float32, in the requested order."""
        return self.fixed("latent").take(rows).astype(np.float32, copy=False)

    def ids(self, rows: Rows) -> list[str]:
        """Return n ids."""
        return self.strings("id").take(rows)
