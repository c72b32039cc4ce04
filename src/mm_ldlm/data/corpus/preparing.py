"""Prepare rows: normalise their texts, check their limits, split long texts, and compute the digests.

Every chunk is prepared by itself, so that chunks can be prepared anywhere and in any order (`mm_ldlm.data.engines`).
What depends on other chunks, duplicates and splits, is decided in `merging`, in the order of the sources.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import Any

import numpy as np

from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.dedup import signature
from mm_ldlm.data.corpus.filters import LanguageFilter
from mm_ldlm.data.corpus.record import PAIR, comparison_digest, comparison_form, meta_text, text_digest, whole_text
from mm_ldlm.data.corpus.side import SideStore
from mm_ldlm.data.corpus.sources import BadRow, Row, Unusable
from mm_ldlm.data.corpus.text_splitting import split_text
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig


@dataclasses.dataclass
class Prepared:
    """A prepared chunk: its n usable rows with their digests, and the rows refused, both by number of their source.

    Attributes:
        rows: n rows with normalised texts.
        ids: n digests that identify the records.
        forms: n keyed digests of the comparison forms; they decide the splits.
        metas: `meta` of the n records as JSON.
        signatures: n signatures for near duplicates, if they are removed.
        read: source → number of rows read.
        from_splitting: source → number of further rows that splitting made.
        truncated: number of texts of which only the first tokens are used.
    """

    rows: list[tuple[int, Row]] = dataclasses.field(default_factory=list)
    ids: list[bytes] = dataclasses.field(default_factory=list)
    forms: list[bytes] = dataclasses.field(default_factory=list)
    metas: list[str | None] = dataclasses.field(default_factory=list)
    signatures: list[Any] = dataclasses.field(default_factory=list)
    refused: list[tuple[int, BadRow]] = dataclasses.field(default_factory=list)
    read: Counter[int] = dataclasses.field(default_factory=Counter)
    from_splitting: Counter[int] = dataclasses.field(default_factory=Counter)
    truncated: int = 0


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Prepares chunks of (source number, row).

    Attributes:
        tokenizer, limits: the bounds in tokens; None applies none.
        side: the store of what every row must contain besides its text; None ignores it.
    """

    config: IngestionConfig
    tokenizer: TextTokenizer | None = None
    limits: TokenizerConfig | None = None
    side: SideStore | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the language filter, which every process loads itself."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def language(self) -> LanguageFilter | None:
        """The language filter of the parameters."""
        name = self.config.language_filter
        return None if name is None else LanguageFilter(name)

    def __call__(self, chunk: list[tuple[int, Row | BadRow]]) -> Prepared:
        """Prepare a chunk; every row of it is in the result, as usable or as refused."""
        out, usable = Prepared(), list[tuple[int, Row]]()
        for source, row in chunk:
            out.read[source] += 1
            if isinstance(row, BadRow):
                out.refused.append((source, row))
                continue
            try:
                usable.append((source, self._checked(row)))
            except Unusable as error:
                out.refused.append((source, error.at(row.file, row.line)))
        for source, row, lengths in self._with_lengths(usable):
            pieces = self._pieces(row, lengths, out)
            out.from_splitting[source] += len(pieces) - 1
            for piece, lengths in pieces:
                try:
                    self._add(out, source, piece, lengths)
                except Unusable as error:
                    out.refused.append((source, error.at(row.file, row.line)))
        return out

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _checked(self, row: Row) -> Row:
        """Return the row with normalised texts, and with the checked value of the side store."""
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
            detail = f"lone surrogate at character {error.start}: the source was decoded with the wrong encoding"
            raise Unusable("encoding", detail, text) from None
        if size > self.config.max_row_bytes:
            raise Unusable("oversized", f"{size} bytes, at most {self.config.max_row_bytes} are read", text)
        text = self.config.normalise(text)
        self.config.length.check(text)
        if self.language is not None:
            self.language.check(text)
        return text

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _with_lengths(self, rows: list[tuple[int, Row]]) -> list[tuple[int, Row, list[int]]]:
        """Return each row with the number of tokens of its text and of the second text of a pair."""
        if self.tokenizer is None or self.limits is None:
            return [(source, row, []) for source, row in rows]
        texts = [[text for text in (row.text, row.pair) if text is not None] for _, row in rows]
        counts = iter(np.diff(self.tokenizer.encode_base([text for pair in texts for text in pair])[1]).tolist())
        return [(*item, [next(counts) for _ in pair]) for item, pair in zip(rows, texts, strict=True)]

    def _pieces(self, row: Row, lengths: list[int], out: Prepared) -> list[tuple[Row, list[int]]]:
        """Return the row, or the pieces of a text that is too long, with their numbers of tokens."""
        limits, tokenizer = self.limits, self.tokenizer
        if limits is None or tokenizer is None or max(lengths) <= limits.max_length:
            return [(row, lengths)]
        if limits.too_long == "truncate":
            out.truncated += 1
            return [(row, [min(length, limits.max_length) for length in lengths])]
        if limits.too_long == "drop" or row.pair is not None or row.vector is not None:
            return [(row, lengths)]
        found = split_text(row.text, tokenizer, max_length=limits.max_length)
        meta = {**row.meta, "piece_of": text_digest(row.text, row.describes).hex()}
        return [
            (row._replace(text=text, meta={**meta, "piece": number, "pieces": len(found)}), [length])
            for number, (text, length) in enumerate(found)
        ]

    def _add(self, out: Prepared, source: int, row: Row, lengths: list[int]) -> None:
        """Add a row to the result, or raise `Unusable`."""
        self.config.length.check(row.text)
        if self.limits is not None:
            self.limits.check(lengths, row.text)
        try:
            meta = meta_text(row.meta)
            if meta is not None and len(meta) > self.config.max_row_bytes:
                detail = f"{len(meta)} bytes of 'meta', at most {self.config.max_row_bytes} are kept"
                raise Unusable("oversized", detail, row.text)
            if row.pair is not None:
                meta = meta_text({**row.meta, PAIR: row.pair})
        except ValueError as error:
            raise Unusable("wrong_type", f"the columns of 'meta': {error}", row.text) from None
        whole = whole_text(row.text, row.pair)
        out.rows.append((source, row))
        out.metas.append(meta)
        out.ids.append(text_digest(whole, row.describes))
        out.forms.append(comparison_digest(row.describes or row.text, key=self.config.splits.key.encode()))
        if self.config.near_duplicates is not None:
            out.signatures.append(signature(comparison_form(whole), self.config.near_duplicates))
