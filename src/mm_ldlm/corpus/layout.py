"""The older folder layout: one small file per row, and JSON lists that pair them.

    texts/train/00000000.txt       UTF-8, the text and nothing else
    tokens/train/00000000.npz      array `input_ids`, int32
    latents/train/00000000.npy     (written and read by `mm_ldlm.latents`)
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
import itertools
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.corpus.json_text import parse_json
from mm_ldlm.corpus.record import PAIR, RECORD_SCHEMA, is_storable, meta_text, meta_value, record_id
from mm_ldlm.corpus.sources.config import SPLIT_WORDS
from mm_ldlm.corpus.sources.files import explain_decoding
from mm_ldlm.corpus.splits import SPLITS
from mm_ldlm.corpus.tokenizer import TextTokenizer
from mm_ldlm.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.errors import SourceError, StoreError, UnsafePathError
from mm_ldlm.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.store.fingerprint import file_sha256, fingerprint
from mm_ldlm.store.npy import read_npy
from mm_ldlm.store.paths import FOLDER, MISSING, check_name, inside, problem

_BATCH = 4096
_SUFFIXES = {"texts": ".txt", "tokens": ".npz", "latents": ".npy"}
_LISTS: dict[str, str] = {split: f"{split}_data.json" for split in SPLITS}


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
    source: str | None = None
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
        fault = problem(self.path) if mode == "r" else FOLDER
        if fault not in (None, FOLDER):
            raise SourceError(
                f"{self.path} {fault} (working directory {Path.cwd()}). Give a folder or a .zip of the folder layout."
            )
        if fault is None and self.path.suffix != ".zip":
            raise SourceError(
                f"{self.path} is neither a folder nor a .zip. Give a folder or a .zip of the folder layout."
            )
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
            fault = problem(path)
            if fault == MISSING:
                raise FileNotFoundError(name)
            if fault is not None:
                raise UnsafePathError(self.path, name, fault)
            with open(path, "rb") as file:
                return file.read(limit)
        check_name(self.path, name)
        try:
            with self._zip.open(name) as member:
                return member.read(limit)
        except KeyError:
            raise FileNotFoundError(name) from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
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
                f"{self.path}: expected {', '.join(_LISTS.values())} or texts/<split>/*.txt, found neither. Check that "
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
                f"{self.path}: expected {', '.join(_LISTS.values())}, texts/<split>/*.txt or tokens/<split>/*.npz, "
                "found neither. Check that the path points to a folder layout."
            )

    def _lists(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Read the lists that exist, as (split, items)."""
        found: list[tuple[str, list[dict[str, Any]]]] = []
        for split in reversed(SPLITS):
            name = f"{self.path}/{_LISTS[split]}"
            try:
                found.append((split, _parse_list(self.read(_LISTS[split]), name)))
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


# -- writing ----------------------------------------------------------------------------------------------------------


def export_layout(
    path: str | Path,
    records: ShardStore,
    *,
    tokens: ShardStore | None = None,
    with_latents: bool = False,
    tokenizer: TextTokenizer | None = None,
) -> dict[str, int]:
    """Write records, and tokens if given, in the older layout to a folder or .zip; return the rows per split.

    Given a tokenizer, the tokens are those of its whole vocabulary, at most `max_length`, instead of those of a store,
    which may have a reduced vocabulary. `with_latents` adds the paths of the latents to the lists;
    `mm_ldlm.latents.layout` writes the files.

    Raises:
        StoreError: Tokens and records have different numbers of rows.
    """
    if tokens is not None and len(tokens) != len(records):
        raise StoreError(
            f"expected as many rows of tokens as records, found {len(tokens)} and {len(records)}. Use stores of the "
            "same ingestion."
        )
    lists: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    with_tokens = tokens is not None or tokenizer is not None
    with Folder(path, "w") as folder:
        for start in range(0, len(records), _BATCH):
            rows = range(start, min(start + _BATCH, len(records)))
            found = records.take(rows).to_pylist()
            ids = _ids([record["text"] for record in found], rows, tokens, tokenizer)
            for record, ids_L in zip(found, ids, strict=True):
                listed = lists[record["split"]]
                paths = paths_of(record["split"], len(listed))
                folder.write(paths["text_path"], record["text"].encode("utf-8"))
                if ids_L is not None:
                    folder.write(paths["token_path"], _npz(ids_L))
                kept = {"text_path"} | ({"token_path"} if with_tokens else set())
                kept |= {"latent_path"} if with_latents else set()
                item = {"id": record["id"], **{name: paths[name] for name in paths if name in kept}}
                listed.append({**item, "source": record["source"], "meta": record["meta"]})
        for split, listed in lists.items():
            folder.write(_LISTS[split], json.dumps(listed, ensure_ascii=False, indent=0).encode("utf-8"))
    return {split: len(listed) for split, listed in lists.items()}


