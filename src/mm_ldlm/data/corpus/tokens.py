"""The token store: the token ids of every record, with the rows and shards of the records; the report of ingestion."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from mm_ldlm.core.errors import StoreError
from mm_ldlm.core.files import recorded, remove_temporaries, write_bytes, write_json
from mm_ldlm.data.corpus.ingestion import conservation
from mm_ldlm.data.corpus.record import PAIR, meta_value
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.store import Manifest, Shard, ShardStore, write_shard
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint
from mm_ldlm.data.store.manifest import NAME as MANIFEST

log = logging.getLogger(__name__)

TOKEN_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
    ]
)
"""Columns of the token store; row i is row i of the records."""
_BATCH = 8192
_PROGRESS = "progress.json"


def build_tokenizer(records: ShardStore, config: TokenizerConfig) -> TextTokenizer:
    """Build the tokenizer of the parameters; `reduce_vocabulary` keeps only the tokens of the training split.

    Raises:
        StoreError: The vocabulary should be reduced, but there is no training text.
    """
    tokenizer = load_tokenizer(config)
    if not config.reduce_vocabulary:
        return tokenizer
    occurs = np.zeros(tokenizer.base_size, bool)
    for table in records.iter_tables(_BATCH, columns=["text", "split", "meta"]):
        train = table.filter(pc.equal(table.column("split"), "train"))
        pairs = [meta_value(meta, PAIR) for meta in train.column("meta").to_pylist()]
        texts = [*train.column("text").to_pylist(), *(pair for pair in pairs if pair is not None)]
        values, offsets = tokenizer.encode_base(texts)
        occurs[_cut(values, offsets, config.max_length)[0]] = True
    if not occurs.any():
        raise StoreError(
            "tokenizer.reduce_vocabulary keeps the tokens of the training split, but that split is empty. "
            "Set it to false, or add training text."
        )
    return tokenizer.with_vocabulary(np.flatnonzero(occurs))


def tokenize_records(
    records: ShardStore, tokenizer: TextTokenizer, config: TokenizerConfig, workspace: Path, *, progress: bool = False
) -> Manifest:
    """Fill the token store in `workspace`, keeping the shards of an interrupted run. The caller writes the manifest.

    Sequences have at most `config.max_length` tokens: the policies drop and split leave no longer ones, and truncate
    cuts them.

    Raises:
        StoreError: A sequence is too short or, under drop and split, too long: the records were made with another
            tokenizer.
    """
    made_by = {
        "records": records.manifest.fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "parameters": fingerprint([config.max_length, config.min_length, config.too_long]),
    }
    workspace.mkdir(parents=True, exist_ok=True)
    state = _resume(workspace, fingerprint(made_by))
    shards: list[Shard] = []
    names = [shard.name for shard in records.manifest.shards]
    starts = np.concatenate([[0], np.cumsum([shard.rows for shard in records.manifest.shards])]).tolist()
    with tqdm(
        desc="tokens",
        unit=" rows",
        unit_scale=True,
        total=len(records),
        mininterval=1.0,
        disable=None if progress else True,
    ) as bar:
        for number, name in enumerate(names):
            done = state["shards"].get(name)
            if done is None:
                table, counts = _shard(records, starts[number], starts[number + 1], tokenizer, config)
                done = {"shard": vars(write_shard(workspace, name, table)), "counts": counts}
                state["shards"][name] = done
                write_json(workspace / _PROGRESS, state)
            shards.append(Shard(**done["shard"]))
            bar.update(shards[-1].rows)
    if not shards:
        write_bytes(workspace / "schema.arrow", memoryview(TOKEN_SCHEMA.serialize()))
    meta = {
        "columns": TOKEN_SCHEMA.names,
        "vocab_size": tokenizer.vocab_size,
        "base_vocab_size": tokenizer.base_size,
        "max_length": config.max_length,
        **_totals([state["shards"][name]["counts"] for name in names]),
    }
    return Manifest(
        kind="tokens", rows=sum(s.rows for s in shards), shards=tuple(shards), fingerprints=made_by, meta=meta
    )


def _shard(
    records: ShardStore, start: int, stop: int, tokenizer: TextTokenizer, config: TokenizerConfig
) -> tuple[pa.Table, dict[str, Any]]:
    pieces, counts = [], {split: Counter[str]() for split in SPLITS}
    histogram: Counter[str] = Counter()
    for first in range(start, stop, _BATCH):
        table = records.take(range(first, min(first + _BATCH, stop)))
        full, full_offsets = tokenizer.encode_base(table.column("text").to_pylist())
        base, offsets = _cut(full, full_offsets, config.max_length)
        lengths = np.diff(offsets)
        _check(table, lengths, np.diff(full_offsets), config)
        ids = tokenizer.from_base(base)
        outside = ~tokenizer.is_kept(base)
        unknown = (ids == tokenizer.unk_id) & ~outside
        for split in SPLITS:
            rows = pc.equal(table.column("split"), split).to_numpy()
            where = np.repeat(rows, lengths)
            counts[split].update(
                rows=int(rows.sum()), tokens=int(where.sum()), unknown=int((unknown & where).sum()),
                outside_vocabulary=int((outside & where).sum()),
                truncated=int((rows & (np.diff(full_offsets) > config.max_length)).sum()),
            )  # fmt: skip
        for length, count in zip(*np.unique(lengths, return_counts=True), strict=True):
            histogram[str(int(length))] += int(count)
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids), type=TOKEN_SCHEMA.field(1).type)
        pieces.append(
            pa.Table.from_arrays(
                [table.column("id").combine_chunks(), column, pa.array(lengths, pa.int32())], schema=TOKEN_SCHEMA
            )
        )
    return pa.concat_tables(pieces), {"splits": {k: dict(v) for k, v in counts.items()}, "lengths": dict(histogram)}


def _check(table: pa.Table, lengths: npt.NDArray[Any], full: npt.NDArray[Any], config: TokenizerConfig) -> None:
    wrong = full < config.min_length
    if config.too_long != "truncate":
        wrong |= full > config.max_length
    if wrong.any():
        row = int(np.argmax(wrong))
        raise StoreError(
            f"expected {config.min_length} to {config.max_length} tokens per record (policy '{config.too_long}'), "
            f"found {int(full[row])} in record {table.column('id')[row]} and {int(wrong.sum())} such records in its "
            "batch. The records were made with other tokenizer parameters: run ingestion again from its first node."
        )


def _cut(
    values: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], max_length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first `max_length` values of each row."""
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.max() <= max_length:
        return values, offsets
    inside = np.arange(len(values)) - np.repeat(offsets[:-1], lengths) < max_length
    return values[inside], np.concatenate([[0], np.cumsum(np.minimum(lengths, max_length))]).astype(np.int64)


