"""The latent store, one row per record with the columns `id` and `latent`, and the store of token vectors."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import EncoderError
from mm_ldlm.data.encoders.base import EncoderConfig
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.latents.config import StoredType
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.data.store import Manifest, ShardStore, fixed_lists, write_store
from mm_ldlm.data.store.shards import Rows
from mm_ldlm.data.store.writer import Parts

KIND = "latents"


def schema(dim: int, dtype: StoredType) -> pa.Schema:
    """Return the columns of a latent store with vectors of `dim` numbers."""
    return pa.schema([("id", pa.string()), ("latent", pa.list_(pa.from_numpy_dtype(dtype), dim))])


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
    """A finished store of kind "latents"; vectors are returned as float32, for every stored type."""

    def take(self, rows: Rows) -> npt.NDArray[np.float32]:
        """Return (n, d) float32, in the requested order."""
        return self.fixed("latent").take(rows).astype(np.float32, copy=False)


@dataclasses.dataclass(frozen=True)
class TokenVectors(Feature):
    """One vector per token id, in the order of the ids.

    Each token is encoded by itself, as plain text (word pieces without their continuation prefix). A finished store of
    the same tokenizer and encoder is kept, so that its bytes do not change if the encoder repeats vectors only
    approximately.
    """

    encoder: EncoderConfig

    name = "token_vectors"
    kind = KIND
    column = "latent"
    row_of = "id"
    from_encoder = True

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Encode every token.

        Raises:
            EncoderError: The vector of a token is not finite, or the encoder changed in between.
        """
        tokenizer = inputs.tokenizer
        located = self.encoder.locate(expected=Parts(workspace, {}).earlier.get("encoder"))
        made_from = {"tokenizer": tokenizer.fingerprint, "encoder": located.fingerprint}
        if (kept := Manifest.finished(workspace, made_from)) is not None:
            return kept
        tokens = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
        loaded = self.encoder.load(located, device=None)
        vectors_Vd = loaded.encode([tokenizer.written(i) for i in range(tokenizer.vocab_size)])
        if not np.isfinite(vectors_Vd).all():
            bad = tokens[int(np.flatnonzero(~np.isfinite(vectors_Vd).all(1))[0])]
            raise EncoderError(
                f"expected finite token vectors, found NaN or infinity for the token {bad!r}. Set model.token_vectors "
                "to 'random', or encode in float32."
            )
        loaded.verify()
        made = table(tokens, vectors_Vd)
        return write_store(
            workspace, [made], kind=self.kind, schema=made.schema, fingerprints=made_from,
            meta={"dim": int(vectors_Vd.shape[1])},
        )  # fmt: skip
