"""The older folder layout as a source: texts, and on demand stored tokens and latents.

Stored tokens are compared with those of the configured tokenizer; a text that is missing is decoded from them. Stored
latents are the vectors of the texts. A row keeps its split, the second text of a pair, and an id of its own in `meta`,
under "layout_id".
"""

import functools
import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import ConfigurationError, InvalidValue, StoreError, config
from mm_ldlm.core.files import array_in
from mm_ldlm.data.corpus.record import DECODED, PAIR, SPLITS, is_storable, record_id
from mm_ldlm.data.corpus.sources import BadRow, Opening, Row, SourceConfig, Unusable
from mm_ldlm.data.corpus.sources.base import HELD_OUT
from mm_ldlm.data.corpus.sources.delimited import json_object
from mm_ldlm.data.corpus.sources.lines import explain_decoding
from mm_ldlm.data.corpus.tokenizer import MASKS, UNKNOWNS, TextTokenizer
from mm_ldlm.extras.layout.folder import Folder, Item, path_of

LAYOUT_ID = "layout_id"
"""Key of `meta` for an id of the layout that is not the id of the record"""


@config
class LayoutConfig(SourceConfig):
    """A folder or a .zip of the older layout.

    Attributes:
        path: the folder or the archive, or a list of them.
        splits: the split of the rows of train, validation and test, by default the same; hash is the project's hash
            split, and held_out divides rows between validation and test, if no other rows are for testing.
        tokens: compare the stored tokens with those of the tokenizer, and decode texts that are missing.
        latents: read the stored latents as vectors (`encoder.kind: precomputed`).
    """

    kind: str = "layout"
    path: str | tuple[str, ...]
    splits: dict[str, Literal["train", "validation", "test", "hash", "held_out"]] | None = None
    tokens: bool = False
    latents: bool = False

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.splits or ()) - set(SPLITS)):
            raise InvalidValue(f"the layout has the splits {', '.join(SPLITS)}, found {', '.join(unknown)}", "splits")

    @property
    def has_vectors(self) -> bool:
        return self.latents

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        """Yield the rows of all folders, in the order of their lists, and the texts that no list names."""
        if self.tokens and opening.tokenizer is None:
            raise ConfigurationError(
                f"source '{self.label}': 'tokens' compares stored tokens with those of a tokenizer, but there "
                "is none. Pass one, or set 'tokens' to false."
            )
        for path in self.paths:
            with closing(Folder(path)) as folder:
                yield from self._rows_of(folder, opening)

    def describe(self, opening: Opening) -> Any:
        parts = [part for part, read in (("tokens", self.tokens), ("latents", self.latents)) if read]
        digests = []
        for path in self.paths:
            with closing(Folder(path)) as folder:
                digests.append(folder.describe(parts))
        return digests

    def _rows_of(self, folder: Folder, opening: Opening) -> Iterator[Row | BadRow]:
        items, texts = folder.items(), folder.names("texts")
        splits = self._splits({split for split, _ in items})
        read, number = set(), 0
        for number, (split, item) in enumerate(items, start=1):
            name = item.get("text_path") or item.get("token_path")
            file = f"{folder.path}/{name}" if isinstance(name, str) else str(folder.path)
            if isinstance(name, str):
                read.add(PurePosixPath(name).as_posix())
            try:
                row = Row("", file, number, splits[split])
                yield self._row(folder, item, row, opening, has_texts=bool(texts))
            except Unusable as error:
                yield error.at(file, number)
        for name in texts:
            if name not in read:
                number += 1
                detail = "no list names this file, or its folder is not that of a split: it is not read"
                yield BadRow(f"{folder.path}/{name}", number, "unlisted_file", detail)

    def _splits(self, there: set[str]) -> Mapping[str, str | None]:
        """Return the split of the rows of each split of the layout; None stands for the hash split."""
        named: dict[str, str] = {split: (self.splits or {}).get(split, split) for split in SPLITS}
        tested = any(named[split] == "test" for split in there)
        words: dict[str, str | None] = {"hash": None, HELD_OUT: "validation" if tested else HELD_OUT}
        return {split: words.get(to, to) for split, to in named.items()}

    def _row(self, folder: Folder, item: Item, row: Row, opening: Opening, *, has_texts: bool) -> Row:
        for key in ("id", "text", "text_path", "token_path", "latent_path"):
            if (value := item.get(key)) is not None and not (isinstance(value, str) and is_storable(value)):
                raise Unusable("wrong_type", f"'{key}' contains {value!r:.80}, expected text")
        meta, read = item.get("meta") or {}, functools.partial(folder.read, max_bytes=opening.max_row_bytes)
        if not isinstance(meta, Mapping):
            meta = json_object(meta if isinstance(meta, str) else repr(meta))
        text, vector = item.get("text"), None
        if item.get("text_path") is not None and (has_texts or not self.tokens):
            raw = read(item["text_path"])
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Unusable("encoding", explain_decoding(error, "utf-8", 0), raw) from None
        if self.tokens:
            meta = meta if text is not None else {**meta, DECODED: True}
            text = _with_tokens(text, read(path_of(item, "tokens")), opening)
        if text is None:
            raise Unusable("missing_column", "neither 'text_path' nor 'text'", item)
        if self.latents:
            vector = _latent(read(path_of(item, "latents")))
        pair = meta.get(PAIR) if isinstance(meta.get(PAIR), str) else None  # as the export writes it
        if item.get("id") is not None and (DECODED in meta or item["id"] != record_id(text, pair)):
            meta = {**meta, LAYOUT_ID: item["id"]}
        return row._replace(text=text, meta=meta, pair=pair, vector=vector)


