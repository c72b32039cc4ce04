"""Record and token stores as the older folder layout, and back, without filters or new splits.

See `mm_ldlm.corpus.layout`. To clean the texts of a layout, use a source of kind `layout` in `ingestion` instead.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.corpus.layout import LISTS, Entry, Folder, describe_layout, paths_of, read_tokens
from mm_ldlm.corpus.record import PAIR, RECORD_SCHEMA, meta_value, record_id
from mm_ldlm.corpus.sources.files import explain_decoding
from mm_ldlm.corpus.splits import SPLITS
from mm_ldlm.corpus.tokenizer import TextTokenizer
from mm_ldlm.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.errors import SourceError, StoreError
from mm_ldlm.store import Manifest, ShardStore, StoreWriter

_BATCH = 4096


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
            folder.write(LISTS[split], json.dumps(listed, ensure_ascii=False, indent=0).encode("utf-8"))
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
