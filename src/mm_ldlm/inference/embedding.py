"""Embedding of texts by the model: raw latents drawn given tokenised texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from mm_ldlm.inference import inputs
from mm_ldlm.inference.choices import latent_config
from mm_ldlm.inference.edge import fraction_of
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.results import Embeddings


def embed(
    engine: Engine, ids: Any, texts: Any, *, sampler: Any, steps: int | None, draws: int | None, seed: int
) -> Embeddings:
    """See `MMLDLM.embed_tokens`."""
    engine.capabilities.require("t2l")
    inputs.check_tokens(ids, texts, shape=engine.shape)
    seed = inputs.check_seed(seed)
    config = latent_config(sampler, steps, draws)
    engine.refuse_size(len(ids), draws=2 * config.draws, what="embed")
    drawn = engine.latents.given_texts(ids, config=config, seed=seed)
    draws_Knd = np.stack([engine.edge.raw(draw_nd) for draw_nd in drawn.draws])
    unknown_n = np.array([fraction_of(engine.tokenizer.unk_id, row) for row in ids])
    return Embeddings(tuple(texts), engine.edge.raw(drawn.mean), draws_Knd, drawn.model_calls, unknown=unknown_n)
