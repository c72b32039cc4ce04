"""The older folder layout: one small file per row, and JSON lists that pair them.

    texts/train/00000000.txt       UTF-8, the text and nothing else
    tokens/train/00000000.npz      array `input_ids`, int32
    latents/train/00000000.npy     (written by `mm_ldlm.extras.layout.export`)
    train_data.json                [{"id", "text_path", "token_path", "latent_path", "source", "meta"}, ...]
    validation_data.json           the same for texts/validation/…; test_data.json for texts/test/…

Rows are numbered from 0 within their split, in the order of the records. Paths in the lists are relative to the folder.
Without the lists, texts/<split>/*.txt are read in the order of their names, or tokens/<split>/*.npz without texts.
Parts that a list does not name have the name of the row's other files. The folder may also be a .zip file.

A name that leads out of the folder is refused, also through a symbolic link, and a text that no list names is reported.
"""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import SourceError, UnsafePathError
from mm_ldlm.core.files import InputFile, array_in, check_name, inside, problem
from mm_ldlm.data.corpus.json_text import parse_json
from mm_ldlm.data.corpus.record import is_storable, meta_text
from mm_ldlm.data.corpus.sources.config import SPLIT_WORDS
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint

_SUFFIXES = {"texts": ".txt", "tokens": ".npz", "latents": ".npy"}
LISTS: dict[str, str] = {split: f"{split}_data.json" for split in SPLITS}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the layout. The paths are relative; None marks a missing part.

    `fault` is (reason, detail) of a row that cannot be read: an item of the wrong type, or a text that no list names.
    """

    split: str
    text_path: str | None
    token_path: str | None = None
    latent_path: str | None = None
    id: str | None = None
    text: str | None = None
    meta: str | None = None
    fault: tuple[str, str] | None = None


def paths_of(split: str, number: int) -> dict[str, str]:
    """Return text_path, token_path and latent_path of row `number` of a split."""
    stem = f"{split}/{number:08d}"
    return {"text_path": f"texts/{stem}.txt", "token_path": f"tokens/{stem}.npz", "latent_path": f"latents/{stem}.npy"}


def paired(entry: Entry, part: Literal["tokens", "latents"]) -> str | None:
    """Return the path of a part of a row: that of the list, or else that with the name of the row's other files."""
    named = entry.token_path if part == "tokens" else entry.latent_path
    if named is not None:
        return named
    for other in (entry.text_path, entry.token_path, entry.latent_path):
        folder, _, name = (other or "").partition("/")
        if folder in _SUFFIXES and name:
            return f"{part}/{PurePosixPath(name).with_suffix(_SUFFIXES[part])}"
    return None


