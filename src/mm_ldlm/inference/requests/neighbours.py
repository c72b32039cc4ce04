"""The nearest latents of others, with their texts."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mm_ldlm.core import PositiveInt, SamplingError, check
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.inference.arguments import vectors_of
from mm_ldlm.inference.files import read_array
from mm_ldlm.inference.model import Latents, LoadedModel
from mm_ldlm.inference.results import Neighbours


def neighbours(
    model: LoadedModel,
    latents: Latents | Sequence[str] | str | Path,
    store: Latents | str | Path | None = None,
    *,
    k: int = 5,
) -> Neighbours:
    """Find the nearest latents by cosine, with their texts.

    Args:
        latents: raw latents (n, d), or texts, which the encoder embeds first.
        store: raw latents (m, d), the path of a `.npy` file of them, or a data folder (data/own_csv), whose texts are
            returned as well; by default the dataset that the run was trained on.
        k: number of neighbours.
    """
    from sklearn.neighbors import NearestNeighbors

    raw_nd, dataset, rows_m = (
        model.targets(latents, name="latents", written=False)[1],
        None,
        np.zeros(0, dtype=np.int64),
    )
    if store is None or (isinstance(store, (str, Path)) and not str(store).endswith(".npy")):
        dataset = corpus_of(model, store)
        rows_m = np.concatenate([dataset.rows(split) for split in SPLITS])
        store = dataset.require("latents").take(rows_m)
    store = read_array(store) if isinstance(store, (str, Path)) else store
    store_md = vectors_of(store, dim=model.dim, name="store")
    if check(k, PositiveInt, name="k") > len(store_md):
        raise SamplingError(f"k: expected at most the {len(store_md)} rows of the store, found {k}.")
    if not len(raw_nd):
        return Neighbours(np.zeros((0, k), dtype=np.int64), np.zeros((0, k)), ())
    nearest = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(store_md)
    distances_nk, rows_nk = nearest.kneighbors(raw_nd)
    if dataset is None:
        return Neighbours(rows_nk, 1 - distances_nk)
    rows_nk = rows_m[rows_nk]
    texts = dataset.records.table(rows_nk.ravel()).column("text").to_numpy().reshape(-1, k)
    return Neighbours(rows_nk, 1 - distances_nk, tuple(map(tuple, texts)))


def corpus_of(model: LoadedModel, folder: str | Path | None = None) -> Dataset:
    """Open the dataset in a data folder or in its own folder; by default the one that the run was trained on."""
    if (folder := model.parts.dataset if folder is None else folder) is None:
        raise SamplingError(
            "neighbours: expected a run with its corpus, found one without. Give a data folder or latents as `store`."
        )
    inner = Path(folder) / "05_model_input" / "dataset"
    return Dataset.open(inner if os.path.isdir(inner) else folder)
