"""Sources of captioned images: the digits of scikit-learn, image files with a caption file, and WebDataset tars."""

import contextlib
import itertools
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core import Bytes, UnsafePathError, config
from mm_ldlm.core.files import inside
from mm_ldlm.data.corpus.quarantine import BadRow, Unusable, excerpt
from mm_ldlm.data.corpus.sources import SOURCES, Opening, Row, SourceConfig
from mm_ldlm.data.corpus.sources.base import TableFilesConfig, damaged, read_named
from mm_ldlm.data.corpus.sources.jsonl import json_object
from mm_ldlm.data.corpus.sources.lines import open_bytes
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.families.images.decoding import decode, digits, with_image

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CAPTIONS = (
    "a {}", "the digit {}", "the number {}", "a handwritten {}", "a picture of a {}", "this is a {}",
    "an image of the digit {}", "a small picture of the number {}", "somebody wrote the digit {}",
)  # fmt: skip
"""Forms of the captions of digits; each image has one of them, drawn by its digest and the seed"""
IMAGES = ("png", "jpg", "jpeg", "webp", "bmp", "gif")
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


@config
class DigitsConfig(SourceConfig):
    """The 8 × 8 digits that scikit-learn contains, with generated captions; the hash of an image decides its split."""

    kind: str = "digits"

    def rows(self, opening: Opening) -> Iterator[Row | BadRow]:
        for number, (pixels, label) in enumerate(zip(*digits(), strict=True)):
            row = with_image(Row("", "digits", number + 1, meta={"label": NAMES[label]}), {"digits": number}, pixels)
            form = random.Random(f"{opening.seed} {row.describes}").choice(CAPTIONS)
            yield row._replace(text=form.format(NAMES[label]))

    def describe(self, opening: Opening) -> Any:
        images, labels = digits()
        return {"seed": opening.seed, "captions": CAPTIONS, "images": fingerprint([images.tolist(), labels])}


@config
class ImageFilesConfig(TableFilesConfig):
    """Files with captions and their images; larger images go to quarantine before they are decoded.

    Attributes:
        max_bytes: bound on the size of the encoded image.
        max_pixels: bound on height · width.
    """

    max_bytes: Bytes = 20_000_000
    max_pixels: Bytes = 30_000_000

    def with_image(self, row: Row, path: Path, data: bytes, reference: dict[str, Any]) -> Row:
        """Return the row of a caption with its image; raises `Unusable`."""
        if len(data) > self.max_bytes:
            raise Unusable("oversized", f"more than {self.max_bytes} bytes of an image in {path}", row.text)
        pixels = decode(data, max_pixels=self.max_pixels)
        return with_image(row, {**reference, "bytes": len(data), "size": pixels.shape[:2]}, pixels)


