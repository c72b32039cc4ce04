"""Requests for likelihoods: the negative log-likelihood of texts, exact or an upper bound (NELBO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mm_ldlm.core.config import Seed, check
from mm_ldlm.inference.arguments import check_tokens, texts_of
from mm_ldlm.inference.batches import Values, refuse_texts_beyond_memory
from mm_ldlm.inference.conversion import Latents
from mm_ldlm.inference.results import Scores
from mm_ldlm.sampling.limits import Draws

if TYPE_CHECKING:
    from mm_ldlm.inference.model import LoadedModel

STATISTICS = ("mask_ratio", "masked", "correct", "cross_entropy")
"""Numbers that each draw of a bound leaves for a text, besides the bound (`objectives.generation.Likelihood`)"""


def score(
    model: LoadedModel, texts: Sequence[str] | str, *, latents: Latents | None = None, draws: int = 16, seed: int = 0
) -> Scores:
    """Compute −log p of each text in nats, given its raw latent or without one: exact, or an upper bound (NELBO).

    The upper bound is −log p(length) plus the NELBO of the tokens, estimated by `draws` low-discrepancy draws for
    each text, with its standard error. `capabilities.likelihood` states whether the value is exact.
    """
    listed = texts_of(texts)
    return score_tokens(model, model.converter.ids(listed), listed, latents=latents, draws=draws, seed=seed)


def score_tokens(
    model: LoadedModel,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    latents: Latents | None = None,
    draws: int = 16,
    seed: int = 0,
) -> Scores:
    """Score tokenised texts (each of 1..max_length ids); see `score`."""
    model.capabilities.require("score" if latents is None else "score_given_latent")
    draws, seed = check(draws, Draws, name="draws"), check(seed, Seed, name="seed")
    check_tokens(ids, texts, shape=model.shape)
    latents_nd = None
    if latents is not None:
        latents_nd = model.converter.standardised(model.converter.one_for_each(latents, texts))
    writer, is_bound = model.writer, model.capabilities.likelihood == "bound"
    draws = draws if is_bound else 1
    refuse_texts_beyond_memory(len(ids), tokens=model.max_length, numbers=draws * (1 + len(STATISTICS)))
    lengths, length_nll = np.array([len(row) for row in ids]), np.zeros(len(ids))
    if model.model.has_length:
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

    batches = writer.divide(lengths.tolist())
    with model.model.evaluating():
        results = list(writer.results(work, batches, "scoring"))
    found = {name: np.ascontiguousarray(value_nK.T) for name, value_nK in writer.joined(batches, results).items()}
    nll_Kn = found["nll"]
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
        unknown=model.converter.unknown(ids),
    )
