"""The token store: the token ids of every record, with the rows and shards of the records; the report of ingestion."""

import dataclasses
import itertools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_ldlm.core import StoreError
from mm_ldlm.core.progress import shown
from mm_ldlm.data.corpus.ingestion import conservation
from mm_ldlm.data.corpus.record import PAIR, meta_value
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.corpus.wrapping import TOKEN_IDS
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.writer import Progress

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
Ints = npt.NDArray[np.int64]


def build_tokenizer(records: ShardStore, config: TokenizerConfig) -> TextTokenizer:
    """Build the tokenizer of the parameters; `reduce_vocabulary` keeps only the tokens of the training split.

    Raises:
        StoreError: the vocabulary should be reduced, but there is no training text.
    """
    tokenizer = load_tokenizer(config, records.directory)
    if not config.reduce_vocabulary:
        return tokenizer
    occurs = np.zeros(tokenizer.base_size, bool)
    for start in range(0, len(records), _BATCH):
        table = records.window(start, min(start + _BATCH, len(records)), columns=["split", "meta"])
        train = np.flatnonzero(pc.equal(table.column("split"), "train").to_numpy())
        pairs = [meta_value(meta, PAIR) for meta in table.column("meta").take(train).to_pylist()]
        seconds = tokenizer.encode_base([pair for pair in pairs if pair is not None])
        for values, offsets in (base_ids(records, start + train, tokenizer), seconds):
            occurs[_cut(values, offsets, config.max_length)[0]] = True
    if not occurs.any():
        raise StoreError(
            "tokenizer.reduce_vocabulary keeps the tokens of the training split, but that split is empty. "
            "Set it to false, or add training text."
        )
    return tokenizer.with_vocabulary(np.flatnonzero(occurs))


def tokenize_records(
    records: ShardStore, tokenizer: TextTokenizer, config: TokenizerConfig, workspace: Path
) -> Manifest:
    """Fill the token store in `workspace`, keeping the shards of an interrupted run. The caller writes the manifest.

    Sequences have at most `config.max_length` tokens: the policies drop and split leave no longer ones, and truncate
    cuts them.

    Raises:
        StoreError: a sequence is too short or, under drop and split, too long: the records were made with another
            tokenizer.
    """
    made_by = {
        "records": records.manifest.fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "parameters": fingerprint([config.max_length, config.min_length, config.too_long]),
    }
    fresh: dict[str, Any] = {"splits": {split: {} for split in SPLITS}, "lengths": {}}
    done = Progress({"tokens": workspace}, made_by=made_by, fresh=fresh)
    splits = {split: Counter(counts) for split, counts in done.state["splits"].items()}
    lengths = Counter({int(length): count for length, count in done.state["lengths"].items()})
    ends = list(itertools.accumulate([shard.rows for shard in records.manifest.shards], initial=0))
    finished = len(done.shards["tokens"])
    with shown(desc="tokens", unit="rows", unit_scale=True, total=len(records), initial=ends[finished]) as bar:
        for start, stop in itertools.pairwise(ends[finished:]):
            batches = [range(first, min(first + _BATCH, stop)) for first in range(start, stop, _BATCH)]
            tables = [_tokens(records, rows, tokenizer, config, splits, lengths) for rows in batches]
            done.commit(
                {"tokens": pa.concat_tables(tables)}, {"splits": splits, "lengths": dict(sorted(lengths.items()))}
            )
            bar.update(stop - start)
    return done.manifest(
        "tokens", kind="tokens", schema=TOKEN_SCHEMA, vocab_size=tokenizer.vocab_size,
        base_vocab_size=tokenizer.base_size, max_length=config.max_length,
        splits={split: dict(counts) for split, counts in splits.items()},
        lengths={str(length): lengths[length] for length in sorted(lengths)},
        **({} if config.wrap is None else {"wrap": dataclasses.asdict(config.wrap)}),
    )  # fmt: skip


def base_ids(records: ShardStore, rows: Any, tokenizer: TextTokenizer) -> tuple[Ints, Ints]:
    """Return (values, offsets) of some records, in ids of the entire vocabulary; wrapped ones are stored as tokens."""
    if "wrap" not in records.manifest.fingerprints:
        return tokenizer.encode_base(records.gather("text", rows).to_pylist())
    return ShardStore.open(records.directory / TOKEN_IDS, TOKEN_IDS).lists(TOKEN_IDS).take(rows)


