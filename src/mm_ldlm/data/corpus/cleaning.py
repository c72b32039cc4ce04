"""Cleaning: prepare rows (normalise, check, split, digest).

Every chunk of rows is prepared by itself, so that chunks can be prepared anywhere and in any order
(`mm_ldlm.data.engines`). `mm_ldlm.data.corpus.merging` decides what depends on other chunks.

The unit of a split is the document: all pieces of a long text, and all rows of a group that the source names, are in
one split. A text that describes something, such as an image, is a duplicate only if the same text occurs with the same
thing; only the thing decides the split, so that no image is in two splits.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.filters import check_language
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable
from mm_ldlm.data.corpus.record import (
    PAIR,
    PIECE_OF,
    comparison_digest,
    comparison_form,
    meta_text,
    text_digest,
    whole_text,
)
from mm_ldlm.data.corpus.sources import Row
from mm_ldlm.data.corpus.sources.base import HELD_OUT
from mm_ldlm.data.corpus.splits import SPLITS, Split, SplitConfig
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, split_text
from mm_ldlm.data.store import Manifest, Shard


class SideStore(Protocol):
    """A store with one row for each record, which ingestion fills with what sources contain besides texts."""

    @property
    def workspace(self) -> Path:
        """Its folder."""

    @property
    def most_rows(self) -> int:
        """Largest number of rows of a shard that fits in memory."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides which values are accepted."""

    def accept(self, value: Any) -> Any:
        """Return the value of a row (`Row.vector`) as it is stored, or raise `Unusable`."""

    def table(self, ids: Sequence[str], values: Sequence[Any]) -> pa.Table:
        """Return the rows of n records as a table; the values were accepted."""

    def commit(self, shards: Sequence[Shard], *, records: Manifest) -> None:
        """Write the manifest of the finished store of these records."""


class Candidate(NamedTuple):
    """A usable row with normalised texts.

    Attributes:
        source: name of its source.
        meta: `meta` of the record as JSON.
        id: digest that identifies the record.
        form: keyed digest of the comparison form; no text is in two splits.
        group: keyed digest of what decides the split: the group or the document of the text, or `form`.
        signature: for near duplicates, if they are removed.
        document: the document that the text is a piece of, or the id.
    """

    source: str
    row: Row
    meta: str | None
    id: bytes
    form: bytes
    group: bytes
    signature: Any
    document: str

    def split(self, splits: SplitConfig) -> Split:
        """Return the split of the row: the source's, or the one that the hash of its group gives."""
        if self.row.split in SPLITS:
            return self.row.split
        return splits.split_of(self.group, held_out=self.row.split == HELD_OUT)


class Chunk(NamedTuple):
    """Rows that are prepared together.

    Attributes:
        place: where the sources are after them, as plain JSON.
        rows: (name of the source, row).
    """

    place: dict[str, Any]
    rows: list[tuple[str, Row | BadRow]]


