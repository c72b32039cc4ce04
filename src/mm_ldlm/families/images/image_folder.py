"""Image files with a caption file: JSONL or CSV, each row with the path of an image and its captions."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import UnsafePathError
from mm_ldlm.core.files import inside, problem
from mm_ldlm.data.corpus.sources.base import BadRow, Row, excerpt
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.delimited import CsvSource, JsonlSource
from mm_ldlm.data.corpus.sources.files import describe_files, find_files
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, decode, meta_of


@dataclasses.dataclass(frozen=True)
class ImageFolderSource:
    """Caption files `*.jsonl` or `*.csv`; the paths of the images are relative to the folder of the caption file.

    An image outside that folder is not read.
    """

    config: SourceConfig
    limits: ImageLimits
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            for row in self._captions(path):
                yield row if isinstance(row, BadRow) else self._with_image(row, path.parent)

    def _captions(self, path: Path) -> Iterator[Row | BadRow]:
        """Yield the captions of a file, with the path of the image in `meta`."""
        image = self.config.image_column
        columns = tuple(dict.fromkeys((*self.config.meta_columns, image)))
        config = dataclasses.replace(
            self.config,
            kind="csv" if ".csv" in path.suffixes else "jsonl",
            path=str(path),
            meta_columns=columns,
            image_column=type(self.config).image_column,
        )
        yield from (CsvSource if config.kind == "csv" else JsonlSource)(config, self.max_row_bytes).rows()

    def _with_image(self, row: Row, folder: Path) -> Row | BadRow:
        fields: dict[str, Any] = json.loads(row.meta or "{}")
        name = fields.pop(self.config.image_column, None)
        if not isinstance(name, str) or not name:
            detail = f"column '{self.config.image_column}' contains {name!r}, expected the path of an image"
            return BadRow(row.file, row.line, "missing_column", detail, excerpt(row.text))
        try:
            path = inside(folder, name)
        except UnsafePathError as error:
            return BadRow(row.file, row.line, "unsafe_path", f"image: {error.detail}", excerpt(row.text))
        return with_image(row, {"file": str(path)}, path, self.limits, fields)

    def describe(self) -> Any:
        """Describe the caption files by their content, and the images by name, size and time of modification."""
        files = find_files(self.config)
        images = []
        for path in files:
            for row in self._captions(path):
                name = json.loads(row.meta or "{}").get(self.config.image_column) if isinstance(row, Row) else None
                with contextlib.suppress(UnsafePathError, OSError):  # `rows` puts them into quarantine
                    about = inside(path.parent, name).stat()
                    images.append([name, about.st_size, about.st_mtime_ns])
        return {"captions": describe_files(files), "images": fingerprint(images)}


def with_image(
    row: Row, reference: Mapping[str, Any], path: Path, limits: ImageLimits, fields: Mapping[str, Any]
) -> Row | BadRow:
    """Return the row with the image file as its image, or a `BadRow` if the image cannot be used."""
    if (fault := problem(path)) is not None:
        return BadRow(row.file, row.line, "missing_file", f"image {path.name!r} {fault}", excerpt(row.text))
    try:
        with open(path, "rb") as file:
            pixels = decode(file.read(limits.max_bytes + 1), limits=limits)
    except UnusableImage as error:
        return BadRow(row.file, row.line, error.reason, f"image {path.name!r}: {error.detail}", excerpt(row.text))
    except OSError as error:
        detail = f"image {path.name!r}: {error.strerror or error}"
        return BadRow(row.file, row.line, "unreadable_file", detail, excerpt(row.text))
    meta, key = meta_of(reference, pixels, **fields)
    return row._replace(meta=meta, image=key)
