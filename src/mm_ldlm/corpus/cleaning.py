"""Cleaning: test each row of a chunk, assign its split and remove duplicates.

The tests run in this order: readable text, length, language, number of tokens, duplicates. Every row is counted as
accepted, as a duplicate, or as quarantined.

A text with an image is a duplicate only if the same text occurs with the same image; the image alone decides its split,
so that no image is in two splits.
"""

from __future__ import annotations

import itertools
import json
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.corpus.config import IngestionConfig
from mm_ldlm.corpus.counts import Counts
from mm_ldlm.corpus.dedup import DigestMap, NearDuplicates, as_words
from mm_ldlm.corpus.filters import load_language_filter
from mm_ldlm.corpus.images import digest_of
from mm_ldlm.corpus.normalisation import comparison_digest, comparison_form, normalise
from mm_ldlm.corpus.quarantine import Quarantine
from mm_ldlm.corpus.record import PAIR, RECORD_SCHEMA, meta_value, text_digest, whole_text
from mm_ldlm.corpus.sources import BadRow, Row
from mm_ldlm.corpus.sources.base import HELD_OUT
from mm_ldlm.corpus.splits import SPLITS, splits_of
from mm_ldlm.corpus.text_splitting import split_text
from mm_ldlm.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.corpus.vectors import vector_table
from mm_ldlm.store import ShardStore

_SPLIT_NUMBER: dict[str, int] = {name: number for number, name in enumerate(SPLITS)}


class Candidate(NamedTuple):
    """A row whose text passed the tests; `source` is the number of its source, `pair` the second text of a pair."""

    source: int
    text: str
    row: Row
    pair: str | None = None

    @property
    def whole(self) -> str:
        """The text that identifies the record: both texts of a pair."""
        return whole_text(self.text, self.pair)

    @property
    def meta(self) -> str | None:
        """`meta` of the record, with the second text of a pair."""
        if self.pair is None:
            return self.row.meta
        return json.dumps((json.loads(self.row.meta) if self.row.meta else {}) | {PAIR: self.pair}, ensure_ascii=True)


