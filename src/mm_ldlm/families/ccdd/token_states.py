"""Token states: the encoder's output at every token of every record, a continuous state for each token (CCDD).

The store has one row per token, in the order of the records and of their tokens: row `starts[i] + j` is token j of
record i, where `starts` are the sums of the lengths in the token store. Its tokens are the project's tokens, so the
encoder must divide every text as the project's tokenizer does. One state of d float16 numbers takes 2·d bytes.

The extraction can be resumed. Its shards end at record boundaries and hold at most `SHARD_TOKENS` tokens or one
record, which bounds the memory (`data.store.writer`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import EncoderError, Workers, config
from mm_ldlm.data.encoders.base import EncoderConfig
from mm_ldlm.data.features import Feature, Field, Inputs, standardised
from mm_ldlm.data.latents.config import StoredType
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.store import Manifest, ShardStore, fixed_lists
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.writer import Parts

if TYPE_CHECKING:
    from mm_ldlm.data.encoders.transformer import TransformerEncoder

log = logging.getLogger(__name__)

COLUMN = "state"
FORMAT_VERSION = 1
SHARD_TOKENS = 65_536
_RECORDS_AT_ONCE = 1024


@config
class CcddSection:
    """Parameters of the token states; `EncoderConfig` chooses the encoder.

    Attributes:
        dtype: data type of the stored states.
        threads: threads of the computation on a CPU; the number influences the last bits of the states.
    """

    dtype: StoredType = "float16"
    threads: Workers = 1


def starts(lengths_n: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the row of the first token of each record, (n + 1,); the last entry is the number of tokens."""
    found = np.zeros(len(lengths_n) + 1, np.int64)
    np.cumsum(lengths_n, out=found[1:])
    return found


