"""WebDataset tars: consecutive members of one key are one sample, an image with its captions.

`0001.jpg` and `0001.txt` are a sample with one caption; `0001.json` contains the columns of the source. Nothing is
extracted: members are read at their offsets, and their names are never used as paths.
"""

from __future__ import annotations

import dataclasses
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.json_text import parse_json
from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.sources.fields import rows_of
from mm_ldlm.data.corpus.sources.files import damaged, describe_files, find_files, open_bytes
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, decode, meta_of

IMAGES = ("png", "jpg", "jpeg", "webp", "bmp", "gif")
_GZIP_OR_ZSTD = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


@dataclasses.dataclass(frozen=True)
class WebDatasetSource:
    """Uncompressed tars in the WebDataset layout."""

    config: SourceConfig
    limits: ImageLimits
    max_row_bytes: int

    def rows(self) -> Iterator[Row | BadRow]:
        for path in find_files(self.config):
            for number, (key, members) in enumerate(self._samples(path), start=1):
                yield from self._sample(path, number, key, members)

    def _samples(self, path: Path) -> Iterator[tuple[str, list[tarfile.TarInfo]]]:
        """Yield (key, members) of each run of consecutive files with one key, the name up to the first dot."""
        with open_bytes(path) as file:
            if file.read(4).startswith(_GZIP_OR_ZSTD):
                raise SourceError(
                    f"{path}: expected an uncompressed tar, whose members can be read at their offsets, found a "
                    "compressed one. Decompress it (gunzip, zstd -d); its images are compressed already."
                )
        key, number = "", 0
        members: list[tarfile.TarInfo] = []
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    number += 1
                    if member.isdir():
                        continue
                    folder, _, name = member.name.rpartition("/")
                    own = f"{folder}/{name.partition('.')[0]}"
                    if members and own != key:
                        yield key, members
                        members = []
                    key = own
                    members.append(member)
                end = archive.offset
            _check_end(path, end)
        except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError) as error:
            raise damaged(path, number, error) from None
        if members:
            yield key, members

    def _sample(self, path: Path, number: int, key: str, members: list[tarfile.TarInfo]) -> Iterator[Row | BadRow]:
        file, where = str(path), f"sample {key.lstrip('/')!r}"
        by_kind: dict[str, tarfile.TarInfo] = {}
        for member in members:
            kind = member.name.rpartition("/")[2].partition(".")[2].lower()
            if not member.isreg() or member.issparse():
                yield BadRow(file, number, "wrong_type", f"{where}: member {member.name!r} is not a regular file")
                return
            if kind in by_kind:
                yield BadRow(file, number, "wrong_type", f"{where}: several members end in .{kind}")
                return
            by_kind[kind] = member
        pictures = [kind for kind in by_kind if kind in IMAGES]
        if len(pictures) != 1:
            detail = f"{where}: expected one image ({', '.join(IMAGES)}), found {', '.join(by_kind) or 'nothing'}"
            yield BadRow(file, number, "missing_file", detail)
            return
        try:
            fields = self._captions(path, by_kind)
            image = by_kind[pictures[0]]
            reference = {"tar": file, "offset": image.offset_data, "bytes": image.size}
            if image.size > self.limits.max_bytes:
                detail = f"{image.size} bytes, at most {self.limits.max_bytes} are decoded"
                raise UnusableImage("oversized", detail)
            pixels = decode(_read(path, image), limits=self.limits)
        except UnusableImage as error:
            yield BadRow(file, number, error.reason, f"{where}: {error.detail}")
            return
        for row in rows_of(fields, config=self.config, file=file, line=number):
            if isinstance(row, Row):
                meta, digest = meta_of(reference, pixels, **json.loads(row.meta or "{}"))
                row = row._replace(meta=meta, image=digest)
            yield row

    def _captions(self, path: Path, by_kind: dict[str, tarfile.TarInfo]) -> dict[str, Any]:
        """Read the columns of a sample: the members .json, and .txt as the first column."""
        fields: dict[str, Any] = {}
        for kind in ("json", "txt"):
            if (member := by_kind.get(kind)) is None:
                continue
            if member.size > self.max_row_bytes:
                raise UnusableImage(
                    "oversized", f".{kind} has {member.size} bytes, at most {self.max_row_bytes} are read"
                )
            try:
                text = _read(path, member).decode("utf-8")
                found = {self.config.columns[0]: text} if kind == "txt" else parse_json(text)
            except UnicodeDecodeError as error:
                raise UnusableImage("encoding", f".{kind} is not UTF-8 ({error})") from None
            except ValueError as error:
                raise UnusableImage("broken_json", f".{kind}: {error}") from None
            if not isinstance(found, dict):
                raise UnusableImage("wrong_type", f".{kind} contains a {type(found).__name__}, expected an object")
            if twice := fields.keys() & found.keys():
                raise UnusableImage("wrong_type", f"both .json and .txt contain {', '.join(sorted(twice))}")
            fields |= found
        return fields

    def describe(self) -> Any:
        return describe_files(find_files(self.config))


def _check_end(path: Path, end: int) -> None:
    """Check that nothing but zeros follows the last member: `tarfile` takes a damaged header for the end.

    Raises:
        OSError: The archive has no end marker, or goes on after it.
    """
    with open(path, "rb") as file:
        file.seek(end)
        found = 0
        while piece := file.read(1 << 20):
            if piece.strip(b"\0"):
                raise OSError(f"the bytes that follow byte {end} are neither a member nor the end of the archive")
            found += len(piece)
    if found < tarfile.BLOCKSIZE:
        raise OSError(f"the archive ends at byte {end + found} without its end marker, so members may be missing")


def _read(path: Path, member: tarfile.TarInfo) -> bytes:
    with open(path, "rb") as file:
        file.seek(member.offset_data)
        data = file.read(member.size)
    if len(data) != member.size:
        raise UnusableImage("broken_image", f"{member.name!r} has {len(data)} of its {member.size} bytes")
    return data