def _ids(
    texts: list[str], rows: range, tokens: ShardStore | None, tokenizer: TextTokenizer | None
) -> list[npt.NDArray[np.int32] | None]:
    """Return the tokens of each text, int32; None without tokens."""
    if tokenizer is not None:
        values, offsets = tokenizer.encode_base(texts)
        longest = tokenizer.max_length
    elif tokens is not None:
        values, offsets = tokens.lists("input_ids").take(rows)
        longest = int(np.diff(offsets).max(initial=0))
    else:
        return [None] * len(texts)
    pairs = itertools.pairwise(offsets.tolist())
    return [values[start : min(stop, start + longest)].astype(np.int32) for start, stop in pairs]


# -- reading ----------------------------------------------------------------------------------------------------------


def import_layout(
    path: str | Path, *, records: Path, tokens: Path | None = None, source: str = "layout"
) -> tuple[Manifest, Manifest | None]:
    """Import the layout as it is, without filters or new splits, into a record store and optionally a token store.

    To clean the texts, use a source of kind `layout` in `ingestion` instead.

    Raises:
        SourceError: A listed file is missing or unreadable, or an id does not match its text.
    """
    made_by = {"layout": describe_layout(path)["fingerprint"]}
    writer = StoreWriter(records, kind="records", schema=RECORD_SCHEMA)
    token_writer = StoreWriter(tokens, kind="tokens", schema=TOKEN_SCHEMA) if tokens is not None else None
    with Folder(path) as folder:
        batch: list[Entry] = []
        for entry in folder.entries():
            batch.append(entry)
            if len(batch) == _BATCH:
                _import_batch(folder, batch, writer, token_writer, source)
                batch = []
        if batch:
            _import_batch(folder, batch, writer, token_writer, source)
    manifest = writer.finish(fingerprints=made_by)
    if token_writer is None:
        return manifest, None
    return manifest, token_writer.finish(fingerprints={**made_by, "records": manifest.fingerprint})


def read_tokens(folder: Folder, entry: Entry) -> npt.NDArray[np.int32]:
    """Read `input_ids` of one row, (L,).

    Raises:
        SourceError: The file is missing, damaged, or has no such array.
    """
    name = entry.token_path or ""
    try:
        data = folder.read(name) if name else None
    except FileNotFoundError:
        data = None
    if data is None:
        raise SourceError(
            f"{folder.path}: {name or 'token_path'} is missing for record {entry.id}. "
            "Restore the file, or correct the list."
        )
    try:
        return parse_tokens(data)
    except ValueError as error:
        raise SourceError(f"{folder.path}/{name}: {error}. Write the tokens again.") from None


def parse_tokens(data: bytes, *, max_bytes: int = 1 << 30) -> npt.NDArray[np.int32]:
    """Read `input_ids` (L,) from the bytes of a .npz file.

    Raises:
        ValueError: it is damaged, has no such array or one of more than `max_bytes`, or int32 cannot represent the ids.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if (size := archive.getinfo("input_ids.npy").file_size) > max_bytes:
                raise ValueError(f"{size} bytes, at most {max_bytes} are read")
            ids = read_npy(archive.read("input_ids.npy")).reshape(-1)
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
    if problem(place) != FOLDER:  # opening it explains why
        return {"fingerprint": ""}
    lists = {name: file_sha256(place / name) for name in _LISTS.values() if os.path.isfile(place / name)}
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


def _import_batch(
    folder: Folder, batch: list[Entry], writer: StoreWriter, token_writer: StoreWriter | None, source: str
) -> None:
    texts = [_text_of(folder, entry) for entry in batch]
    own = [record_id(text, meta_value(entry.meta, PAIR)) for entry, text in zip(batch, texts, strict=True)]
    ids = [entry.id or name for entry, name in zip(batch, own, strict=True)]
    for identity, name, entry in zip(ids, own, batch, strict=True):
        if identity != name:
            raise SourceError(
                f"{folder.path}: {entry.text_path} has id {identity} in the list, but its text has id "
                f"{name}. The files were swapped or changed. Restore them, or remove the ids from the list "
                "to take the texts as they are."
            )
    columns: dict[str, list[Any]] = {
        "id": ids,
        "text": texts,
        "source": [entry.source or source for entry in batch],
        "split": [entry.split for entry in batch],
        "meta": [entry.meta for entry in batch],
    }
    writer.append(columns)
    if token_writer is not None:
        rows = [read_tokens(folder, entry) for entry in batch]
        token_writer.append({"id": ids, "input_ids": rows, "length": [len(row) for row in rows]})


def _text_of(folder: Folder, entry: Entry) -> str:
    if entry.fault is not None:
        raise SourceError(
            f"{folder.path}/{entry.text_path or f'{entry.split} list'}: {entry.fault[1]}. Correct the lists, or remove "
            "the file, or use a source of kind `layout`, which puts such rows into quarantine."
        )
    if entry.text_path is None and entry.text is not None:
        return entry.text
    try:
        return folder.read(entry.text_path or "").decode("utf-8")
    except FileNotFoundError:
        raise SourceError(
            f"{folder.path}: {entry.text_path} is in the {entry.split} list, but does not exist."
        ) from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{folder.path}/{entry.text_path}: {explain_decoding(error, 'utf-8', 0)}.") from None
    except OSError as error:
        raise SourceError(f"{folder.path}/{entry.text_path}: cannot be read ({error}).") from None


def _npz(ids: npt.NDArray[np.int32]) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, input_ids=ids)
    return sink.getvalue()


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