def rows_of_tokens(starts_n: npt.NDArray[np.int64], records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rows of all tokens of these records, in order."""
    lengths = starts_n[records + 1] - starts_n[records]
    before = np.cumsum(lengths) - lengths
    steps: npt.NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(before, lengths)
    return np.repeat(starts_n[records], lengths) + steps


class TokenField(Field):
    """States of the tokens of records; row `starts[i] + j` of the store is token j of record i."""

    def __init__(self, store: ShardStore, tokens: ShardStore) -> None:
        super().__init__(store, column=COLUMN)
        self._starts = starts(tokens.gather("length", slice(None)).to_numpy())

    def rows(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return rows_of_tokens(self._starts, records)

    def batch(self, records: npt.NDArray[np.int64], *, normaliser: Normaliser | None = None) -> npt.NDArray[Any]:
        """Read the states of the tokens of these records, (n, L, d), padded with 0 to the longest of them."""
        found_nd = standardised(self.column.take(self.rows(records)), normaliser)
        lengths = self._starts[records + 1] - self._starts[records]
        out = np.zeros((len(records), int(lengths.max(initial=0)), found_nd.shape[1]), np.float32)
        out[np.arange(out.shape[1]) < lengths[:, None]] = found_nd
        return out


@dataclasses.dataclass(frozen=True)
class TokenStates(Feature):
    """The encoder's output at every token of every record."""

    ccdd: CcddSection
    encoder: EncoderConfig

    name = kind = "token_states"
    column = COLUMN
    row_of = "token"
    from_encoder = True
    normaliser_folder = "state_normaliser"

    @property
    def variant(self) -> str:
        return self.ccdd.dtype

    @classmethod
    def field(cls, store: ShardStore, tokens: ShardStore) -> Field:
        return TokenField(store, tokens)

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Compute the states, shard by shard; finished shards are kept.

        Raises:
            FingerprintError: the workspace contains states of other records, tokens, parameters or of another encoder.
            EncoderError: the encoder has no output at each token, divides a text into other tokens than the project's
                tokenizer, or returned non-finite numbers.
        """
        located = self.encoder.locate()
        made_by = {
            "records": inputs.records.manifest.fingerprint,
            "tokens": inputs.tokens.manifest.fingerprint,
            "tokenizer": inputs.tokenizer.fingerprint,
            "encoder": located.fingerprint,
            "parameters": fingerprint({"config": self.ccdd, "format": FORMAT_VERSION}),
        }
        parts = Parts(workspace, made_by)
        from mm_ldlm.data.encoders.transformer import TransformerEncoder
        from mm_ldlm.models.defaults import plain_defaults

        done = parts.begin()
        if Manifest.exists(workspace):
            return Manifest.read(workspace)
        loaded = self.encoder.load(located)
        if not isinstance(loaded, TransformerEncoder):
            raise EncoderError(
                f"encoder {located.name!r} returns one vector for a text and no state for each token, which the "
                "objective reads. Choose an encoder of the registry (docs/encoders.md), or an objective without "
                "token states."
            )
        starts_n = starts(inputs.tokens.gather("length", slice(None)).to_numpy())
        cuts, dtype = _cuts(starts_n), np.dtype(self.ccdd.dtype)
        with plain_defaults(self.ccdd.threads):
            for number, (first, last) in enumerate(cuts):
                if number in done:
                    continue
                states_nd = _encode(loaded, inputs, first, last, name=located.name)
                with np.errstate(over="ignore"):
                    stored = states_nd.astype(dtype)
                if not np.isfinite(stored).all():
                    raise EncoderError(
                        f"encoder {located.name!r} returned non-finite numbers in {self.ccdd.dtype} for tokens of "
                        f"the records {first} to {last - 1}. Check these texts, or set ccdd.dtype to 'float32'."
                    )
                parts.write(number, pa.table({COLUMN: fixed_lists(stored)}))
                log.info("states of %d of %d tokens", starts_n[last], starts_n[-1])
        kind = pa.list_(pa.from_numpy_dtype(dtype), loaded.dim)
        return parts.commit(
            parts.shards(len(cuts)), kind=self.kind, schema=pa.schema([(COLUMN, kind)]),
            meta={"dim": loaded.dim, "dtype": self.ccdd.dtype, "bytes_per_token": loaded.dim * dtype.itemsize,
                  "encoder": located.describe()},
        )  # fmt: skip


def _encode(
    encoder: TransformerEncoder, inputs: Inputs, first: int, last: int, *, name: str
) -> npt.NDArray[np.float32]:
    """Encode the records first … last − 1; return the states of their tokens (n, d)."""
    found = []
    for start in range(first, last, _RECORDS_AT_ONCE):
        rows = slice(start, min(start + _RECORDS_AT_ONCE, last))
        table = inputs.records.table(rows)
        texts = table["text"].to_pylist()
        values, offsets = inputs.tokenizer.encode_base(texts)
        lengths = inputs.tokens.gather("length", rows).to_numpy()
        for place, (its_n, states_nd) in enumerate(states_of(encoder, texts)):
            ids = values[offsets[place] : offsets[place + 1]]
            if not np.array_equal(ids, its_n):
                raise EncoderError(_misaligned(name, table["id"][place].as_py(), ids, its_n))
            found.append(states_nd[: lengths[place]])
    return np.concatenate(found)


def states_of(
    encoder: TransformerEncoder, texts: Sequence[str]
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Return the encoder's own tokens (n,) of each text, without special tokens, and its states (n, d) of them."""
    import torch

    special = np.array(sorted({*encoder.tokenizer.all_special_ids} - {encoder.tokenizer.unk_token_id}), np.int64)
    found = [(np.empty(0, np.int64), np.empty((0, encoder.dim), np.float32))] * len(texts)
    for chosen, ids_BL, valid_BL in encoder.prepare(texts):
        with torch.inference_mode():
            hidden_BLd, _ = encoder.hidden(torch.from_numpy(ids_BL), valid_BL)
        states_BLd = hidden_BLd[..., : encoder.dim].float().cpu().numpy()
        kept_BL = ~np.isin(ids_BL, special) & (True if valid_BL is None else valid_BL)
        for place, index in enumerate(chosen):
            found[index] = ids_BL[place][kept_BL[place]], states_BLd[place][kept_BL[place]]
    return found


def _misaligned(name: str, record: str, ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> str:
    return (
        f"encoder {name!r}: expected one state for each token of the project's tokenizer, but in record {record} the "
        f"tokenizer has {len(ours)} tokens (first ids {ours[:4].tolist()}) and the encoder {len(theirs)} "
        f"({theirs[:4].tolist()}). Token states need the tokenizer of the encoder: set tokenizer.path to the encoder's "
        "folder and run ingestion again. The encoder must also have no prompt, read the whole text, and find no "
        "special token such as [SEP] in it."
    )


def _cuts(starts_n: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Divide the records into runs of at most `SHARD_TOKENS` tokens, at least one record each."""
    cuts, first = [], 0
    while first < len(starts_n) - 1:
        last = int(np.searchsorted(starts_n, starts_n[first] + SHARD_TOKENS, side="right")) - 1
        last = max(last, first + 1)
        cuts.append((first, last))
        first = last
    return cuts
