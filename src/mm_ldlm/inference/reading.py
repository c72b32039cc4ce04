"""Requests that read texts and latents: embeddings, the nearest of other latents, and likelihoods.

The negative log-likelihood of a text is exact, or an upper bound (NELBO).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mm_ldlm.core import PositiveInt, SamplingError, Seed, check
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.inference.arguments import Floats, check_tokens, latent_sampler_of, texts_of, vectors_of
from mm_ldlm.inference.files import read_array
from mm_ldlm.inference.model import Latents, LoadedModel, TooLong, by_row
from mm_ldlm.inference.results import Embeddings, Neighbours, Scores
from mm_ldlm.inference.writing import Values, refuse_texts_beyond_memory
from mm_ldlm.sampling.limits import Draws
from mm_ldlm.sampling.registry import LATENT_SAMPLERS

STATISTICS = ("mask_ratio", "masked", "correct", "cross_entropy")
"""Numbers that each draw of a bound leaves for a text, besides the bound (`objectives.generation.Likelihood`)"""


@by_row
def encode(model: LoadedModel, texts: Sequence[str] | str, *, too_long: TooLong = "refuse") -> Floats:
    """Embed texts with the encoder: raw latents (n, d)."""
    return model.encoded(texts_of(texts), too_long=too_long)


@by_row
def embed(
    model: LoadedModel,
    texts: Sequence[str] | str,
    *,
    ids: Sequence[Sequence[int]] | None = None,
    sampler: Annotated[Any, LATENT_SAMPLERS] = "ddim",
    steps: int | None = None,
    draws: int | None = None,
    too_long: TooLong = "refuse",
    seed: int = 0,
) -> Embeddings:
    """Embed texts with the model instead of the encoder.

    Args:
        ids: tokens of the texts (each of 1..max_length ids), as stores contain them; None tokenises the texts.
        sampler: kind of latent sampler; one_step is the regression baseline with one model call.
        draws: number of samples of a latent, whose mean is the result; by default the sampler's, usually 1.
    """
    model.capabilities.require("t2l")
    texts = texts_of(texts)
    ids = model.ids(texts, too_long=too_long) if ids is None else ids
    ids = check_tokens(ids, texts, shape=model.shape)
    seed, config = check(seed, Seed, name="seed"), latent_sampler_of(sampler, steps, draws)
    refuse_texts_beyond_memory(len(ids), tokens=model.max_length, numbers=2 * config.draws * model.dim)
    draws_Knd, calls = model.writer.draw(ids, sampler=config, seed=seed)
    raw_Knd = np.stack([model.raw(draw_nd.cpu().numpy()) for draw_nd in draws_Knd])
    raw_nd = model.raw(draws_Knd.mean(dim=0).cpu().numpy())
    return Embeddings(tuple(texts), raw_nd, raw_Knd, calls, unknown=model.unknown(ids))


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


@by_row
def score(
    model: LoadedModel,
    texts: Sequence[str] | str,
    *,
    ids: Sequence[Sequence[int]] | None = None,
    latents: Latents | None = None,
    draws: int = 16,
    seed: int = 0,
) -> Scores:
    """Compute −log p of each text in nats: exact, or an upper bound (NELBO).

    The upper bound is −log p(length) plus the NELBO of the tokens, with its standard error. A run that has not learned
    lengths omits the first part. `capabilities.likelihood` states which of the three applies.

    Args:
        ids: see `embed`.
        latents: raw latent of each text, given which it is scored; by default it is scored without one.
        draws: number of low-discrepancy draws that estimate an upper bound.
    """
    model.capabilities.require("score" if latents is None else "score_given_latent")
    draws, seed = check(draws, Draws, name="draws"), check(seed, Seed, name="seed")
    texts = texts_of(texts)
    ids = model.ids(texts) if ids is None else ids
    ids = check_tokens(ids, texts, shape=model.shape)
    raw_nd = None if latents is None else vectors_of(latents, dim=model.dim, count=len(ids))
    latents_nd = None if raw_nd is None else model.standardised(raw_nd)
    writer, is_bound = model.writer, model.capabilities.likelihood != "exact"
    draws = draws if is_bound else 1
    refuse_texts_beyond_memory(len(ids), tokens=model.max_length, numbers=draws * (1 + len(STATISTICS)))
    lengths, length_nll = np.array([len(row) for row in ids], dtype=np.int64), np.zeros(len(ids))
    if model.model.has_length and model.capabilities.likelihood != "given_length":
        log_probs_nN = writer.length_log_probs(latents_nd, rows=len(ids)).double().cpu().numpy()
        length_nll = -log_probs_nN[np.arange(len(ids)), lengths - 1]
        writer.check_finite(length_nll, "log probabilities of lengths")

    def work(batch: list[int]) -> Values:
        found = model.model.likelihood(
            writer.padded([ids[row] for row in batch]),
            latents_Bd=None if latents_nd is None else latents_nd[batch],
            draws=draws,
            generator=writer.generator(batch, seed),
        )
        values = {name: getattr(found, f"{name}_KB") for name in ("nll", *STATISTICS)}
        return {name: value_KB.double().T for name, value_KB in values.items() if value_KB is not None}

    with writer.computing(work, lengths.tolist(), "scoring") as (batches, results):
        found = {name: np.ascontiguousarray(value_nK.T) for name, value_nK in writer.joined(batches, results).items()}
    nll_Kn = found.get("nll", np.zeros((draws, 0)))
    spread = nll_Kn.std(axis=0, ddof=1) / draws**0.5 if draws > 1 else np.full(len(ids), np.nan)
    return Scores(
        texts=tuple(texts),
        tokens=lengths,
        likelihood=model.capabilities.likelihood,
        length_nll=length_nll,
        token_nll=nll_Kn.mean(axis=0),
        standard_errors=spread if is_bound else np.zeros(len(ids)),
        draw_nll=nll_Kn,
        **{f"draw_{name}": found.get(name) for name in STATISTICS},
        unknown=model.unknown(ids),
    )