def _tokens(
    records: ShardStore,
    rows: range,
    tokenizer: TextTokenizer,
    config: TokenizerConfig,
    splits: dict[str, Counter[str]],
    lengths: Counter[int],
) -> pa.Table:
    """Return the rows of the store for some records, and add their tokens to the counts of the splits and lengths."""
    table = records.table(rows)
    values, full_offsets = base_ids(records, rows, tokenizer)
    base, offsets = _cut(values, full_offsets, config.max_length)
    full, cut = np.diff(full_offsets), np.diff(offsets)
    longest = config.max_length if config.too_long != "truncate" else full.max(initial=0)
    if len(wrong := np.flatnonzero((full < config.min_length) | (full > longest))):
        raise StoreError(
            f"expected {config.min_length} to {config.max_length} tokens per record (policy '{config.too_long}'), "
            f"found {full[wrong[0]]} in record {table.column('id')[int(wrong[0])]} and {len(wrong)} such records in "
            "its batch. The records were made with other tokenizer parameters: run ingestion again from its first node."
        )
    ids = tokenizer.from_base(base)
    unknown = ids == tokenizer.unk_id
    with_unknown = np.isin(np.arange(len(table)), np.repeat(np.arange(len(table)), cut)[unknown])
    for split in SPLITS:
        inside = pc.equal(table.column("split"), split).to_numpy()
        where = np.repeat(inside, cut)
        splits[split].update(
            rows=int(inside.sum()), tokens=int(where.sum()), unknown=int((unknown & where).sum()),
            rows_with_unknown=int((inside & with_unknown).sum()),
            truncated=int((inside & (full > config.max_length)).sum()),
        )  # fmt: skip
    lengths.update(cut.tolist())
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids), type=TOKEN_SCHEMA.field(1).type)
    columns = [table.column("id").combine_chunks(), column, pa.array(cut, pa.int32())]
    return pa.Table.from_arrays(columns, schema=TOKEN_SCHEMA)


def _cut(values: Ints, offsets: Ints, max_length: int) -> tuple[Ints, Ints]:
    """Return the first `max_length` values of each row."""
    lengths = np.diff(offsets)
    inside = np.arange(len(values)) - np.repeat(offsets[:-1], lengths) < max_length
    return values[inside], np.cumsum([0, *np.minimum(lengths, max_length)], dtype=np.int64)


def ingestion_report(preparation: dict[str, Any], tokens: ShardStore) -> dict[str, Any]:
    """Combine the report of `ingest` with the counts of the token store, and log that every row is accounted for.

    Raises:
        FingerprintError: the token store was made from other records.
    """
    tokens.manifest.require(directory=tokens.directory, records=preparation["fingerprint"])
    log.info("ingestion: %s", conservation(preparation))
    meta = tokens.manifest.meta
    if (wrapped := preparation.get("wrapped")) is not None:
        log.info(
            "wrapping: the %d accepted texts became %d of exactly %d tokens; %d tokens that fill none are left out",
            wrapped["documents"], len(tokens), meta["max_length"], wrapped["rest"],
        )  # fmt: skip
    if truncated := sum(counts.get("truncated", 0) for counts in meta["splits"].values()):
        log.warning(
            "%d of %d texts have more than tokenizer.max_length = %d tokens: the model reads and writes only their "
            "beginnings. Set tokenizer.too_long to split, or raise tokenizer.max_length.",
            truncated, len(tokens), meta["max_length"],
        )  # fmt: skip
    lengths = np.repeat(*np.array([(int(length), count) for length, count in meta["lengths"].items()]).T)
    percentiles = np.percentile(lengths, (5, 50, 95, 100), method="inverted_cdf").astype(int).tolist()
    return {
        **preparation,
        "conservation": conservation(preparation),
        "tokens": {
            **{name: meta[name] for name in ("vocab_size", "base_vocab_size", "max_length", "splits")},
            "lengths": {
                "mean": round(float(lengths.mean()), 3),
                **dict(zip(("p5", "p50", "p95", "p100"), percentiles, strict=True)),
            },
            "length_histogram": meta["lengths"],
        },
    }
