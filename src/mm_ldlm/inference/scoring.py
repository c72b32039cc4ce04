"""Scoring: negative log-likelihood of texts, exact or an upper bound (NELBO), in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from mm_ldlm.inference import inputs, memory
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.edge import fraction_of
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.finite import check_finite
from mm_ldlm.inference.results import Scores
from mm_ldlm.inference.writing import Writer, pad
from mm_ldlm.objectives.generation import Likelihood
from mm_ldlm.sampling.limits import MOST_DRAWS

STATISTICS = 5
"""Numbers that each draw of a likelihood leaves for a text"""


def score(engine: Engine, ids: Any, texts: Any, *, latents: Any, draws: int, seed: int) -> Scores:
    """See `MMLDLM.score_tokens`."""
    draws = inputs.check_integer(draws, name="draws", minimum=1, maximum=MOST_DRAWS)
    seed = inputs.check_seed(seed)
    inputs.check_tokens(ids, texts, shape=engine.shape)
    engine.capabilities.require("score" if latents is None else "score_given_latent")
    raw_nd = engine.edge.given(latents, rows=len(ids))
    memory.refuse_numbers(STATISTICS * draws * len(ids), what=f"score with {draws:,} draws")
    latents_nd = None if raw_nd is None else engine.edge.standardised(raw_nd)
    found = score_tokens(
        engine.writer, ids, texts, latents_nd=latents_nd, likelihood=engine.capabilities.likelihood, draws=draws,
        seed=seed,
    )  # fmt: skip
    return replace(found, unknown=np.array([fraction_of(engine.tokenizer.unk_id, row) for row in ids]))


def score_tokens(
    writer: Writer,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    latents_nd: Tensor | None,
    likelihood: str,
    draws: int,
    seed: int,
) -> Scores:
    """Compute −log p of each of n texts with the token ids `ids`, given its standardised latent or without one.

    `likelihood` is the capability of the model: "exact" or "bound".
    """
    model, lengths = writer.model, np.array([len(row) for row in ids])
    draws = draws if likelihood == "bound" else 1
    length_nll = np.zeros(len(ids))
    if model.has_length:
        log_probs_nN = writer.length_log_probs(latents_nd, rows=len(ids)).double().cpu().numpy()
        length_nll = -log_probs_nN[np.arange(len(ids)), lengths - 1]
    nll = np.zeros((draws, len(ids)))
    statistics: dict[str, np.ndarray] = {}

    def likelihood_of(batch: list[int]) -> Likelihood:
        return model.likelihood(
            pad([ids[row] for row in batch], model.shape.pad_id, model.device),
            latents_Bd=None if latents_nd is None else latents_nd[batch],
            draws=draws,
            generator=writer.generator(batch, seed),
        )

    with model.evaluating():
        for batch, found in in_batches(
            likelihood_of, lengths.tolist(), model=model, batch_tokens=writer.batch_tokens, doing="scoring"
        ):
            nll[:, batch] = found.nll_KB.cpu().numpy()
            for name in ("mask_ratio", "masked", "correct", "cross_entropy"):
                if (value_KB := getattr(found, f"{name}_KB")) is not None:
                    statistics.setdefault(name, np.zeros((draws, len(ids))))[:, batch] = value_KB.cpu().numpy()
    check_finite(model, nll.T + length_nll[:, None], what="likelihoods")
    spread = nll.std(axis=0, ddof=1) / draws**0.5 if draws > 1 else np.full(len(ids), np.nan)
    return Scores(
        texts=tuple(texts),
        tokens=lengths,
        likelihood=likelihood,
        length_nll=length_nll,
        token_nll=nll.mean(axis=0),
        standard_errors=spread if likelihood == "bound" else np.zeros(len(ids)),
        draw_nll=nll,
        draw_mask_ratio=statistics.get("mask_ratio"),
        draw_masked=statistics.get("masked"),
        draw_correct=statistics.get("correct"),
        draw_cross_entropy=statistics.get("cross_entropy"),
    )
