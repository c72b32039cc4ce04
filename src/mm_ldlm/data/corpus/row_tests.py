"""Tests of rows: which texts of a chunk are readable, long enough and of the right length, and their digests.

Every chunk is tested by itself, so that chunks can be tested anywhere and in any order (`mm_ldlm.data.engines`).
What depends on other chunks, duplicates and splits, is decided by the `Cleaner`, in the order of the sources.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.dedup import signature
from mm_ldlm.data.corpus.filters import load_language_filter
from mm_ldlm.data.corpus.normalisation import comparison_digest, comparison_form, normalise
from mm_ldlm.data.corpus.record import PAIR, text_digest, whole_text
from mm_ldlm.data.corpus.sources import BadRow, Row
from mm_ldlm.data.corpus.text_splitting import split_text
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig


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

    @property
    def form(self) -> str:
        """The comparison form of the text that identifies the record."""
        return comparison_form(self.whole)


class Refusal(NamedTuple):
    """A row that goes to quarantine."""

    source: int
    file: str
    line: int
    reason: str
    detail: str
    text: str


@dataclasses.dataclass
class Tested:
    """The outcome of a chunk: n candidates with their digests, and the rows refused, both in the order of the rows.

    Attributes:
        read: source → number of rows read.
        from_splitting: source → number of further rows that splitting made.
        truncated: number of texts of which only the first tokens are used.
        ids: n digests that identify the records.
        forms: n keyed digests of the comparison forms.
        signatures: n signatures for near duplicates; None where they are left to the `Cleaner`.
    """

    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    refusals: list[Refusal] = dataclasses.field(default_factory=list)
    read: Counter[int] = dataclasses.field(default_factory=Counter)
    from_splitting: Counter[int] = dataclasses.field(default_factory=Counter)
    truncated: int = 0
    ids: list[bytes] = dataclasses.field(default_factory=list)
    forms: list[bytes] = dataclasses.field(default_factory=list)
    signatures: list[Any] | None = None


@dataclasses.dataclass(frozen=True)
class RowTests:
    """Tests chunks of rows.

    Attributes:
        tokenizer, limits: the bounds in tokens; None applies none.
        vector_dim: dimension of the vector that every row needs; None ignores vectors.
        with_signatures: also compute the signatures for near duplicates. The `Cleaner` computes those that it needs
            itself, but one after another.
    """

    config: IngestionConfig
    tokenizer: TextTokenizer | None = None
    limits: TokenizerConfig | None = None
    vector_dim: int | None = None
    with_signatures: bool = False

    def __call__(self, chunk: list[tuple[int, Row | BadRow]]) -> Tested:
        """Test each (source number, row) of a chunk."""
        return _Chunk(self).test(chunk)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the language filter, which every process loads itself."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def keep_language(self) -> Callable[[str], bool] | None:
        name = self.config.language_filter
        return None if name is None else load_language_filter(name)


class _Chunk:
    """The tests of one chunk."""

    def __init__(self, tests: RowTests) -> None:
        self.config, self._tests, self._out = tests.config, tests, Tested()
        self._keep_language, self._vector_dim = tests.keep_language, tests.vector_dim

    def test(self, chunk: list[tuple[int, Row | BadRow]]) -> Tested:
        candidates = []
        for source, row in chunk:
            self._out.read[source] += 1
            if isinstance(row, BadRow):
                self._refuse(source, row.file, row.line, row.reason, row.detail, row.excerpt)
            elif (text := self._checked_text(source, row, row.text)) is not None:
                pair = None if row.pair is None else self._checked_text(source, row, row.pair)
                if row.pair is not None and pair is None:
                    continue
                if (whole := self._with_vector(source, row)) is not None:
                    candidates.append(Candidate(source, text, whole, pair))
        if self._tests.tokenizer is not None and self._tests.limits is not None and candidates:
            candidates = self._check_num_tokens(candidates, self._tests.tokenizer, self._tests.limits)
        return self._digested(candidates)

    def _digested(self, candidates: list[Candidate]) -> Tested:
        out, key = self._out, self.config.splits.key.encode()
        out.candidates = candidates
        out.ids = [text_digest(candidate.whole, candidate.row.image) for candidate in candidates]
        out.forms = [comparison_digest(candidate.row.image or candidate.text, key=key) for candidate in candidates]
        if self._tests.with_signatures and self.config.near_duplicates is not None:
            out.signatures = [signature(candidate.form, self.config.near_duplicates) for candidate in candidates]
        return out

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
                self._out.truncated += 1
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
        self._out.from_splitting[candidate.source] += len(pieces) - 1
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

    def _refuse_row(self, candidate: Candidate, reason: str, detail: str) -> None:
        self._refuse(candidate.source, candidate.row.file, candidate.row.line, reason, detail, candidate.text)

    def _refuse(self, source: int, file: str, line: int, reason: str, detail: str, text: str) -> None:
        self._out.refusals.append(Refusal(source, file, line, reason, detail, text))
