"""Negative log-likelihood of texts: exact, or an upper bound (NELBO)."""

from collections.abc import Sequence

import numpy as np

from mm_ldlm.core import Seed, check
from mm_ldlm.inference.arguments import check_tokens, texts_of, vectors_of
from mm_ldlm.inference.model import Latents, LoadedModel, by_row
from mm_ldlm.inference.results import Scores
from mm_ldlm.inference.writer import Values, refuse_texts_beyond_memory
from mm_ldlm.sampling.limits import Draws

STATISTICS = ("mask_ratio", "masked", "correct", "cross_entropy")
"""Numbers that each draw of a bound leaves for a text, besides the bound (`objectives.generation.Likelihood`)"""


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