@config
class ImageFolderConfig(ImageFilesConfig):
    """Caption files `*.jsonl` or `*.csv`; the paths of the images are relative to the folder of the caption file.

    An image outside that folder is not read.

    Attributes:
        encoding: any encoding of text in which ASCII characters are single bytes.
        image_column: the column that contains the path of the image.
    """

    kind: str = "image_folder"
    encoding: str = "utf-8"
    image_column: str = "image"

    def captions(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        """Yield the captions of a file, with the path of the image in `meta`."""
        kind = SOURCES.find("csv" if ".csv" in path.suffixes else "jsonl", at="ingestion.sources")
        made = self.as_kind(kind, meta_columns=(*self.meta_columns, self.image_column))
        yield from made.read(path, opening)

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        for row in self.captions(path, opening):
            if isinstance(row, BadRow) or not row.text:
                yield row
                continue
            try:
                yield self._captioned(row, path.parent)
            except Unusable as error:
                yield error.at(row.file, row.line)._replace(excerpt=excerpt(row.text))

    def _captioned(self, row: Row, folder: Path) -> Row:
        meta = {**row.meta}
        name = meta.pop(self.image_column, None)
        if not isinstance(name, str) or not name:
            detail = f"column '{self.image_column}' contains {name!r:.80}, expected the path of an image"
            raise Unusable("missing_column", detail)
        path, data = read_named(folder, name, self.max_bytes + 1)
        return self.with_image(row._replace(meta=meta), path, data, {"file": str(path)})

    def describe(self, opening: Opening) -> Any:
        """Describe the caption files by their content, and the images by name, size and time of modification."""
        images = []
        for path in self.find():
            for row in self.captions(path, opening):
                with contextlib.suppress(UnsafePathError, OSError):  # they go to quarantine
                    name = row.meta.get(self.image_column) if isinstance(row, Row) else None
                    about = inside(path.parent, name).stat()
                    images.append([name, about.st_size, about.st_mtime_ns])
        return {"captions": super().describe(opening), "images": fingerprint(images)}


@config
class WebDatasetConfig(ImageFilesConfig):
    """Uncompressed tars in the WebDataset layout: consecutive members of one key are one sample.

    `0001.jpg` and `0001.txt` are a sample with one caption; `0001.json` contains the columns. Nothing is extracted:
    members are read at their offsets, and their names are never used as paths.
    """

    kind: str = "webdataset"

    def read(self, path: Path, opening: Opening) -> Iterator[Row | BadRow]:
        samples = itertools.groupby(_members(path), key=_key)
        for number, (key, members) in enumerate(samples, start=1):
            try:
                fields, reference, data = self._sample(path, list(members), opening.max_row_bytes)
                for row in self.rows_of(fields, file=str(path), line=number):
                    yield row if isinstance(row, BadRow) else self.with_image(row, path, data, reference)
            except Unusable as error:
                yield BadRow(str(path), number, error.reason, f"sample {key!r:.200}: {error.detail}")

    def _sample(
        self, path: Path, members: list[tarfile.TarInfo], max_row_bytes: int
    ) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """Return the columns of a sample, the reference to its image, and the bytes of the image."""
        by_kind = {member.name.rpartition("/")[2].partition(".")[2].lower(): member for member in members}
        pictures = [kind for kind in by_kind if kind in IMAGES]
        if len(by_kind) < len(members) or not all(each.isreg() and not each.issparse() for each in members):
            raise Unusable("wrong_type", "expected regular files of different types")
        if len(pictures) != 1:
            raise Unusable(
                "missing_file", f"expected one image ({', '.join(IMAGES)}), found {', '.join(by_kind)}"[:300]
            )
        fields: dict[str, Any] = {}
        for kind in ("json", "txt"):
            if (member := by_kind.get(kind)) is not None:
                raw = _read(path, member, max_row_bytes)
                try:
                    found = json_object(raw) if kind == "json" else {self.columns[0]: raw.decode("utf-8")}
                except UnicodeDecodeError as error:
                    raise Unusable("encoding", f".{kind} is not UTF-8 ({error})") from None
                if twice := fields.keys() & found.keys():
                    raise Unusable("wrong_type", f"both .json and .txt contain {', '.join(sorted(twice))}")
                fields |= found
        image = by_kind[pictures[0]]
        return fields, {"tar": str(path), "offset": image.offset_data}, _read(path, image, self.max_bytes)


def _key(member: tarfile.TarInfo) -> str:
    folder, _, name = member.name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}".lstrip("/")


def _members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive that are not folders.

    Raises:
        SourceError: it is compressed or damaged, or something other than zeros follows the last member: `tarfile` takes
            a damaged header for the end.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            if file.read(4).startswith(_COMPRESSED):
                raise OSError("its members cannot be read at their offsets, because it is compressed: decompress it")
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                number += 1
                if not member.isdir():
                    yield member
            end = archive.offset
        with open(path, "rb") as file:
            file.seek(end)
            zeros = 0
            while piece := file.read(1 << 20):
                zeros += len(piece)
                if piece.strip(b"\0"):
                    raise OSError(f"the bytes after byte {end} are neither a member nor the end of the archive")
        if zeros < tarfile.BLOCKSIZE:
            raise OSError(f"it ends at byte {end + zeros} without its end marker, so members may be missing")
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError) as error:
        raise damaged(path, number, error) from None


def _read(path: Path, member: tarfile.TarInfo, most: int) -> bytes:
    if member.size > most:
        raise Unusable("oversized", f"{member.name!r:.200} has {member.size} bytes, at most {most} are read")
    with open(path, "rb") as file:
        file.seek(member.offset_data)
        return file.read(member.size)  # fewer bytes where the file is truncated, which `_members` finds
