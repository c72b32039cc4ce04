"""`embedding`: records → latents, and the features that the objective and the model read.

The work is done in `mm_ldlm.data.latents` and `mm_ldlm.data.features`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from mm_ldlm.data.encoders.base import SourceVectors, no_encoder
from mm_ldlm.data.features import LATENTS, Inputs, from_encoder, make_all, planned, sections
from mm_ldlm.data.store import NOT_NEEDED, Manifest, NotNeeded, ShardStore
from mm_ldlm.distributed.environment import hosts

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer
    from mm_ldlm.data.encoders.base import EncoderConfig
    from mm_ldlm.data.latents.config import ExtractConfig
    from mm_ldlm.objectives.base import ObjectiveConfig

log = logging.getLogger(__name__)


def embed_records(
    records: ShardStore,
    encoder: EncoderConfig,
    embedding: ExtractConfig,
    objective: ObjectiveConfig,
    workspace: Path,
) -> Manifest | NotNeeded:
    """Embed every record in order, continuing an interrupted run, or take over the vectors of the sources.

    Do nothing for an objective without latents. Of several hosts, the first commits the store that all of them fill.
    """
    if "latents" not in objective.fields:
        log.info("latents (not needed): the objective '%s' reads none", objective.kind)
        return NOT_NEEDED
    from mm_ldlm.data.latents.extract import extract, extract_with_first_host

    if hosts().is_first:
        if isinstance(encoder, SourceVectors):
            return encoder.take_over(records, config=embedding, workspace=workspace)
        return extract(records, encoder=encoder, config=embedding, workspace=workspace)
    if not isinstance(encoder, SourceVectors):
        extract_with_first_host(encoder=encoder, config=embedding, workspace=workspace)
    log.info("latents: the first host commits them")
    return NOT_NEEDED


def make_features(
    records: ShardStore, tokens: ShardStore, tokenizer: TextTokenizer, workspace: Path, **sections: Any
) -> NotNeeded:
    """Make the stores of all features that the objective and the model read, except the latents."""
    if hosts().is_first:
        make_all(planned(sections), Inputs(records, tokens, tokenizer, {}), folder=workspace)
    return NOT_NEEDED


def problems(sections: Mapping[str, Any]) -> list[str]:
    """List features that an encoder has to compute, where the encoder of the parameters cannot embed new texts."""
    reason = no_encoder(sections["encoder"])
    computed = from_encoder(objective=sections["objective"], model=sections["model"])
    names = ", ".join(name for name in computed if name != LATENTS)
    if reason is None or not names:
        return []
    return [
        f"parameter 'encoder.for_new_texts': the model or the objective reads {names}, which an encoder computes, but "
        f"{reason} Otherwise set model.token_vectors to random, or choose another objective."
    ]


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                embed_records,
                inputs=[
                    "records",
                    "params:encoder",
                    "params:embedding",
                    "params:objective",
                    "params:latents_workspace",
                ],
                outputs="latents",
                name="embed_records",
            ),
            node(
                make_features,
                inputs={
                    "records": "records",
                    "tokens": "tokens",
                    "tokenizer": "tokenizer_files",
                    "workspace": "params:features_workspace",
                    **{section: f"params:{section}" for section in sections()},
                },
                outputs="features",
                name="make_features",
            ),
        ],
        tags="embedding",
        namespace="embedding",
        prefix_datasets_with_namespace=False,
    )
