"""The older folder layout: one small file per row, and JSON lists that pair them.

    texts/train/00000000.txt       UTF-8, the text and nothing else
    tokens/train/00000000.npz      array `input_ids`, int32
    latents/train/00000000.npy     (written and read by `mm_ldlm.latents`)
    train_data.json                [{"id", "text_path", "token_path", "latent_path", "source", "meta"}, ...]
    validation_data.json           the same for texts/validation/…; test_data.json for texts/test/…

Rows are numbered from 0 within their split, in the order of the records. Paths in the lists are relative to the folder.
Without the lists, texts/<split>/*.txt are read in the order of their names. The folder may also be a .zip file.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.corpus.record import PAIR, RECORD_SCHEMA, meta_value, record_id
from mm_ldlm.corpus.sources.config import SPLIT_WORDS
from mm_ldlm.corpus.sources.files import explain_decoding
from mm_ldlm.corpus.splits import SPLITS
from mm_ldlm.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.errors import SourceError, StoreError
from mm_ldlm.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.store.fingerprint import file_sha256, fingerprint

_BATCH = 4096
_LISTS: dict[str, str] = {split: f"{split}_data.json" for split in SPLITS}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the layout. The paths are relative; None marks a missing part."""

    split: str
    text_path: str | None
    token_path: str | None = None
    latent_path: str | None = None
    id: str | None = None
    text: str | None = None
    source: str | None = None
    meta: str | None = None


def paths_of(split: str, number: int) -> dict[str, str]:
    """Return text_path, token_path and latent_path of row `number` of a split."""
    stem = f"{split}/{number:08d}"
    return {"text_path": f"texts/{stem}.txt", "token_path": f"tokens/{stem}.npz", "latent_path": f"latents/{stem}.npy"}


class Folder:
    """The files of a layout, in a directory or a .zip; a context manager.

    Mode "r" reads, "a" appends, and "w" replaces an archive, but does not empty a directory.
    """

    def __init__(self, path: str | Path, mode: Literal["r", "w", "a"] = "r") -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        if mode == "r" and not self.path.exists():
            raise SourceError(
                f"{self.path} does not exist (working directory {Path.cwd()}). "
                "Give a folder or a .zip of the folder layout."
            )
        if mode == "r" and self.path.is_file() and self.path.suffix != ".zip":
            raise SourceError(
                f"{self.path} is neither a folder nor a .zip. Give a folder or a .zip of the folder layout."
            )
        if self.path.suffix == ".zip":
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._zip = zipfile.ZipFile(self.path, mode)
            except zipfile.BadZipFile as error:
                raise SourceError(f"{self.path}: the archive is damaged ({error}). Fetch it again.") from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._zip is not None:
            self._zip.close()

    def read(self, name: str) -> bytes:
        """Read a file; FileNotFoundError when it does not exist."""
        if self._zip is None:
            return (self.path / name).read_bytes()
        try:
            return self._zip.read(name)
        except KeyError:
            raise FileNotFoundError(name) from None

    def write(self, name: str, data: bytes) -> None:
        """Write one file."""
        if self._zip is not None:
            self._zip.writestr(name, data)
            return
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def names(self) -> list[str]:
        """List all files, sorted."""
        if self._zip is not None:
            return sorted(name for name in self._zip.namelist() if not name.endswith("/"))
        return sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file())

    def entries(self) -> Iterator[Entry]:
        """Yield the rows in order, held-out splits first; without lists they are taken from the names of the texts.

        Raises:
            SourceError: A list is not a JSON list of objects, or there are no texts.
        """
        found = False
        for split in reversed(SPLITS):
            try:
                raw = self.read(_LISTS[split])
            except FileNotFoundError:
                continue
            found = True
            yield from (self._entry(item, split) for item in _parse_list(raw, f"{self.path}/{_LISTS[split]}"))
        if found:
            return
        texts = [name for name in self.names() if name.startswith("texts/") and name.endswith(".txt")]
        if not texts:
            raise SourceError(
                f"{self.path}: expected {', '.join(_LISTS.values())} or texts/<split>/*.txt, found neither. Check that "
                "the path points to a folder layout."
            )
        for name in texts:
            folder, stem = name.split("/")[1], name.removeprefix("texts/").removesuffix(".txt")
            if folder in SPLIT_WORDS:
                yield Entry(SPLIT_WORDS[folder], name, f"tokens/{stem}.npz", f"latents/{stem}.npy")

    def _entry(self, item: dict[str, Any], split: str) -> Entry:
        known = {field.name for field in dataclasses.fields(Entry)} - {"split", "meta"}
        meta = item.get("meta")
        return Entry(
            split=split,
            meta=None if meta is None else meta if isinstance(meta, str) else json.dumps(meta),
            **{name: item.get(name) for name in known},
        )


