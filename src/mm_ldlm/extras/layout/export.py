"""Export records, tokens and latents in the older folder layout; a source of kind `layout` reads it."""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mm_ldlm.core import StoreError, config
from mm_ldlm.core.files import is_taken
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.corpus.tokens import base_ids
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import ShardStore
from mm_ldlm.extras.layout.folder import LISTS, paths_of

_ROWS = 4096


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
    """Write texts, tokens of the complete vocabulary, and latents if there are any; return the rows per split.

    The latents have the type and the bits of the store. The layout appears under its name when it is complete.

    Raises:
        StoreError: the path exists and is not an empty folder.
        FingerprintError: the latents belong to other records.
    """
    path = Path(path)
    if is_taken(path):
        raise StoreError(
            f"{path}: expected a new or empty folder, or a new .zip file, for the export, found one with contents. "
            "Nothing was changed. Remove it, or choose another place: `--params export.path=PLACE`."
        )
    if latents is not None:
        latents.manifest.require(directory=latents.directory, records=records.manifest.fingerprint)
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    try:
        made = partial / "layout"
        counts = _write(made, records, tokenizer, latents)
        if path.suffix == ".zip":
            made = Path(shutil.make_archive(str(partial / "packed"), "zip", made))
        os.replace(made, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _write(folder: Path, records: ShardStore, tokenizer: TextTokenizer, latents: LatentStore | None) -> dict[str, int]:
    parts = ("texts", "tokens") if latents is None else ("texts", "tokens", "latents")
    for part, split in itertools.product(parts, SPLITS):
        (folder / part / split).mkdir(parents=True)
    lists: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for start in range(0, len(records), _ROWS):
        rows = range(start, min(start + _ROWS, len(records)))
        found = records.table(rows).to_pylist()
        values, offsets = base_ids(records, rows, tokenizer)
        ends = itertools.pairwise(offsets.tolist())
        vectors = [None] * len(rows) if latents is None else latents.fixed("latent").take(rows)
        for record, (first, end), vector in zip(found, ends, vectors, strict=True):
            listed = lists[record["split"]]
            paths = paths_of(record["split"], len(listed))
            ids = values[first : min(end, first + tokenizer.max_length)].astype(np.int32)
            (folder / paths["text_path"]).write_bytes(record["text"].encode("utf-8"))
            np.savez(folder / paths["token_path"], input_ids=ids)
            if vector is None:
                paths.pop("latent_path")
            else:
                np.save(folder / paths["latent_path"], vector, allow_pickle=False)
            listed.append({"id": record["id"], **paths, "source": record["source"], "meta": record["meta"]})
    for name, listed in lists.items():
        (folder / LISTS[name]).write_text(json.dumps(listed, ensure_ascii=False, indent=0), encoding="utf-8")
    return {name: len(listed) for name, listed in lists.items()}
