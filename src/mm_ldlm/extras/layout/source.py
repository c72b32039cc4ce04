"""The older folder layout (`reading.py`) as a source: texts, and on demand stored tokens and latents.

Stored tokens are compared with those of the configured tokenizer; a text that is missing is decoded from them. Stored
latents are the vectors of the texts. A row keeps its split, the second text of a pair, and an id of its own in `meta`,
under "layout_id".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mm_ldlm.core.errors import ConfigurationError, UnsafePathError
from mm_ldlm.core.files import array_in
from mm_ldlm.data.corpus.record import DECODED, PAIR, meta_value, record_id
from mm_ldlm.data.corpus.sources.base import HELD_OUT, BadRow, Row, StoredTokens, excerpt
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.files import explain_decoding
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.extras.layout.reading import Entry, Folder, describe_layout, paired, parse_tokens

LAYOUT_ID = "layout_id"
"""Key of `meta` for an id of the layout that is not the id of the record."""


@dataclasses.dataclass(frozen=True)
class LayoutSource:
    """Rows of the folder layout."""

    config: SourceConfig
    max_row_bytes: int
    tokenizer: TextTokenizer | None = None

    def rows(self) -> Iterator[Row | BadRow]:
        if self.config.tokens and self.tokenizer is None:
            raise ConfigurationError(
                f"source '{self.config.label}': 'tokens' compares stored tokens with those of a tokenizer, but there "
                "is none. Pass one, or set 'tokens' to false."
            )
        for path in self.config.paths:
            with Folder(path) as folder:
                place = _Place(folder, has_texts=bool(folder.names("texts/")), splits=self._splits(folder))
                for number, entry in enumerate(folder.entries(), start=1):
                    yield self._row(place, entry, number)

    def describe(self) -> Any:
        for path in self.config.paths:
            with Folder(path):  # raises when it is missing
                pass
        parts = [part for part, read in (("tokens", self.config.tokens), ("latents", self.config.latents)) if read]
        return [describe_layout(path, parts=parts) for path in self.config.paths]

    def _splits(self, folder: Folder) -> Mapping[str, str | None]:
        """Return the split of the rows of each split of the layout; None stands for the hash split."""
        named = self.config.splits or {}
        found: dict[str, str | None] = {split: named.get(split, split) for split in ("train", "validation", "test")}
        found = {split: None if goes_to == "hash" else goes_to for split, goes_to in found.items()}
        if HELD_OUT in found.values():
            tested = any(found[split] == "test" for split in folder.splits())
            found = {split: "validation" if tested and to == HELD_OUT else to for split, to in found.items()}
        return found

    def _row(self, place: _Place, entry: Entry, number: int) -> Row | BadRow:
        folder = place.folder
        if entry.fault is not None:
            named = folder.path if entry.text_path is None else f"{folder.path}/{entry.text_path}"
            return BadRow(str(named), number, *entry.fault)
        try:
            row = self._text(place, entry, number)
            tokens = self._tokens(folder, entry) if self.config.tokens else None
            if row is None:
                if tokens is None:
                    about = excerpt(entry.id or "")
                    return BadRow(str(folder.path), number, "missing_column", "neither 'text_path' nor 'text'", about)
                row, tokens = self._decoded(folder, entry, tokens)
            vector = self._latent(folder, entry) if self.config.latents else None
        except _Unusable as error:
            return BadRow(error.place or str(folder.path), error.line or number, *error.args[:3])
        pair = meta_value(row.meta, PAIR)  # as the export writes it
        row = row._replace(
            split=place.splits[entry.split], tokens=tokens, vector=vector, pair=pair if isinstance(pair, str) else None
        )
        if entry.id is not None and ((row.meta is not None and DECODED in row.meta) or not _is_own(entry, row)):
            row = row._replace(meta=_with(row.meta, {LAYOUT_ID: entry.id}))
        return row

    # -- parts of a row -----------------------------------------------------------------------------------------------

    def _text(self, place: _Place, entry: Entry, number: int) -> Row | None:
        """Return the row with its text; None if the layout has none."""
        if entry.text_path is None:
            return None if entry.text is None else Row(entry.text, str(place.folder.path), number, meta=entry.meta)
        if not place.has_texts and self.config.tokens:
            return None
        raw = self._read(place.folder, entry.text_path, f"entry {number} of the {entry.split} list")
        path = f"{place.folder.path}/{entry.text_path}"
        try:
            return Row(raw.decode("utf-8"), path, 1, meta=entry.meta)
        except UnicodeDecodeError as error:
            raise _Unusable("encoding", explain_decoding(error, "utf-8", 0), excerpt(raw), place=path, line=1) from None

    def _tokens(self, folder: Folder, entry: Entry) -> StoredTokens:
        assert self.tokenizer is not None
        name = paired(entry, "tokens")
        raw = self._read(folder, name, f"the tokens of {entry.id or entry.text_path}")
        try:
            ids_L = parse_tokens(raw, max_bytes=self.max_row_bytes)
        except ValueError as error:
            raise _Unusable("unreadable_file", str(error), place=f"{folder.path}/{name}", line=1) from None
        return StoredTokens(self.tokenizer.without_special_ends(ids_L), decoded=False)

    def _decoded(self, folder: Folder, entry: Entry, tokens: StoredTokens) -> tuple[Row, StoredTokens]:
        """Return the row whose text is decoded from its tokens."""
        assert self.tokenizer is not None
        place, ids_L = f"{folder.path}/{paired(entry, 'tokens')}", tokens.ids
        if len(ids_L) and not 0 <= ids_L.min() <= ids_L.max() < self.tokenizer.base_size:
            detail = (
                f"ids {ids_L.min()} to {ids_L.max()}, the configured tokenizer has {self.tokenizer.base_size} tokens: "
                "tokenizer.name must be that of the stored tokens"
            )
            raise _Unusable("other_tokens", detail, place=place, line=1)
        text = self.tokenizer.decode(ids_L.tolist())
        return Row(text, place, 1, meta=_with(entry.meta, {DECODED: True})), tokens._replace(decoded=True)

    def _latent(self, folder: Folder, entry: Entry) -> Any:
        name = paired(entry, "latents")
        raw = self._read(folder, name, f"the latent of {entry.id or entry.text_path or entry.token_path}")
        try:
            found = array_in(raw)
        except (ValueError, OSError) as error:
            detail = f"not a readable .npy array ({error})"
            raise _Unusable("unreadable_file", detail, place=f"{folder.path}/{name}", line=1) from None
        if found.size != max(found.shape, default=0) or found.dtype.kind not in "iuf":
            detail = f"expected a vector of numbers (d,) or (1, d), found shape {found.shape} and type {found.dtype}"
            raise _Unusable("wrong_type", detail, place=f"{folder.path}/{name}", line=1)
        return np.array(found.reshape(-1))

    def _read(self, folder: Folder, name: str | None, what: str) -> bytes:
        """Read a file of the layout; `what` describes it in messages."""
        if name is None:
            raise _Unusable("missing_column", f"{what}: the list names no file")
        place = f"{folder.path}/{name}"
        try:
            raw = folder.read(name, max_bytes=self.max_row_bytes)
        except FileNotFoundError:
            raise _Unusable("missing_file", f"{what} names a file that does not exist", place=place, line=1) from None
        except UnsafePathError as error:
            raise _Unusable("unsafe_path", f"{what}: {error.detail}", place=place, line=1) from None
        except OSError as error:
            raise _Unusable("unreadable_file", f"{what}: {error}", place=place, line=1) from None
        if len(raw) > self.max_row_bytes:
            detail = f"a document of more than {self.max_row_bytes} bytes"
            raise _Unusable("oversized", detail, excerpt(raw), place=place, line=1)
        return raw


@dataclasses.dataclass(frozen=True)
class _Place:
    """A layout that is being read."""

    folder: Folder
    has_texts: bool
    splits: Mapping[str, str | None]
    """Split of the layout → split of the records"""


class _Unusable(Exception):
    """A row that cannot be used: (reason, detail, excerpt) and its location, if it is not that of the folder."""

    def __init__(
        self, reason: str, detail: str, beginning: str = "", *, place: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(reason, detail, beginning)
        self.place, self.line = place, line


def _is_own(entry: Entry, row: Row) -> bool:
    """Return whether the id of the layout is the id of the record."""
    return entry.id == record_id(row.text, meta_value(row.meta, PAIR))


def _with(meta: str | None, more: Mapping[str, Any]) -> str:
    return json.dumps((json.loads(meta) if meta else {}) | dict(more), ensure_ascii=True)
