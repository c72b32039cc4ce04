"""Token states: the encoder's output at every token of every record, a continuous state beside each token (CCDD).

The store has one row per token, in the order of the records and of their tokens: row `starts[i] + j` is token j of
record i, where `starts` are the sums of the lengths in the token store. Its tokens are the project's tokens, so the
encoder must divide every text as the project's tokenizer does. One state of d float16 numbers takes 2·d bytes.

The extraction can be resumed. Its shards end at record boundaries and hold about `SHARD_TOKENS` tokens, which bounds
the memory. The workspace during the extraction has a file `.extract/part-000000.json` for each finished shard.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.config import Workers, config
from mm_ldlm.core.errors import EncoderError, FingerprintError
from mm_ldlm.core.files import InputFile, remove_temporaries, write_json
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.encoders.base import EncoderConfig, EncodesTokens
from mm_ldlm.data.features import Feature, Field, Inputs, standardised
from mm_ldlm.data.latents.normaliser import Normaliser, NormaliserConfig
from mm_ldlm.data.latents.plan import PROGRESS_FOLDER
from mm_ldlm.data.latents.store import StoredType
from mm_ldlm.data.latents.worker import fixed_threads
from mm_ldlm.data.store import Manifest, Shard, ShardStore, write_shard
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint
from mm_ldlm.data.store.writer import shard_name

logger = logging.getLogger(__name__)

KIND = "token_states"
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
        self._starts = starts(tokens.ints("length").take(slice(None)))

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

    @property
    def standardisation(self) -> NormaliserConfig:
        return NormaliserConfig(kind="standard")

    @classmethod
    def field(cls, store: ShardStore, tokens: ShardStore) -> Field:
        return TokenField(store, tokens)

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Compute the states, keeping finished shards.

        Raises:
            FingerprintError: the workspace contains states of other records, tokens, parameters or of another encoder.
            EncoderError: the encoder has no output at each token, divides a text into other tokens than the project's
                tokenizer, or returned numbers that are not finite.
        """
        return embed_tokens(inputs, encoder=self.encoder, config=self.ccdd, workspace=workspace)


def embed_tokens(inputs: Inputs, *, encoder: EncoderConfig, config: CcddSection, workspace: Path) -> Manifest:
    records, tokens, tokenizer = inputs.records, inputs.tokens, inputs.tokenizer
    workspace.mkdir(parents=True, exist_ok=True)
    located = encoder.locate()
    made_by = {
        "records": records.manifest.fingerprint,
        "tokens": tokens.manifest.fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "encoder": located.fingerprint,
        "parameters": fingerprint({"config": config, "format": FORMAT_VERSION}),
    }
    done = _finished(workspace, made_by)
    if Manifest.exists(workspace):
        return Manifest.read(workspace)
    loaded = encoder.load(located)
    if not isinstance(loaded, EncodesTokens):
        raise EncoderError(
            f"encoder {located.name!r} returns one vector for a text and no state for each token, which the "
            "objective reads. Choose an encoder of the registry (docs/encoders.md), or an objective without "
            "token states."
        )
    starts_n = starts(tokens.ints("length").take(slice(None)))
    shards = []
    with fixed_threads(config.threads):
        for number, (first, last) in enumerate(_cuts(starts_n)):
            if number not in done:
                states_nd = _encode(loaded, records, tokens, tokenizer, first, last, name=located.name)
                with np.errstate(over="ignore"):
                    stored = states_nd.astype(np.dtype(config.dtype))
                if not np.isfinite(stored).all():
                    raise EncoderError(
                        f"encoder {located.name!r} returned numbers that are not finite in {config.dtype} for "
                        f"tokens of the records {first} to {last - 1}. Check these texts, or set ccdd.dtype to "
                        "'float32'."
                    )
                done[number] = write_shard(workspace, shard_name(number), _table(stored))
                write_json(_sidecar(workspace, number), dataclasses.asdict(done[number]))
                logger.info("states of %d of %d tokens", starts_n[last], starts_n[-1])
            shards.append(done[number])
    if not shards:
        raise EncoderError("expected records to compute token states of, found none. Run ingestion first.")
    manifest = Manifest(
        kind=KIND, rows=int(starts_n[-1]), shards=tuple(shards), fingerprints=made_by,
        meta={"columns": [COLUMN], "dim": loaded.dim, "dtype": config.dtype, "bytes_per_token":
              loaded.dim * np.dtype(config.dtype).itemsize, "encoder": located.describe()},
    )  # fmt: skip
    manifest.write(workspace)
    shutil.rmtree(workspace / PROGRESS_FOLDER, ignore_errors=True)
    return manifest


def _encode(
    encoder: EncodesTokens, records: ShardStore, tokens: ShardStore, tokenizer: TextTokenizer, first: int, last: int,
    *, name: str,
) -> npt.NDArray[np.float32]:  # fmt: skip
    """Encode the records first … last − 1; return the states of their tokens (n, d)."""
    found = []
    for start in range(first, last, _RECORDS_AT_ONCE):
        rows = slice(start, min(start + _RECORDS_AT_ONCE, last))
        table = records.table(rows)
        texts = table["text"].to_pylist()
        values, offsets = tokenizer.encode_base(texts)
        lengths = tokens.ints("length").take(rows)
        for place, its in enumerate(encoder.encode_tokens(texts)):
            ids = values[offsets[place] : offsets[place + 1]]
            if len(ids) != len(its.ids_n) or not np.array_equal(ids, its.ids_n):
                raise EncoderError(_misaligned(name, table["id"][place].as_py(), ids, its.ids_n))
            found.append(its.states_nd[: lengths[place]])
    return np.concatenate(found)


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


def _table(states_nd: npt.NDArray[Any]) -> pa.Table:
    kind = pa.list_(pa.from_numpy_dtype(states_nd.dtype), states_nd.shape[1])
    flat = pa.array(np.ascontiguousarray(states_nd).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, states_nd.shape[1])
    return pa.Table.from_arrays([column], schema=pa.schema([(COLUMN, kind)]))


def _sidecar(workspace: Path, number: int) -> Path:
    return workspace / PROGRESS_FOLDER / f"part-{number:06d}.json"


def _finished(workspace: Path, made_by: dict[str, str]) -> dict[int, Shard]:
    """Return the finished and intact shards by number; refuse those that were made from other inputs."""
    remove_temporaries(workspace)
    plan = workspace / PROGRESS_FOLDER / "plan.json"
    found: dict[str, Any] | None = None
    if Manifest.exists(workspace):
        found = Manifest.read(workspace).fingerprints
    elif plan.is_file():
        found = InputFile(plan, remedy="Remove it.").json(dict)
    if found is not None and found != made_by:
        changed = ", ".join(name for name in made_by if found.get(name) != made_by[name])
        raise FingerprintError(
            f"{workspace} contains token states that were made with other {changed}. Nothing was changed. Restore the "
            "earlier settings, or remove the directory to compute all states again."
        )
    if Manifest.exists(workspace):
        return {}
    plan.parent.mkdir(exist_ok=True)
    write_json(plan, made_by)
    done: dict[int, Shard] = {}
    for path in plan.parent.glob("part-*.json"):
        shard = Shard(**InputFile(path, remedy="Remove it.").json(dict))
        file = workspace / shard.name
        if file.is_file() and file_sha256(file) == shard.sha256:
            done[int(path.stem.removeprefix("part-"))] = shard
    return done
