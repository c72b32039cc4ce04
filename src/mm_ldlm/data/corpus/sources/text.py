"""Plain text files, one document per line or per file, also with a vector for each line in a .npy file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import problem
from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.files import describe_files, find_files, read_document, read_lines
from mm_ldlm.extras.own_vectors.source import BESIDE, beside, missing_vectors, open_vectors


@dataclasses.dataclass(frozen=True)
class TextSource:
    """Text files, plain or compressed (.gz, .zst); one document per line or per file."""

    config: SourceConfig
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        split, encoding, limit = self.config.split, self.config.encoding, self.max_row_bytes
        for path, vectors in self._files():
            name = str(path)
            if self.config.unit == "file":
                found = read_document(path, encoding=encoding, max_bytes=limit)
                yield found if isinstance(found, BadRow) else Row(found.text, name, 1, split)
                continue
            rows_nd = None
            if vectors is not None:
                lines = sum(1 for _ in read_lines(path, encoding=encoding, max_bytes=limit))
                rows_nd = open_vectors(vectors, texts=path, lines=lines)
            for line in read_lines(path, encoding=encoding, max_bytes=limit):
                if isinstance(line, BadRow):
                    yield line
                else:
                    vector = None if rows_nd is None else np.array(rows_nd[line.number - 1])
                    yield Row(line.text, name, line.number, split, vector=vector)

    def describe(self) -> Any:
        return describe_files([file for pair in self._files() for file in pair if file is not None])

    def _files(self) -> list[tuple[Path, Path | None]]:
        """List the text files, each with the .npy file of its vectors.

        Raises:
            SourceError: several text files share one .npy file, or a file is missing.
        """
        found, named = find_files(self.config), self.config.vectors
        if named is None:
            return [(path, None) for path in found]
        if named != BESIDE and len(found) > 1:
            raise SourceError(
                f"source '{self.config.label}': expected one text file for the vectors in {named}, found {len(found)}. "
                f"Set the source's 'vectors' to {BESIDE}, and give each text file a .npy file of the same name."
            )
        pairs = [(path, beside(path) if named == BESIDE else Path(named)) for path in found]
        for path, vectors in pairs:
            if (fault := problem(vectors)) is not None:
                raise missing_vectors(vectors, texts=path, fault=fault)
        return [(path, vectors) for path, vectors in pairs]
