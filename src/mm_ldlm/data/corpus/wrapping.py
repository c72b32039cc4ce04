"""Wrapping: documents are joined one after another, and divided into texts of exactly `max_length` tokens.

Likelihoods of One Billion Words, OpenWebText and text8 are published on such texts (MDLM, arXiv:2406.07524; SEDD,
2310.16834; Duo, 2506.10892). The records of a wrapped corpus are these texts, and everything that reads records reads
them. Below the records, `documents/` has the documents, and `token_ids/` the tokens of each record: a text that begins
or ends inside a word would be tokenised differently by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import ConfigurationError
from mm_ldlm.core.files import write_bytes, write_json
from mm_ldlm.core.progress import shown
from mm_ldlm.data.corpus.ingestion import SOURCES_FILE, described, ingest, refuse_other_sources
from mm_ldlm.data.corpus.record import DESCRIBES, PAIR, RECORD_SCHEMA, meta_value, record_id
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, WrapConfig, load_tokenizer
from mm_ldlm.data.corpus.tokenizer_training import FILE as VOCABULARY
from mm_ldlm.data.store import Manifest, ShardStore
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.store.writer import Progress

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.cleaning import SideStore
    from mm_ldlm.data.corpus.config import IngestionConfig

Ints = npt.NDArray[np.int64]
TOKEN_IDS = "token_ids"
"""Folder below the records, and its column: the tokens of each record, as ids of the entire vocabulary"""
_SCHEMA = pa.schema([pa.field(TOKEN_IDS, pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)])
_BATCH = 1024


def ingest_wrapped(
    config: IngestionConfig,
    tokens: TokenizerConfig,
    *,
    seed: int,
    workspace: Path,
    quarantine: Path,
    side: SideStore | None = None,
) -> tuple[Manifest, Manifest, dict[str, Any]]:
    """Ingest documents of any length, and wrap them.

    The tokens at the end of a split and a source that do not fill a text are left out, and counted.

    Returns:
        As `ingestion.ingest`. The report describes the documents; `wrapped` in it has the number of texts of each
        split (`rows`) and of tokens that were left out (`rest`).

    Raises:
        ConfigurationError: a word of `tokens.wrap` is not a token, the documents fill no text, a record has more than
            one text, or the sources have the vectors of their texts (`side`), and not of wrapped ones.
    """
    if side is not None:
        raise ConfigurationError(
            "parameter 'tokenizer.wrap': expected texts whose vectors are computed, found vectors that come "
            "from the sources. Set it to null, or choose another encoder."
        )
    folder, wrap = workspace / "documents", tokens.wrap
    assert wrap is not None
    refuse_other_sources(config, workspace)
    manifest, refused, report = ingest(config, seed=seed, workspace=folder, quarantine=quarantine, tokens=tokens)
    manifest.write(folder)
    documents, tokenizer = ShardStore.open(folder, "records"), load_tokenizer(tokens, folder)
    if tokens.of_corpus:
        write_bytes(workspace / VOCABULARY, (folder / VOCABULARY).read_bytes())
    made_by = {
        "documents": manifest.fingerprint,
        "base_tokenizer": tokenizer.base_fingerprint,
        "wrap": fingerprint([tokens.max_length, dataclasses.asdict(wrap)]),
    }
    fresh: dict[str, Any] = {"documents": 0, "rows": dict.fromkeys(SPLITS, 0), "rest": {}}
    done = Progress({"records": workspace, TOKEN_IDS: workspace / TOKEN_IDS}, made_by=made_by, fresh=fresh)
    write_json(workspace / SOURCES_FILE, described(config))
    wrapper = Wrapper(tokenizer, wrap, length=tokens.max_length)
    ends = list(itertools.accumulate([shard.rows for shard in documents.manifest.shards], initial=0))
    with shown(desc="wrapping", unit="documents", total=len(documents), initial=done.state["documents"]) as bar:
        for start, stop in itertools.pairwise(ends[ends.index(done.state["documents"]) :]):
            rest = {name: np.array(ids, np.int64) for name, ids in done.state["rest"].items()}
            tables = []
            for first in range(start, stop, _BATCH):
                batch = documents.table(range(first, min(first + _BATCH, stop)))
                tables.append(_texts(batch, tokenizer, wrapper, rest))
                bar.update(len(batch))
            records, ids = (pa.concat_tables(parts) for parts in zip(*tables, strict=True))
            rows = Counter(done.state["rows"]) + Counter(records.column("split").to_pylist())
            state = {"documents": stop, "rows": {split: rows[split] for split in SPLITS}}
            done.commit(
                {"records": records, TOKEN_IDS: ids}, {**state, "rest": {name: rest[name].tolist() for name in rest}}
            )
    records = done.manifest("records", kind="records", schema=RECORD_SCHEMA, splits=done.state["rows"])
    done.manifest(TOKEN_IDS, kind=TOKEN_IDS, schema=_SCHEMA).write(workspace / TOKEN_IDS)
    counts = {**done.state, "rest": sum(map(len, done.state["rest"].values()))}
    if not any(done.state["rows"].values()):
        raise ConfigurationError(
            f"parameter 'tokenizer.wrap': expected documents that fill texts of {tokens.max_length} tokens, found "
            f"{counts['rest']} tokens of all splits and sources. Give more documents, or lower tokenizer.max_length."
        )
    return records, refused, {**report, "fingerprint": records.fingerprint, "wrapped": counts}


def wrap_of(tokens: ShardStore) -> WrapConfig | None:
    """Return how the texts of a token store were wrapped; None if they were not."""
    found = tokens.manifest.meta.get("wrap")
    return None if found is None else WrapConfig(**found)


def wrapped(
    texts: Sequence[str], tokenizer: TextTokenizer, config: WrapConfig, *, length: int
) -> tuple[list[str], list[list[int]]]:
    """Return the texts of `length` tokens that texts fill, and their tokens in ids of the tokenizer's vocabulary."""
    values, offsets = tokenizer.encode_base(texts)
    found_nL, _ = Wrapper(tokenizer, config, length=length)(np.split(values, offsets[1:-1]), values[:0])
    ids = [row.tolist() for row in tokenizer.from_base(found_nL)]
    return tokenizer.decode_batch(ids), ids