def _resume(workspace: Path, made_by: str) -> dict[str, Any]:
    """Read the progress of an earlier run with the same fingerprint and drop missing or damaged shards from it.

    Without such a run, start from the beginning in an empty folder.
    """

    state: dict[str, Any] = {"fingerprint": made_by, "shards": {}}
    try:
        found = recorded(workspace / _PROGRESS) or {}
        if found["fingerprint"] == made_by:
            kept = {
                name: item
                for name, item in found["shards"].items()
                if _is_intact(workspace / name, item["shard"]["sha256"])
            }
            state["shards"] = kept
    except (KeyError, TypeError):
        pass
    remove_temporaries(workspace)
    stale = [path for path in workspace.glob("part-*.arrow") if path.name not in state["shards"]]
    if stale or not state["shards"]:
        (workspace / MANIFEST).unlink(missing_ok=True)
    for path in [*stale, workspace / "schema.arrow"]:
        path.unlink(missing_ok=True)
    return state


def _is_intact(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


def _totals(parts: list[dict[str, Any]]) -> dict[str, Any]:
    splits = {split: Counter[str]() for split in SPLITS}
    lengths: Counter[int] = Counter()
    for part in parts:
        for split, counts in part["splits"].items():
            splits[split].update(counts)
        lengths.update({int(length): count for length, count in part["lengths"].items()})
    ordered = sorted(lengths.items())
    return {
        "splits": {split: dict(counts) for split, counts in splits.items()},
        "lengths": {str(k): v for k, v in ordered},
    }


def ingestion_report(preparation: dict[str, Any], tokens: Manifest) -> dict[str, Any]:
    """Combine the report of `ingest` with the counts of the token store, and log that every row is accounted for.

    Raises:
        FingerprintError: the token store was made from other records.
    """
    tokens.require(directory="the token store", records=preparation["fingerprint"])
    log.info("ingestion: %s", conservation(preparation))
    lengths = {int(length): count for length, count in tokens.meta["lengths"].items()}
    rows = sum(lengths.values())
    ends = dict(zip(lengths, itertools.accumulate(lengths.values()), strict=True))
    percentiles = {
        f"p{percent}": next((length for length, end in ends.items() if end >= percent / 100 * rows), 0)
        for percent in (5, 50, 95, 100)
    }
    mean = sum(length * count for length, count in lengths.items()) / max(1, rows)
    return {
        **preparation,
        "conservation": conservation(preparation),
        "tokens": {
            **{name: tokens.meta[name] for name in ("vocab_size", "base_vocab_size", "max_length", "splits")},
            "lengths": {"mean": round(mean, 3), **percentiles},
            "length_histogram": tokens.meta["lengths"],
        },
    }
