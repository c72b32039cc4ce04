"""The older folder layout (`mm_ldlm.corpus.layout`) as a source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mm_ldlm.corpus.layout import Entry, Folder, describe_layout
from mm_ldlm.corpus.sources.base import BadRow, Row, excerpt
from mm_ldlm.corpus.sources.config import SourceConfig
from mm_ldlm.corpus.sources.files import explain_decoding
from mm_ldlm.errors import UnsafePathError


@dataclasses.dataclass(frozen=True)
class LayoutSource:
    """Texts of the folder layout, which keep their split."""

    config: SourceConfig
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        for path in self.config.paths:
            with Folder(path) as folder:
                for number, entry in enumerate(folder.entries(), start=1):
                    yield self._row(folder, entry, number)

    def describe(self) -> Any:
        for path in self.config.paths:
            with Folder(path):  # raises when it is missing
                pass
        return [describe_layout(path) for path in self.config.paths]

    def _row(self, folder: Folder, entry: Entry, number: int) -> Row | BadRow:
        place, listed = f"{folder.path}/{entry.text_path}", f"entry {number} of the {entry.split} list"
        if entry.fault is not None:
            return BadRow(str(folder.path) if entry.text_path is None else place, number, *entry.fault)
        if entry.text_path is None:
            if entry.text is None:
                about = excerpt(entry.id or "")
                return BadRow(str(folder.path), number, "missing_column", "neither 'text_path' nor 'text'", about)
            return Row(entry.text, str(folder.path), number, entry.split, entry.meta)
        try:
            raw = folder.read(entry.text_path, max_bytes=self.max_row_bytes)
        except FileNotFoundError:
            return BadRow(place, 1, "missing_file", f"{listed} names a file that does not exist")
        except UnsafePathError as error:
            return BadRow(place, 1, "unsafe_path", f"{listed}: {error.detail}")
        except OSError as error:
            return BadRow(place, 1, "unreadable_file", f"{listed}: {error}")
        if len(raw) > self.max_row_bytes:
            return BadRow(place, 1, "oversized", f"a document of more than {self.max_row_bytes} bytes", excerpt(raw))
        try:
            return Row(raw.decode("utf-8"), place, 1, entry.split, entry.meta)
        except UnicodeDecodeError as error:
            return BadRow(place, 1, "encoding", explain_decoding(error, "utf-8", 0), excerpt(raw))