class Wrapper:
    """Joins texts of a tokenizer by `TokenizerConfig.wrap`, and divides them into texts of `length` tokens.

    All tokens are ids of the entire vocabulary.
    """

    def __init__(self, tokenizer: TextTokenizer, config: WrapConfig, *, length: int) -> None:
        self.tokenizer = tokenizer
        self.separator, self.start, self.end = (
            self._id(name, getattr(config, name)) for name in ("separator", "start", "end")
        )
        self.inner = length - config.ends

    def _id(self, name: str, word: str | None) -> Ints:
        """Return the id of a word of the parameters, (1,), or (0,) for None."""
        if word is None:
            return np.zeros(0, np.int64)
        known = self.tokenizer.base.token_to_id(word)
        found = self.tokenizer.encode_base([word])[0] if known is None else np.array([known], np.int64)
        kept = self.tokenizer.from_base(found).tolist()
        if len(kept) != 1 or kept[0] == self.tokenizer.unk_id:
            raise ConfigurationError(
                f"parameter 'tokenizer.wrap.{name}': expected one token that texts can have, found {word!r}, which is "
                f"{' '.join(map(self.tokenizer.token, kept)) or 'none'}. Choose a token of the vocabulary, such as "
                "[SEP] of BERT's, <|endoftext|> of GPT-2's or a line break of bytes, or null."
            )
        return found

    def __call__(self, texts: Iterable[Ints], rest: Ints) -> tuple[Ints, Ints]:
        """Return the full texts (n, length) of `rest` and of the tokens of further texts, and the new rest."""
        joined = np.concatenate([rest, *(part for text in texts for part in (text, self.separator))])
        full = len(joined) // self.inner
        inner_nL = joined[: full * self.inner].reshape(full, self.inner)
        start_nL, end_nL = (np.tile(ids, (full, 1)) for ids in (self.start, self.end))
        return np.concatenate([start_nL, inner_nL, end_nL], axis=1), joined[full * self.inner :]


def _texts(
    documents: pa.Table, tokenizer: TextTokenizer, wrapper: Wrapper, rest: dict[str, Ints]
) -> tuple[pa.Table, pa.Table]:
    """Return the records that further documents fill, and their tokens.

    `rest` has the tokens that fill no text yet, by split and source; it receives the new ones.
    """
    splits, sources, metas = (documents.column(name).to_pylist() for name in ("split", "source", "meta"))
    if any(meta_value(meta, key) is not None for meta in metas for key in (PAIR, DESCRIBES)):
        raise ConfigurationError(
            "parameter 'tokenizer.wrap': expected sources of single texts, found pairs or descriptions. Set it to null."
        )
    values, offsets = tokenizer.encode_base(documents.column("text").to_pylist())
    found, places = np.split(values, offsets[1:-1]), list(zip(splits, sources, strict=True))
    rows, ids = list[dict[str, Any]](), list[Ints]()
    for split, source in dict.fromkeys(places):
        name = f"{split}/{source}"
        own = (text for text, place in zip(found, places, strict=True) if place == (split, source))
        ids_nL, rest[name] = wrapper(own, rest.get(name, values[:0]))
        ids += [*ids_nL]
        rows += [
            {"id": record_id(text), "text": text, "source": source, "split": split}
            for text in tokenizer.decode_batch(tokenizer.from_base(ids_nL))
        ]
    column = pa.array([row.astype(np.int32) for row in ids], _SCHEMA.field(0).type)
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA), pa.table([column], schema=_SCHEMA)