def _with_tokens(text: str | None, raw: bytes, opening: Opening) -> str:
    """Return the text, decoded where it is missing, whose stored tokens must be those of the tokenizer.

    Other programs truncate: the stored tokens may be the beginning. A decoded text must have all of them.
    """
    tokenizer = opening.tokenizer
    assert tokenizer is not None
    ids, decoded = _without_ends(_tokens(raw, opening.max_row_bytes), tokenizer), text is None
    if text is None:
        try:
            text = tokenizer.decode(ids.tolist())
        except StoreError as error:
            raise Unusable("other_tokens", str(error)) from None
    stored = opening.normalise(text)
    ours, count = tokenizer.encode_base([stored])[0], len(ids)
    complete = count == len(ours) or (not decoded and 0 < count < len(ours))
    if stored and not (complete and (ours[:count] == ids).all()):
        place = next((n for n, pair in enumerate(zip(ids, ours, strict=False)) if pair[0] != pair[1]), count)
        detail = (
            f"token {place} of {count} is not that of the configured tokenizer, which has {len(ours)} for the "
            "text: tokenizer.name must be that of the stored tokens"
        )
        raise Unusable("other_tokens", detail, text)
    return text


def _without_ends(ids: npt.NDArray[np.int64], tokenizer: TextTokenizer) -> npt.NDArray[np.int64]:
    """Return ids without the special tokens at their ends ([CLS], [SEP], padding); unknown tokens stay."""
    added = tokenizer.base.get_added_tokens_decoder()
    ends = [i for i, each in added.items() if each.special and each.content not in (*UNKNOWNS, *MASKS)]
    inner = np.flatnonzero(~np.isin(ids, ends))
    return ids[inner[0] : inner[-1] + 1] if len(inner) else ids[:0]


def _tokens(raw: bytes, max_bytes: int) -> npt.NDArray[np.int64]:
    """Read `input_ids` (L,) from the bytes of a .npz file."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            member = archive.getinfo("input_ids.npy")
            if member.file_size > max_bytes:
                raise ValueError(f"{member.file_size} bytes, at most {max_bytes} are read")
            ids = array_in(archive.read(member))
        if ids.dtype.kind not in "iu":
            raise ValueError(f"its type is {ids.dtype}")
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        raise Unusable("unreadable_file", f"no array 'input_ids' of whole numbers in the tokens ({error})") from None
    return ids.reshape(-1).astype(np.int64)


def _latent(raw: bytes) -> npt.NDArray[Any]:
    try:
        found = array_in(raw)
    except ValueError as error:
        raise Unusable("unreadable_file", f"the latent is not a readable .npy array ({error})") from None
    return np.array(found.reshape(-1) if found.size == max(found.shape, default=0) else found)