# -- writing ----------------------------------------------------------------------------------------------------------


def export_layout(
    path: str | Path, records: ShardStore, *, tokens: ShardStore | None = None, with_latents: bool = False
) -> dict[str, int]:
    """Write records, and tokens if given, in the older layout to a folder or .zip; return the rows per split.

    `with_latents` adds the paths of the latents to the lists; `mm_ldlm.latents.layout` writes the files.

    Raises:
        StoreError: Tokens and records have different numbers of rows.
    """
    if tokens is not None and len(tokens) != len(records):
        raise StoreError(
            f"expected as many rows of tokens as records, found {len(tokens)} and {len(records)}. Use stores of the "
            "same ingestion."
        )
    lists: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    with Folder(path, "w") as folder:
        for start in range(0, len(records), _BATCH):
            rows = range(start, min(start + _BATCH, len(records)))
            values, offsets = tokens.lists("input_ids").take(rows) if tokens is not None else (np.empty(0), np.empty(0))
            for i, record in enumerate(records.take(rows).to_pylist()):
                listed = lists[record["split"]]
                paths = paths_of(record["split"], len(listed))
                folder.write(paths["text_path"], record["text"].encode("utf-8"))
                if tokens is not None:
                    folder.write(paths["token_path"], _npz(values[offsets[i] : offsets[i + 1]].astype(np.int32)))
                kept = {"text_path"} | ({"token_path"} if tokens is not None else set())
                kept |= {"latent_path"} if with_latents else set()
                item = {"id": record["id"], **{name: paths[name] for name in paths if name in kept}}
                listed.append({**item, "source": record["source"], "meta": record["meta"]})
        for split, listed in lists.items():
            folder.write(_LISTS[split], json.dumps(listed, ensure_ascii=False, indent=0).encode("utf-8"))
    return {split: len(listed) for split, listed in lists.items()}


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
        with np.load(io.BytesIO(folder.read(name)), allow_pickle=False) as arrays:
            return np.asarray(arrays["input_ids"]).reshape(-1).astype(np.int32)
    except FileNotFoundError:
        raise SourceError(f"{folder.path}: {name or 'token_path'} is missing for record {entry.id}.") from None
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise SourceError(f"{folder.path}/{name}: no array 'input_ids' can be read from it ({error}).") from None


def describe_layout(path: str | Path) -> dict[str, Any]:
    """Describe the texts by the digest of the archive, or of the lists and the sizes of all texts."""
    place = Path(path)
    if place.is_file():
        return {"fingerprint": file_sha256(place)}
    lists = {name: file_sha256(place / name) for name in _LISTS.values() if (place / name).is_file()}
    texts = [(item.relative_to(place).as_posix(), item.stat().st_size) for item in sorted(place.glob("texts/*/*.txt"))]
    return {"fingerprint": fingerprint([lists, texts])}


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
    if entry.text_path is None and entry.text is not None:
        return entry.text
    try:
        return folder.read(entry.text_path or "").decode("utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise SourceError(
            f"{folder.path}: {entry.text_path} is in the {entry.split} list, but does not exist."
        ) from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{folder.path}/{entry.text_path}: {explain_decoding(error, 'utf-8', 0)}.") from None


def _npz(ids: npt.NDArray[np.int32]) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, input_ids=ids)
    return sink.getvalue()


def _parse_list(raw: bytes, name: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise SourceError(f"{name}: not readable as JSON ({error}). Write the list again.") from None
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SourceError(f"{name}: expected a JSON list of objects, found {type(value).__name__}.")
    return value
