"""Export of records and tokens in the older folder layout (`mm_ldlm.extras.layout.reading`).

A source of kind `layout` reads the layout.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.store import ShardStore
from mm_ldlm.extras.layout.reading import LISTS, Folder, paths_of

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
    `mm_ldlm.extras.layout.export` writes the files.

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


def _npz(ids: npt.NDArray[np.int32]) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, input_ids=ids)
    return sink.getvalue()
