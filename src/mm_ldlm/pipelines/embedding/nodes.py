"""Nodes of `embedding`: encoder vectors of records and tokens, and pixels, where the configuration uses them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse
from mm_ldlm.pipelines.needs import fields_of, made_by_first_host, not_needed, wanted

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer
    from mm_ldlm.data.store import Manifest, NotNeeded, ShardStore

Parameters = Any  # a section of the parameters, parsed by the hook


def embed_records(
    records: ShardStore,
    encoder: Parameters,
    embedding: Parameters,
    objective: Parameters,
    latents_workspace: Path,
) -> Manifest | NotNeeded:
    """Embed every record in order, continuing an interrupted run, or take over the vectors of the sources.

    Do nothing for an objective without latents. Of several hosts, the first commits the store that all of them fill.
    """
    if "latents" not in fields_of(objective):
        return not_needed("latents", f"the objective '{objective.kind}' reads no latents")
    from mm_ldlm.data.encoders import given_dim, parse_encoder
    from mm_ldlm.data.latents.config import ExtractConfig
    from mm_ldlm.data.latents.extract import extract, extract_with_first_host
    from mm_ldlm.distributed.environment import hosts
    from mm_ldlm.extras.own_vectors import latents as given

    chosen = parse_encoder(encoder)
    config = parse(ExtractConfig, embedding, at="embedding")
    if not hosts().is_first:
        if given_dim(chosen) is None:
            extract_with_first_host(encoder=chosen, config=config, workspace=latents_workspace)
        return not_needed("latents", "the first host commits them")
    if given_dim(chosen) is not None:
        return given.take_over(records, encoder=chosen, config=config, workspace=latents_workspace)
    return extract(records, encoder=chosen, config=config, workspace=latents_workspace)


def store_images(
    records: ShardStore, images: Parameters, objective: Parameters, images_workspace: Path
) -> Manifest | NotNeeded:
    """Store the pixels of the records' images, in order; do nothing for an objective without images."""
    if (elsewhere := made_by_first_host("images")) is not None:
        return elsewhere
    if "images" not in fields_of(objective):
        return not_needed("images", f"the objective '{objective.kind}' reads no images")
    from mm_ldlm.families.images import store

    return store.store_images(
        records,
        config=parse(store.ImagesConfig, images, at="images"),
        workspace=images_workspace,
    )


def embed_vocabulary(
    tokenizer: TextTokenizer,
    encoder: Parameters,
    model: Parameters,
    objective: Parameters,
    token_vectors_workspace: Path,
) -> Manifest | NotNeeded:
    """Embed every token, for a model whose token embeddings are initialised from the vectors, or for clusters."""
    if (elsewhere := made_by_first_host("token vectors")) is not None:
        return elsewhere
    if "token_vectors" not in wanted(model=model, objective=objective):
        return not_needed("token vectors", "neither the model nor the objective starts from them")
    from mm_ldlm.data.encoders import parse_encoder
    from mm_ldlm.data.latents import token_vectors

    return token_vectors.embed_vocabulary(tokenizer, encoder=parse_encoder(encoder), workspace=token_vectors_workspace)


def embed_tokens(
    records: ShardStore,
    tokens: ShardStore,
    tokenizer: TextTokenizer,
    encoder: Parameters,
    token_states: Parameters,
    objective: Parameters,
    token_states_workspace: Path,
) -> Manifest | NotNeeded:
    """Compute the encoder's output at every token, for an objective that reads token states."""
    if (elsewhere := made_by_first_host("token states")) is not None:
        return elsewhere
    if "token_states" not in fields_of(objective):
        return not_needed("token states", f"the objective '{objective.kind}' reads none")
    from mm_ldlm.data.encoders import parse_encoder
    from mm_ldlm.families.ccdd import token_states as states

    return states.embed_tokens(
        records,
        tokens,
        tokenizer,
        encoder=parse_encoder(encoder),
        config=parse(states.TokenStatesConfig, token_states, at="token_states"),
        workspace=token_states_workspace,
    )
