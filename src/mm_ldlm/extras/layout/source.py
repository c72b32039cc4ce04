"""The older folder layout as a source: texts, and on demand stored latents, which are the vectors of the texts.

A row keeps its split, the second text of a pair, and its own id in `meta`, under "layout_id". Stored tokens are
not read, because ingestion makes them from the texts.
"""

import functools
import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from mm_ldlm.core import config, foreign_code
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable
from mm_ldlm.data.corpus.record import PAIR, is_storable, record_id
from mm_ldlm.data.corpus.sources import Opening, Row, SourceConfig
from mm_ldlm.data.corpus.sources.base import HELD_OUT
from mm_ldlm.data.corpus.sources.jsonl import json_object
from mm_ldlm.data.corpus.sources.lines import explain_decoding
from mm_ldlm.data.corpus.splits import SPLITS, Split
from mm_ldlm.extras.layout.folder import Folder, Item, latents_of

LAYOUT_ID = "layout_id"
"""Key of `meta` for an id of the layout that is not the id of the record"""


@config
class LayoutConfig(SourceConfig):
    """A folder or a .zip of the older layout.

    Attributes:
        path: the folder or the archive, or a list of them.
        splits: the split of the rows of train, validation and test, by default the same; hash is the project's hash
            split, and held_out divides rows between validation and test, if no other rows are for testing.
        latents: read the stored latents as vectors (`encoder.kind: precomputed`).
    """

    kind: str = "layout"
    path: str | tuple[str, ...]
    splits: dict[Split, Literal["train", "validation", "test", "hash", "held_out"]] | None = None
    latents: bool = False

    @property
    def has_vectors(self) -> bool:
        return self.latents

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        """Yield the rows of all folders, in the order of their lists, and the texts that no list names."""
        for path in self.paths:
            with closing(Folder(path)) as folder:
                yield from self._rows_of(folder, opening)

    def describe(self, opening: Opening) -> Any:
        digests = []
        for path in self.paths:
            with closing(Folder(path)) as folder:
                digests.append(folder.describe(["latents"] if self.latents else []))
        return digests

    def _rows_of(self, folder: Folder, opening: Opening) -> Iterator[Row | BadRow]:
        items, texts = folder.items(), folder.names("texts")
        splits = self._splits({split for split, _ in items})
        read, number = set(), 0
        for number, (split, item) in enumerate(items, start=1):
            name = item.get("text_path")
            file = f"{folder.path}/{name}" if isinstance(name, str) else str(folder.path)
            if isinstance(name, str):
                read.add(PurePosixPath(name).as_posix())
            try:
                yield self._row(folder, item, Row("", file, number, splits[split]), opening)
            except Unusable as error:
                yield error.at(file, number)
        for name in texts:
            if name not in read:
                number += 1
                detail = "no list names this file, or its folder is not the folder of a split: it is not read"
                yield BadRow(f"{folder.path}/{name}", number, "unlisted_file", detail)

    def _splits(self, there: set[str]) -> Mapping[str, str | None]:
        """Return the split of the rows of each split of the layout; None stands for the hash split."""
        named: dict[str, str] = {split: (self.splits or {}).get(split, split) for split in SPLITS}
        tested = any(named[split] == "test" for split in there)
        words: dict[str, str | None] = {"hash": None, HELD_OUT: "validation" if tested else HELD_OUT}
        return {split: words.get(to, to) for split, to in named.items()}

    def _row(self, folder: Folder, item: Item, row: Row, opening: Opening) -> Row:
        if type(item.get("id")) is int:
            item = {**item, "id": str(item["id"])}
        for key in ("id", "text", "text_path", "latent_path"):
            if (value := item.get(key)) is not None and not (isinstance(value, str) and is_storable(value)):
                raise Unusable("wrong_type", f"'{key}' contains {value!r:.80}, expected text")
        meta, read = item.get("meta") or {}, functools.partial(folder.read, max_bytes=opening.max_row_bytes)
        if not isinstance(meta, Mapping):
            meta = json_object(meta if isinstance(meta, str) else repr(meta))
        text, vector = item.get("text"), None
        if item.get("text_path") is not None:
            raw = read(item["text_path"])
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Unusable("encoding", explain_decoding(error, "utf-8", 0), raw) from None
        if text is None:
            raise Unusable("missing_column", "neither 'text_path' nor 'text'", item)
        if self.latents:
            vector = latent_of(read(latents_of(item)))
        pair = meta.get(PAIR) if isinstance(meta.get(PAIR), str) else None  # as the export writes it
        if item.get("id") is not None and item["id"] != record_id(text, pair):
            meta = {**meta, LAYOUT_ID: item["id"]}
        return row._replace(text=text, meta=meta, pair=pair, vector=vector)


def latent_of(raw: bytes) -> npt.NDArray[Any]:
    """Read the array of numbers in the bytes of a `.npy` file; pickled objects are never loaded."""
    file = io.BytesIO(raw)
    # numpy's parser of the header raises errors of tokenize, ast and struct.
    with foreign_code(
        lambda reason: Unusable("unreadable_file", f"the latent is not a readable .npy array ({reason})")
    ):
        found: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
        if file.tell() != len(raw):
            raise ValueError(f"its array ends at byte {file.tell()}, it has {len(raw)} bytes")
    return np.array(found.reshape(-1) if found.size == max(found.shape, default=0) else found)