@dataclasses.dataclass
class Prepared:
    """A prepared chunk.

    Attributes:
        place: place of the chunk.
        refused: (source, damaged row) of the others.
        counts: (source, read or from_splitting) → rows; splitting makes further rows.
        truncated: number of texts of which only the first tokens are used.
    """

    place: dict[str, Any]
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    refused: list[tuple[str, BadRow]] = dataclasses.field(default_factory=list)
    counts: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    truncated: int = 0


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Prepares chunks.

    Attributes:
        tokenizer, limits: the bounds in tokens; None applies none.
        side: the store of what every row must contain besides its text; None ignores it.
    """

    config: IngestionConfig
    tokenizer: TextTokenizer | None = None
    limits: TokenizerConfig | None = None
    side: SideStore | None = None

    def __call__(self, chunk: Chunk) -> Prepared:
        """Prepare a chunk; every row of it is in the result, as usable or as refused."""
        out, usable = Prepared(chunk.place), list[tuple[str, Row]]()
        for source, row in chunk.rows:
            out.counts[source, "read"] += 1
            if isinstance(row, BadRow):
                out.refused.append((source, row))
                continue
            try:
                usable.append((source, self._checked(row)))
            except Unusable as error:
                out.refused.append((source, error.at(row.file, row.line)))
        longest = math.inf if self.limits is None else self.limits.max_length
        for (source, row), lengths in zip(usable, self._lengths([row for _, row in usable]), strict=True):
            pieces = [(row, lengths)]
            if max(lengths) > longest:
                pieces = self._shortened(row, lengths)
                out.counts[source, "from_splitting"] += len(pieces) - 1
                out.truncated += pieces[0][1] != lengths and len(pieces) == 1
            for piece, size in pieces:
                try:
                    out.candidates.append(self._candidate(source, piece, size))
                except Unusable as error:
                    out.refused.append((source, error.at(row.file, row.line)))
        return out

    def _checked(self, row: Row) -> Row:
        """Return the row with normalised texts, and with the accepted value of the side store."""
        text = self._checked_text(row.text)
        pair = None if row.pair is None else self._checked_text(row.pair)
        vector = None if self.side is None else self.side.accept(row.vector)
        return row._replace(text=text, pair=pair, vector=vector)

    def _checked_text(self, text: str) -> str:
        if "\0" in text:
            raise Unusable("nul", "NUL character in the text", text)
        try:
            size = len(text) if text.isascii() else len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise Unusable(
                "encoding",
                f"lone surrogate at character {error.start}: the source was decoded with the wrong encoding",
                text,
            ) from None
        if size > self.config.max_row_bytes:
            raise Unusable("oversized", f"{size} bytes, at most {self.config.max_row_bytes} are read", text)
        text = self.config.normalise(text)
        self.config.length.check(text)
        if self.config.language_filter is not None:
            check_language(text, self.config.language_filter)
        return text

    def _lengths(self, rows: list[Row]) -> list[list[int]]:
        """Return the numbers of tokens of each text and of the second text of a pair; 0 without a tokenizer."""
        texts = [[row.text] if row.pair is None else [row.text, row.pair] for row in rows]
        flat = [text for each in texts for text in each]
        counts = iter(
            [0] * len(flat) if self.tokenizer is None else np.diff(self.tokenizer.encode_base(flat)[1]).tolist()
        )
        return [[next(counts) for _ in each] for each in texts]

    def _shortened(self, row: Row, lengths: list[int]) -> list[tuple[Row, list[int]]]:
        """Return a row with too many tokens, truncated or divided if that is asked for, with its numbers of tokens."""
        limits, tokenizer = self.limits, self.tokenizer
        assert limits is not None
        assert tokenizer is not None
        if limits.too_long == "truncate":
            return [(row, [min(length, limits.max_length) for length in lengths])]
        if limits.too_long == "drop" or row.pair is not None or row.vector is not None:
            return [(row, lengths)]
        found = split_text(row.text, tokenizer, max_length=limits.max_length)
        group, meta = row.group or row.text, {**row.meta, PIECE_OF: text_digest(row.text, row.describes).hex()}
        return [
            (row._replace(text=text, group=group, meta={**meta, "piece": number, "pieces": len(found)}), [length])
            for number, (text, length) in enumerate(found)
        ]

    def _candidate(self, source: str, row: Row, lengths: list[int]) -> Candidate:
        self._check_lengths(row, lengths)
        if "piece" in row.meta:
            self.config.length.check(row.text)
        try:
            meta = meta_text(row.meta if row.pair is None else {**row.meta, PAIR: row.pair})
        except (TypeError, ValueError) as error:
            raise Unusable("wrong_type", f"the columns of 'meta': {error}", row.text) from None
        whole, near = whole_text(row.text, row.pair), self.config.near_duplicates
        key = self.config.splits.key.encode()
        form = comparison_digest(row.describes or row.text, key=key)
        group = form if row.group is None or row.describes else comparison_digest(row.group, key=key)
        signature = None if near is None or row.describes is not None else near.signature(comparison_form(whole))
        identity = text_digest(whole, row.describes)
        document = row.meta.get(PIECE_OF, identity.hex())
        return Candidate(source, row, meta, identity, form, group, signature, document)

    def _check_lengths(self, row: Row, lengths: list[int]) -> None:
        if (limits := self.limits) is None:
            return
        for length in lengths:
            found = f"{length} tokens, tokenizer"
            if length < limits.min_length:
                reason = "too_few_tokens" if length else "no_tokens"
                raise Unusable(reason, f"{found}.min_length is {limits.min_length}", row.text)
            if length > limits.max_length:
                raise Unusable("too_many_tokens", f"{found}.max_length is {limits.max_length}", row.text)
