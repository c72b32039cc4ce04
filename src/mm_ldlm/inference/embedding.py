"""Requests about vectors: latents of texts by the model or by the encoder, and the nearest rows of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mm_ldlm.core.config import PositiveInt, Seed, check
from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference.arguments import Floats, check_tokens, latent_sampler_of, texts_of, vectors_of
from mm_ldlm.inference.batches import refuse_texts_beyond_memory
from mm_ldlm.inference.conversion import Latents, TooLong
from mm_ldlm.inference.results import Embeddings, Neighbours

if TYPE_CHECKING:
    from mm_ldlm.inference.model import LoadedModel

CHUNK = 65_536
"""Number of rows of a store that are read together"""


def encode(model: LoadedModel, texts: Sequence[str] | str) -> Floats:
    """Embed texts by the encoder: raw latents (n, d)."""
    return model.converter.encoded(texts_of(texts))


def embed(
    model: LoadedModel,
    texts: Sequence[str] | str,
    *,
    sampler: Any = "ddim",
    steps: int | None = None,
    draws: int | None = None,
    too_long: TooLong = "refuse",
    seed: int = 0,
) -> Embeddings:
    """Embed texts by the model instead of the encoder: the mean of `draws` samples of the latent.

    `sampler="one_step"` is the regression baseline with one model call. `too_long="truncate"` truncates long texts,
    as encoders do.
    """
    model.capabilities.require("t2l")
    listed, too_long = texts_of(texts), check(too_long, TooLong, name="too_long")
    ids = model.converter.ids(listed, too_long=too_long)
    return embed_tokens(model, ids, listed, sampler=sampler, steps=steps, draws=draws, seed=seed)


def embed_tokens(
    model: LoadedModel,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    sampler: Any = "ddim",
    steps: int | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> Embeddings:
    """Embed tokenised texts (each of 1..max_length ids), as stores contain them; see `embed`."""
    model.capabilities.require("t2l")
    check_tokens(ids, texts, shape=model.shape)
    seed, config = check(seed, Seed, name="seed"), latent_sampler_of(sampler, steps, draws)
    refuse_texts_beyond_memory(len(ids), tokens=model.max_length, numbers=2 * config.draws * model.dim)
    draws_Knd, calls = model.writer.draw(ids, sampler=config, seed=seed)
    raw_Knd = np.stack([model.converter.raw(draw_nd.cpu().numpy()) for draw_nd in draws_Knd])
    raw_nd = model.converter.raw(draws_Knd.mean(dim=0).cpu().numpy())
    return Embeddings(tuple(texts), raw_nd, raw_Knd, calls, unknown=model.converter.unknown(ids))


def neighbours(model: LoadedModel, latents: Latents, store: Any, *, k: int = 5) -> Neighbours:
    """Find the k rows of `store` nearest to each raw latent by cosine; the store is read in chunks.

    `store` is a `latents.store.LatentStore`, or an (m, d) array, whose row numbers then serve as ids.
    """
    k, unit_nd = check(k, PositiveInt, name="k"), _unit(vectors_of(latents, dim=model.dim))
    if is_array := not all(hasattr(store, name) for name in ("take", "strings", "__len__")):
        store = vectors_of(store, dim=model.dim, name="store")
    if k > len(store):
        raise SamplingError(f"k: expected at most the {len(store)} rows of the store, found {k}.")
    best_nk, rows_nk = np.empty((len(unit_nd), 0)), np.empty((len(unit_nd), 0), dtype=np.int64)
    for start in range(0, len(store), CHUNK):
        index = np.arange(start, min(start + CHUNK, len(store)), dtype=np.int64)
        part_md = _unit(vectors_of(store[index] if is_array else store.take(index), dim=model.dim, name="store"))
        both_nc = np.concatenate([best_nk, unit_nd @ part_md.T], axis=1)
        rows_nc = np.concatenate([rows_nk, np.broadcast_to(index, (len(unit_nd), len(index)))], axis=1)
        order = np.argsort(-both_nc, axis=1, kind="stable")[:, :k]
        best_nk, rows_nk = (np.take_along_axis(each, order, axis=1) for each in (both_nc, rows_nc))
    names = rows_nk.ravel() if is_array else store.strings("id").take(rows_nk.ravel())
    ids = [str(name) for name in names]
    return Neighbours(rows_nk, tuple(tuple(ids[i : i + k]) for i in range(0, len(ids), k)), best_nk)


def _unit(vectors_md: Floats) -> np.ndarray:
    wide_md = vectors_md.astype(np.float64)
    return wide_md / np.maximum(np.linalg.norm(wide_md, axis=1, keepdims=True), 1e-12)