class Cleaner:
    """Cleans chunks of rows; keeps the digests of the accepted texts and the rows that wait for the next shard."""

    def __init__(
        self,
        config: IngestionConfig,
        counts: Counts,
        *,
        tokenizer: TextTokenizer | None = None,
        limits: TokenizerConfig | None = None,
        vector_dim: int | None = None,
    ) -> None:
        self.config, self.counts, self.tokenizer, self.limits = config, counts, tokenizer, limits
        self._vector_dim = vector_dim
        self._vectors: list[npt.NDArray[np.float32]] = []
        self._key = config.splits.key.encode()
        self._ids = DigestMap()
        self._forms = DigestMap()
        self._near = NearDuplicates(config.near_duplicates) if config.near_duplicates else None
        self._keep_language = load_language_filter(config.language_filter) if config.language_filter else None
        self._accepted: dict[str, list[str | None]] = {name: [] for name in RECORD_SCHEMA.names}
        self._quarantine = Quarantine(counts)
        self._labels = [source.label for source in config.sources]

    # -- tests of the text --------------------------------------------------------------------------------------------

    def clean(self, chunk: list[tuple[int, Row | BadRow]]) -> None:
        """Sort each (source number, row) of the chunk into accepted, duplicate or quarantined."""
        candidates = []
        for source, row in chunk:
            self.counts.read[source] += 1
            if isinstance(row, BadRow):
                self._refuse(source, row.file, row.line, row.reason, row.detail, row.excerpt)
            elif (text := self._checked_text(source, row, row.text)) is not None:
                pair = None if row.pair is None else self._checked_text(source, row, row.pair)
                if row.pair is not None and pair is None:
                    continue
                if (whole := self._with_vector(source, row)) is not None:
                    candidates.append(Candidate(source, text, whole, pair))
        if self.tokenizer is not None and self.limits is not None and candidates:
            candidates = self._check_num_tokens(candidates, self.tokenizer, self.limits)
        if candidates:
            self._remove_duplicates(candidates)

    def _checked_text(self, source: int, row: Row, text: str) -> str | None:
        """Return the normalised text of a row, or None after refusing the row."""
        config = self.config
        if "\x00" in text:
            self._refuse(source, row.file, row.line, "nul", "NUL character in the text", text)
            return None
        if not text.isascii():
            try:
                size = len(text.encode("utf-8"))
            except UnicodeEncodeError as error:
                detail = f"lone surrogate at character {error.start}: the source was decoded with the wrong encoding"
                self._refuse(source, row.file, row.line, "encoding", detail, text)
                return None
        else:
            size = len(text)
        if size > config.max_row_bytes:
            detail = f"{size} bytes, at most {config.max_row_bytes} are read"
            self._refuse(source, row.file, row.line, "oversized", detail, text)
            return None
        text = normalise(text, config.unicode_form, collapse_whitespace=config.collapse_whitespace)
        if (refusal := config.length.refuse(text)) is not None:
            self._refuse(source, row.file, row.line, *refusal, text)
            return None
        if self._keep_language is not None:
            try:
                kept = bool(self._keep_language(text))
            except (Exception, SystemExit) as error:  # code of the user; many detectors raise for texts without letters
                detail = f"ingestion.language_filter {config.language_filter} raised {type(error).__name__}: {error}"
                self._refuse(source, row.file, row.line, "filter_error", detail, text)
                return None
            if not kept:
                self._refuse(source, row.file, row.line, "language", f"refused by {config.language_filter}", text)
                return None
        return text

    def _with_vector(self, source: int, row: Row) -> Row | None:
        """Return the row with its vector (d,) as finite float32, or None after refusing the row.

        Without a declared dimension, vectors are neither needed nor kept.
        """
        if self._vector_dim is None:
            return row if row.vector is None else row._replace(vector=None)
        if row.vector is None:
            detail = "the source contains no vector for this text, and encoder.kind is precomputed"
            self._refuse(source, row.file, row.line, "no_vector", detail, row.text)
            return None
        if len(row.vector) != self._vector_dim:
            detail = f"a vector of dimension {len(row.vector)}, encoder.dim is {self._vector_dim}"
            self._refuse(source, row.file, row.line, "wrong_dimension", detail, row.text)
            return None
        with np.errstate(over="ignore"):
            vector = row.vector.astype(np.float32, copy=False)
        if not np.isfinite(vector).all():
            what = "NaN or infinity" if not np.isfinite(row.vector).all() else "a number beyond float32"
            self._refuse(source, row.file, row.line, "not_finite", f"the vector contains {what}", row.text)
            return None
        return row._replace(vector=vector)

    def _check_num_tokens(
        self, candidates: list[Candidate], tokenizer: TextTokenizer, limits: TokenizerConfig
    ) -> list[Candidate]:
        candidates = self._check_second_texts(candidates, tokenizer, limits)
        values, offsets = tokenizer.encode_base([candidate.text for candidate in candidates])
        lengths = np.diff(offsets)
        if any(candidate.row.tokens is not None for candidate in candidates):
            rows = [values[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
            same = [self._has_tokens(*pair) for pair in zip(candidates, rows, strict=True)]
            candidates = list(itertools.compress(candidates, same))
            lengths = lengths[same]
        if lengths.min(initial=limits.min_length) >= limits.min_length and (
            lengths.max(initial=0) <= limits.max_length
        ):
            return candidates
        kept = []
        for candidate, length in zip(candidates, lengths.tolist(), strict=True):
            if length < limits.min_length:
                detail = f"{length} tokens, tokenizer.min_length is {limits.min_length}"
                self._refuse_row(candidate, "no_tokens" if length == 0 else "too_few_tokens", detail)
            elif length <= limits.max_length:
                kept.append(candidate)
            elif limits.too_long == "truncate":
                self.counts.truncated += 1
                kept.append(candidate)
            elif limits.too_long == "drop" or candidate.pair is not None or candidate.row.vector is not None:
                self._refuse_row(
                    candidate, "too_many_tokens", f"{length} tokens, tokenizer.max_length is {limits.max_length}"
                )
            else:
                kept += self._split(candidate, tokenizer, limits)
        return kept

    def _has_tokens(self, candidate: Candidate, ids: npt.NDArray[np.int64]) -> bool:
        """Return whether the stored tokens of a row are those of the tokenizer, or their beginning; refuse other rows.

        A text that was decoded from its tokens must have all of them.
        """
        stored = candidate.row.tokens
        if stored is None:
            return True
        count = len(stored.ids)
        if 0 < count <= len(ids) and not (stored.decoded and count < len(ids)) and (ids[:count] == stored.ids).all():
            return True
        shared = min(count, len(ids))
        differ = np.flatnonzero(stored.ids[:shared] != ids[:shared])
        place = int(differ[0]) if len(differ) else shared
        theirs, ours = (str(row[place]) if place < len(row) else "none" for row in (stored.ids, ids))
        detail = (
            f"token {place} is {theirs} in the source and {ours} by the configured tokenizer"
            f"{', of the text decoded from the tokens' if stored.decoded else ''}: tokenizer.name must be that of the "
            "stored tokens"
        )
        self._refuse_row(candidate, "other_tokens", detail)
        return False

    def _check_second_texts(
        self, candidates: list[Candidate], tokenizer: TextTokenizer, limits: TokenizerConfig
    ) -> list[Candidate]:
        """Refuse pairs whose second text has too few or too many tokens; a pair cannot be split."""
        pairs = [candidate.pair for candidate in candidates if candidate.pair is not None]
        if not pairs:
            return candidates
        lengths = iter(np.diff(tokenizer.encode_base(pairs)[1]).tolist())
        kept = []
        for candidate in candidates:
            length = next(lengths) if candidate.pair is not None else limits.min_length
            if length < limits.min_length:
                detail = f"{length} tokens in the second text, tokenizer.min_length is {limits.min_length}"
                self._refuse_row(candidate, "no_tokens" if length == 0 else "too_few_tokens", detail)
            elif length > limits.max_length and limits.too_long != "truncate":
                detail = f"{length} tokens in the second text, tokenizer.max_length is {limits.max_length}"
                self._refuse_row(candidate, "too_many_tokens", detail)
            else:
                kept.append(candidate)
        return kept

    def _split(self, candidate: Candidate, tokenizer: TextTokenizer, limits: TokenizerConfig) -> list[Candidate]:
        pieces = split_text(candidate.text, tokenizer, max_length=limits.max_length)
        self.counts.from_splitting[candidate.source] += len(pieces) - 1
        whole = text_digest(candidate.text, candidate.row.image).hex()
        kept = []
        for number, (piece, length) in enumerate(pieces):
            meta = json.loads(candidate.row.meta) if candidate.row.meta else {}
            meta |= {"piece_of": whole, "piece": number, "pieces": len(pieces)}
            part = Candidate(candidate.source, piece, candidate.row._replace(meta=json.dumps(meta, ensure_ascii=True)))
            if length > limits.max_length:
                self._refuse_row(part, "too_many_tokens", f"{length} tokens in a piece that cannot be split further")
            elif length < limits.min_length:
                self._refuse_row(
                    part, "too_few_tokens", f"a piece of {length} tokens, tokenizer.min_length is {limits.min_length}"
                )
            elif (refusal := self.config.length.refuse(piece)) is not None:
                self._refuse_row(part, *refusal)
            else:
                kept.append(part)
        return kept

    # -- duplicates and splits ----------------------------------------------------------------------------------------

    def _remove_duplicates(self, candidates: list[Candidate]) -> None:
        digests = [text_digest(candidate.whole, candidate.row.image) for candidate in candidates]
        forms = [comparison_digest(candidate.row.image or candidate.text, key=self._key) for candidate in candidates]
        id_words, form_words = as_words(digests), as_words(forms)
        by_hash = splits_of(form_words[:, 0], self.config.splits).tolist()
        known_ids, known_forms = self._ids.lookup(id_words).tolist(), self._forms.lookup(form_words).tolist()
        new_ids: set[bytes] = set()
        new_forms: dict[bytes, int] = {}
        taken: list[int] = []
        taken_splits: list[int] = []
        for i, candidate in enumerate(candidates):
            split = self._split_number(candidate.row.split, by_hash[i], form_words[i, 1])
            if known_ids[i] >= 0 or digests[i] in new_ids:
                self._duplicate(candidate, "exact")
                continue
            elsewhere = known_forms[i] if known_forms[i] >= 0 else new_forms.get(forms[i], split)
            if elsewhere != split:
                place = f"in_{SPLITS[elsewhere]}"
                self._duplicate(candidate, f"{place}_but_for_case" if candidate.row.image is None else f"image_{place}")
                continue
            if self._near is not None and candidate.row.image is None:
                sketch = self._near.signature(comparison_form(candidate.whole))
                if self._near.seen(sketch):
                    self._duplicate(candidate, "near")
                    continue
                self._near.add(sketch)
            new_ids.add(digests[i])
            new_forms[forms[i]] = split
            taken.append(i)
            taken_splits.append(split)
            self._accept(candidate, digests[i].hex(), SPLITS[split])
        self._ids.add(id_words[taken], np.zeros(len(taken), np.uint8))
        fresh = {forms[i]: (i, split) for i, split in zip(taken, taken_splits, strict=True) if known_forms[i] < 0}
        rows = [i for i, _ in fresh.values()]
        self._forms.add(form_words[rows], np.array([split for _, split in fresh.values()], np.uint8))

    def _split_number(self, split: str | None, by_hash: int, word: np.uint64) -> int:
        """Return the number of a row's split: its own, or that of the hash.

        Rows that are held out are divided by another word of the digest, because a hash split with this key may be what
        has held them out.
        """
        if split is None:
            return by_hash
        if split != HELD_OUT:
            return _SPLIT_NUMBER[split]
        fractions = self.config.splits
        part = fractions.test / ((fractions.test + fractions.validation) or 1.0)
        return _SPLIT_NUMBER["test" if float(word) / 2.0**64 < part else "validation"]

    def restore(self, records: ShardStore) -> None:
        """Restore the state of an interrupted run from the records that it committed."""
        for table in records.iter_tables(columns=["id", "text", "split", "meta"]):
            texts = table.column("text").to_pylist()
            images = [digest_of(meta) for meta in table.column("meta").to_pylist()]
            splits = np.array([_SPLIT_NUMBER[split] for split in table.column("split").to_pylist()], np.uint8)
            self._ids.add(
                as_words([bytes.fromhex(i) for i in table.column("id").to_pylist()]), np.zeros(len(texts), np.uint8)
            )
            keys = [image or text for text, image in zip(texts, images, strict=True)]
            forms = as_words([comparison_digest(key, key=self._key) for key in keys])
            _, first = np.unique(forms, axis=0, return_index=True)
            first = np.sort(first)
            first = first[self._forms.lookup(forms[first]) < 0]
            self._forms.add(forms[first], splits[first])
            if self._near is not None:
                for text, image, meta in zip(texts, images, table.column("meta").to_pylist(), strict=True):
                    if image is None:
                        whole = whole_text(text, meta_value(meta, PAIR))
                        self._near.add(self._near.signature(comparison_form(whole)))

    # -- tables -----------------------------------------------------------------------------------------------------

    @property
    def num_accepted_waiting(self) -> int:
        """Number of accepted rows that are not yet in a shard."""
        return len(self._accepted["id"])

    @property
    def num_quarantined_waiting(self) -> int:
        """Number of quarantined rows that are not yet in a shard."""
        return len(self._quarantine)

    def take_tables(self) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        """Return tables of the rows accepted, of the rows quarantined since the last call, and of the vectors of the
        accepted rows (None without vectors)."""
        accepted = pa.table(self._accepted, schema=RECORD_SCHEMA)
        vectors = None
        if self._vector_dim is not None:
            vectors = vector_table(self._accepted["id"], self._vectors, dim=self._vector_dim)
            self._vectors = []
        self._accepted = {name: [] for name in RECORD_SCHEMA.names}
        return accepted, self._quarantine.take_table(), vectors

    def _accept(self, candidate: Candidate, identity: str, split: str) -> None:
        self.counts.accepted[candidate.source] += 1
        self.counts.splits[split] += 1
        columns = self._accepted
        columns["id"].append(identity)
        columns["text"].append(candidate.text)
        columns["source"].append(self._labels[candidate.source])
        columns["split"].append(split)
        columns["meta"].append(candidate.meta)
        if candidate.row.vector is not None:
            self._vectors.append(candidate.row.vector)

    def _duplicate(self, candidate: Candidate, kind: str) -> None:
        self.counts.duplicates[candidate.source] += 1
        self.counts.duplicates_by[kind] += 1

    def _refuse_row(self, candidate: Candidate, reason: str, detail: str) -> None:
        self._refuse(candidate.source, candidate.row.file, candidate.row.line, reason, detail, candidate.text)

    def _refuse(self, source: int, file: str, line: int, reason: str, detail: str, text: str) -> None:
        self._quarantine.add(
            source, self._labels[source], file=file, line=line, reason=reason, detail=detail, text=text
        )
