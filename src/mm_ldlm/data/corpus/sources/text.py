"""Plain text files, one document per line or per file, also with a vector for each line in a .npy file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import InvalidValue, config
from mm_ldlm.core.errors import SourceError
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.corpus.sources.base import BadRow, Opening, Row, Source, SourceConfig
from mm_ldlm.data.corpus.sources.files import check_encoding, describe_files, find_files, read_lines, regular_file
from mm_ldlm.data.corpus.splits import Split

BESIDE = "beside"
"""Value of `vectors` for the .npy files that have the names of the text files"""


@config
class TextConfig(SourceConfig):
    """Text files, plain or compressed (.gz, .zst).

    Attributes:
        path: a file, a glob, or a list of files and globs; relative to the working directory.
        split: the split of every text, instead of the hash split.
        unit: one document per "line" or per "file".
        encoding: any encoding of text in which ASCII characters are single bytes.
        vectors: the .npy file with a vector for each line, or "beside" for the file of the same name.
    """

    kind: str = "text"
    path: str | tuple[str, ...]
    split: Split | None = None
    unit: Literal["line", "file"] = "line"
    encoding: str = "utf-8"
    vectors: str | None = None

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if self.has_vectors and self.unit != "line":
            raise InvalidValue("'vectors' needs 'unit' line: a row of the .npy file belongs to one line", "vectors")

    @property
    def files(self) -> list[tuple[str, str]]:
        named = [] if self.vectors in (None, BESIDE) else [("vectors", str(self.vectors))]
        return [*super().files, *named]

    @property
    def has_vectors(self) -> bool:
        return self.vectors is not None

    def open(self, opening: Opening) -> Source:
        return TextSource(self, opening)


@dataclasses.dataclass(frozen=True)
class TextSource:
    """The texts of all files, one file after another."""

    config: TextConfig
    opening: Opening

    def rows(self) -> Iterator[Row | BadRow]:
        whole, encoding = self.config.unit == "file", self.config.encoding
        for path, vectors in self._files():
            lines = functools.partial(
                read_lines, path, encoding=encoding, max_bytes=self.opening.max_row_bytes, whole=whole
            )
            vectors_nd = None if vectors is None else _open(vectors, texts=path, lines=sum(1 for _ in lines()))
            for line in lines():
                vector = None if vectors_nd is None else np.array(vectors_nd[line.number - 1])
                yield line.bad or Row(line.text, str(path), line.number, self.config.split, vector=vector)

    def describe(self) -> Any:
        return describe_files([file for pair in self._files() for file in pair if file is not None])

    def _files(self) -> list[tuple[Path, Path | None]]:
        """List the text files, each with the .npy file of its vectors."""
        texts, vectors = find_files(self.config), find_files(self.config, key="vectors")
        if not self.config.has_vectors:
            return [(path, None) for path in texts]
        if self.config.vectors == BESIDE:
            vectors = [regular_file(self.config, _beside(path), key="vectors") for path in texts]
        if len(vectors) != len(texts):
            raise SourceError(
                f"source '{self.config.label}': expected one text file for the vectors in {self.config.vectors}, found "
                f"{len(texts)}. Set the source's 'vectors' to {BESIDE}, and give each text file a .npy file of the "
                "same name."
            )
        return list(zip(texts, vectors, strict=True))


def _beside(path: Path) -> Path:
    """Return the .npy file of a text file: `texts.npy` for `texts.txt` and for `texts.txt.gz`."""
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).with_suffix(".npy")


def _open(path: Path, *, texts: Path, lines: int) -> npt.NDArray[Any]:
    """Map the .npy file (n, d) of the vectors of a text file with n lines, blank ones included."""
    file = InputFile(path, remedy=f"Write {texts} and its vectors from the same list.", error=SourceError)
    found = file.array()
    if found.ndim != 2 or len(found) != lines:
        file.refuse(f"an array of shape ({lines}, dimension), a row for each line", f"the shape {found.shape}")
    return found
