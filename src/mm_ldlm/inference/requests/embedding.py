"""Latents of texts: by the encoder, or by the model, which samples them."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from mm_ldlm.core import Seed, check
from mm_ldlm.inference.arguments import Floats, check_tokens, latent_sampler_of, texts_of
from mm_ldlm.inference.model import LoadedModel, TooLong, by_row
from mm_ldlm.inference.results import Embeddings
from mm_ldlm.inference.writer import refuse_texts_beyond_memory
from mm_ldlm.sampling.registry import LATENT_SAMPLERS


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
