"""Export of latents in the older folder layout: `latents/<split>/00000000.npy`, one (d,) array per row.

The arrays have the type and the bits of the store. See `mm_ldlm.extras.layout.reading`; a source of kind `layout` with
`latents: true` reads them.
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

from mm_ldlm.core.config import config
from mm_ldlm.core.errors import StoreError
from mm_ldlm.core.files import is_taken
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore
from mm_ldlm.extras.layout.reading import Folder, paths_of
from mm_ldlm.extras.layout.writing import export_layout

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
    if is_taken(path):
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


def _npy(vector: npt.NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, vector, allow_pickle=False)
    return sink.getvalue()
