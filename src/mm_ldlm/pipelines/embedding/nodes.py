"""The node of `embedding`: parameters become types, a workspace becomes a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.config import parse

if TYPE_CHECKING:
    from mm_ldlm.store import Manifest, ShardStore

Parameters = dict[str, Any]


def embed_records(
    records: ShardStore, encoder: Parameters, embedding: Parameters, model: Parameters, latents_workspace: Path
) -> Manifest:
    """The vector of every record, row by row; continues what an earlier run left."""
    from mm_ldlm.encoders import EncoderConfig
    from mm_ldlm.latents.extract import ExtractConfig, extract

    return extract(
        records,
        encoder=parse(EncoderConfig, encoder, at="encoder"),
        config=parse(ExtractConfig, embedding, at="embedding"),
        workspace=latents_workspace,
        latent_dim=model["latent_dim"],
    )