class Folder:
    """The files of a layout, in a directory or a .zip; a context manager.

    Mode "r" reads, "a" appends, and "w" replaces an archive, but does not empty a directory.
    """

    def __init__(self, path: str | Path, mode: Literal["r", "w", "a"] = "r") -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        if mode == "r" and not os.path.isdir(self.path):
            file = InputFile(
                self.path, remedy="Give a folder or a .zip of the folder layout.", error=SourceError
            )  # fmt: skip
            if file.check().suffix != ".zip":
                file.refuse("a folder or a .zip", "another file")
        if self.path.suffix == ".zip" and not self.path.is_dir():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._zip = zipfile.ZipFile(self.path, mode)
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                raise SourceError(f"{self.path}: the archive is damaged ({error}). Fetch it again.") from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._zip is not None:
            self._zip.close()

    def read(self, name: str, *, max_bytes: int | None = None) -> bytes:
        """Read a file, at most `max_bytes` + 1 bytes of it.

        Raises:
            FileNotFoundError: It does not exist.
            UnsafePathError: The name leads out of the folder, or is not that of a regular file.
            OSError: The file or its place in the archive is damaged.
        """
        limit = -1 if max_bytes is None else max_bytes + 1
        if self._zip is None:
            path = inside(self.path, name)
            if os.path.lexists(path) and (fault := problem(path)) is not None:
                raise UnsafePathError(self.path, name, fault)
            with open(path, "rb") as file:
                return file.read(limit)
        check_name(self.path, name)
        try:
            with self._zip.open(name) as member:
                return member.read(limit)
        except KeyError:
            raise FileNotFoundError(name) from None
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
            raise OSError(f"the archive is damaged there, encrypted or of an unknown compression ({error})") from None

    def write(self, name: str, data: bytes) -> None:
        """Write one file."""
        if self._zip is not None:
            self._zip.writestr(name, data)
            return
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def names(self, below: str = "") -> list[str]:
        """List everything that is not a folder, sorted; `below` limits it to a folder, such as "texts/"."""
        if self._zip is not None:
            return sorted(name for name in self._zip.namelist() if name.startswith(below) and not name.endswith("/"))
        found = (self.path / below).rglob("*")
        return sorted(path.relative_to(self.path).as_posix() for path in found if not path.is_dir())

    def entries(self) -> Iterator[Entry]:
        """Yield the rows in order, held-out splits first; without lists they are taken from the names of the texts.

        Texts that no list names, or that belong to no split, follow with a `fault`.

        Raises:
            SourceError: A list is not a JSON list of objects, or there are no texts.
        """
        lists = self._lists()
        texts = self.names("texts/")
        read: set[str] = set()
        if not lists and not texts:
            yield from self._of_tokens()
            return
        for split, items in lists:
            for item in items:
                entry = _entry(item, split)
                if entry.text_path is not None:
                    read.add(PurePosixPath(entry.text_path).as_posix())
                yield entry
        for name in [] if lists else texts:
            folder, stem = name.split("/")[1], name.removeprefix("texts/").removesuffix(".txt")
            if folder in SPLIT_WORDS and name.endswith(".txt"):
                read.add(name)
                yield Entry(SPLIT_WORDS[folder], name, f"tokens/{stem}.npz", f"latents/{stem}.npy")
        if not lists and not read:
            raise SourceError(
                f"{self.path}: expected {', '.join(LISTS.values())} or texts/<split>/*.txt, found neither. Check that "
                "the path points to a folder layout."
            )
        why = "no list names this file" if lists else f"expected texts/<split>/*.txt with {', '.join(SPLIT_WORDS)}"
        for name in texts:
            if name not in read:
                yield Entry("train", name, fault=("unlisted_file", f"{why}: it is not read"))

    def splits(self) -> list[str]:
        """List the splits that have rows, by the lists, or by the folders of texts or tokens."""
        if lists := self._lists():
            return [split for split, items in lists if items]
        found = {PurePosixPath(name).parts[1] for part in ("texts/", "tokens/") for name in self.names(part)}
        return sorted({SPLIT_WORDS[folder] for folder in found if folder in SPLIT_WORDS})

    def _of_tokens(self) -> Iterator[Entry]:
        """Yield the rows of a folder that has neither lists nor texts, by the names of the tokens."""
        read = 0
        for name in self.names("tokens/"):
            folder = PurePosixPath(name).parts[1]
            if folder in SPLIT_WORDS and name.endswith(_SUFFIXES["tokens"]):
                read += 1
                yield Entry(SPLIT_WORDS[folder], None, name)
        if not read:
            raise SourceError(
                f"{self.path}: expected {', '.join(LISTS.values())}, texts/<split>/*.txt or tokens/<split>/*.npz, "
                "found neither. Check that the path points to a folder layout."
            )

    def _lists(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Read the lists that exist, as (split, items)."""
        found: list[tuple[str, list[dict[str, Any]]]] = []
        for split in reversed(SPLITS):
            name = f"{self.path}/{LISTS[split]}"
            try:
                found.append((split, _parse_list(self.read(LISTS[split]), name)))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SourceError(f"{name}: cannot be read ({error}). Write the list again.") from None
        return found


def _entry(item: dict[str, Any], split: str) -> Entry:
    """Return the row that an item of a list describes, with a `fault` where a value has the wrong type."""
    known = [field.name for field in dataclasses.fields(Entry) if field.name not in ("split", "meta", "fault")]
    values = {name: item.get(name) for name in known}
    for name, value in values.items():
        if value is not None and not (isinstance(value, str) and is_storable(value)):
            return Entry(split, None, fault=("wrong_type", f"'{name}' contains {value!r:.80}, expected text"))
    meta = item.get("meta")
    try:
        as_text = meta_text(parse_json(meta) if isinstance(meta, str) and meta else meta or {})
    except ValueError as error:
        return Entry(split, None, fault=("wrong_type", f"'meta' contains no JSON object ({error})"))
    kept = meta if isinstance(meta, str) and is_storable(meta) else as_text
    return Entry(split=split, meta=kept if meta else None, **values)


def parse_tokens(data: bytes, *, max_bytes: int = 1 << 30) -> npt.NDArray[np.int32]:
    """Read `input_ids` (L,) from the bytes of a .npz file.

    Raises:
        ValueError: it is damaged, has no such array or one of more than `max_bytes`, or int32 cannot represent the ids.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if (size := archive.getinfo("input_ids.npy").file_size) > max_bytes:
                raise ValueError(f"{size} bytes, at most {max_bytes} are read")
            ids = array_in(archive.read("input_ids.npy")).reshape(-1)
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        raise ValueError(f"no array 'input_ids' can be read from it ({error})") from None
    limits = np.iinfo(np.int32)
    if ids.dtype.kind not in "iu" or (len(ids) and not limits.min <= ids.min() <= ids.max() <= limits.max):
        raise ValueError(
            f"expected int32 in the array 'input_ids', found {ids.dtype} with values that int32 cannot represent "
            "exactly"
        )
    return ids.astype(np.int32)


def describe_layout(path: str | Path, *, parts: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the texts by the digest of the archive, or of the lists and the sizes of all texts.

    Files of `parts` ("tokens", "latents") are described by size and time of modification, because they are small and
    many, and other numbers have the same size.
    """
    place = Path(path)
    if os.path.isfile(place):
        return {"fingerprint": file_sha256(place)}
    if not os.path.isdir(place):  # opening it explains why
        return {"fingerprint": ""}
    lists = {name: file_sha256(place / name) for name in LISTS.values() if os.path.isfile(place / name)}
    texts = [(item.relative_to(place).as_posix(), item.lstat().st_size) for item in sorted(place.glob("texts/*/*.txt"))]
    if not parts:
        return {"fingerprint": fingerprint([lists, texts])}
    others = [
        (item.relative_to(place).as_posix(), about.st_size, about.st_mtime_ns)
        for part in parts
        for item in sorted(place.glob(f"{part}/*/*"))
        for about in [item.lstat()]
    ]
    return {"fingerprint": fingerprint([lists, texts, others])}


def _parse_list(raw: bytes, name: str) -> list[dict[str, Any]]:
    try:
        value = parse_json(raw)
    except ValueError as error:
        raise SourceError(f"{name}: not readable as JSON ({error}). Write the list again.") from None
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SourceError(f"{name}: expected a JSON list of objects, found {type(value).__name__}.")
    return value
