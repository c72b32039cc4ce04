"""Latents in the older folder layout: `latents/<split>/00000000.npy`, one (d,) array per row.

See `mm_ldlm.corpus.layout`. Both directions keep every bit: rows are written and read in their stored type.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.config import config
from mm_ldlm.corpus.layout import Folder, paths_of
from mm_ldlm.corpus.layout_stores import export_layout
from mm_ldlm.corpus.tokenizer import TextTokenizer
from mm_ldlm.encoders import EncoderConfig, locate_encoder
from mm_ldlm.errors import StoreError
from mm_ldlm.latents import store as latent_store
from mm_ldlm.latents.store import LatentStore
from mm_ldlm.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.store.fingerprint import fingerprint
from mm_ldlm.store.npy import read_npy

_ROWS = 4096


def export_latents(path: str | Path, records: ShardStore, latents: LatentStore) -> dict[str, int]:
    """Add the latents to a folder or .zip that `export_layout(..., with_latents=True)` wrote; return rows per split.

    Raises:
        StoreError: Latents and records have different rows.
    """
    if len(latents) != len(records):
        raise StoreError(
            f"expected as many rows of latents as records, found {len(latents)} and {len(records)}. Use the latents of "
            "these records."
        )
    numbers: Counter[str] = Counter()
    with Folder(path, "a") as folder:
        for start in range(0, len(records), _ROWS):
            window = slice(start, min(start + _ROWS, len(records)))
            vectors, ids = latents.fixed("latent").take(window), latents.ids(window)
            table = records.window(window.start, window.stop, columns=["id", "split"]).to_pydict()
            for vector, own, identity, split in zip(vectors, ids, table["id"], table["split"], strict=True):
                if own != identity:
                    raise StoreError(
                        f"{latents.directory}: the row of record {identity} has id {own}. Run the validation pipeline."
                    )
                folder.write(paths_of(split, numbers[split])["latent_path"], _npy(vector))
                numbers[split] += 1
    return dict(numbers)


@config
class ExportConfig:
    """Parameters of the pipeline `export`.

    Attributes:
        path: the folder, or the .zip file, to write the layout to; it must not exist.
    """

    path: str | None = None


def write_layout(
    path: str | Path, records: ShardStore, *, tokenizer: TextTokenizer, latents: LatentStore | None
) -> dict[str, int]:
    """Write texts, tokens of the whole vocabulary, and latents if there are any, in the older layout; return the rows
    per split.

    The layout appears under its name when it is complete.

    Raises:
        StoreError: the path exists and is not an empty folder, or the latents belong to other records.
    """
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise StoreError(
            f"{path}: expected a new or empty folder, or a new .zip file, for the export, found one with contents. "
            "Nothing was changed. Remove it, or choose another place: `--params export.path=PLACE`."
        )
    if latents is not None and latents.manifest.fingerprints.get("records") != records.manifest.fingerprint:
        raise StoreError(
            f"{latents.directory}: the latents belong to other records than {records.directory}. Run `kedro run "
            "--pipeline=embedding` first."
        )
    partial = path.with_name(f".{path.name}.partial{'.zip' if path.suffix == '.zip' else ''}")
    _remove(partial)
    try:
        counts = export_layout(partial, records, tokenizer=tokenizer, with_latents=latents is not None)
        if latents is not None:
            export_latents(partial, records, latents)
    except BaseException:
        _remove(partial)
        raise
    if path.is_dir():
        path.rmdir()
    os.replace(partial, path)
    return counts


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def import_latents(path: str | Path, records: ShardStore, *, encoder: EncoderConfig, workspace: Path) -> Manifest:
    """Read the layout's latents, in the order of `records`, into a latent store.

    `encoder` states which encoder made them; the validation pipeline checks a sample against it. Rows are found by id
    or, if the lists have no ids, by the record's number within its split.

    Raises:
        StoreError: A record has no latent, a file is damaged, or its dimension or type differs from the first one's.
    """
    located = locate_encoder(encoder)
    with Folder(path) as folder:
        paths = _paths(folder)
        first = _read(folder, paths, *_first(records))
        if first.dtype.name not in ("float32", "float16"):
            raise StoreError(
                f"{path}: expected latents of type float32 or float16, found {first.dtype.name}. Convert them first."
            )
        dtype: Any = first.dtype.name
        writer = StoreWriter(workspace, kind=latent_store.KIND, schema=latent_store.schema(len(first), dtype))
        numbers: Counter[str] = Counter()
        for start in range(0, len(records), _ROWS):
            table = records.window(start, start + _ROWS, columns=["id", "split"]).to_pydict()
            vectors = np.empty((len(table["id"]), len(first)), first.dtype)
            for row, (identity, split) in enumerate(zip(table["id"], table["split"], strict=True)):
                vector = _read(folder, paths, identity, split, numbers[split])
                numbers[split] += 1
                if vector.shape != first.shape or vector.dtype != first.dtype:
                    raise StoreError(
                        f"{path}: expected {first.dtype.name} of dimension {len(first)} like the first latent, found "
                        f"{vector.dtype.name} of dimension {len(vector)} for record {identity}. Convert it first."
                    )
                vectors[row] = vector
            writer.append(latent_store.table(table["id"], vectors, dtype=dtype))
    return writer.finish(
        fingerprints={
            "records": records.manifest.fingerprint,
            "encoder": located.fingerprint,
            "parameters": fingerprint({"imported": "layout"}),
        },
        meta={"dim": len(first), "dtype": dtype, "encoder": located.describe(), "imported": True},
    )


def _first(records: ShardStore) -> tuple[str, str, int]:
    if not len(records):
        raise StoreError(
            f"{records.directory}: expected records to import latents for, found none. Import the records first."
        )
    table = records.window(0, 1, columns=["id", "split"]).to_pydict()
    return table["id"][0], table["split"][0], 0


def _paths(folder: Folder) -> dict[str, str]:
    """Map ids to latent paths, from the lists that contain ids.

    Raises:
        StoreError: The lists name two latents for one id.
    """
    paths: dict[str, str] = {}
    for entry in folder.entries():
        if entry.id is None or entry.latent_path is None:
            continue
        if paths.setdefault(entry.id, entry.latent_path) != entry.latent_path:
            raise StoreError(
                f"{folder.path}: expected one latent for record {entry.id}, found {paths[entry.id]} and "
                f"{entry.latent_path} in the lists. Remove the wrong one."
            )
    return paths


def _read(folder: Folder, paths: dict[str, str], identity: str, split: str, number: int) -> npt.NDArray[Any]:
    name = paths.get(identity) if paths else paths_of(split, number)["latent_path"]
    try:
        data = None if name is None else folder.read(name)
    except FileNotFoundError:
        data = None
    if data is None:
        raise StoreError(
            f"{folder.path}: no latent for record {identity} ({name or 'no latent_path in the lists'}). A "
            "missing latent is not replaced: embed the record, or remove it."
        )
    try:
        found = read_npy(data)
    except (ValueError, OSError) as error:
        raise StoreError(f"{folder.path}/{name}: not a readable .npy array ({error}). Write it again.") from None
    squeezed = found.reshape(-1)
    if found.size != max(found.shape, default=0):
        raise StoreError(
            f"{folder.path}/{name}: expected one vector (d,) or (1, d), found shape {found.shape}. Reshape it."
        )
    return squeezed


def _npy(vector: npt.NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, vector, allow_pickle=False)
    return sink.getvalue()
