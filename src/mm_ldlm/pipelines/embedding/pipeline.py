"""The graph of `embedding`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from mm_ldlm.pipelines.embedding import nodes


def create_pipeline() -> Pipeline:
    return pipeline(
        [
            node(
                nodes.embed_records,
                inputs=["records", "params:encoder", "params:embedding", "params:model", "latents_workspace"],
                outputs="latents",
                name="embed_records",
            ),
            node(
                nodes.embed_vocabulary,
                inputs=["tokenizer_files", "params:encoder", "params:model", "token_vectors_workspace"],
                outputs="token_vectors",
                name="embed_vocabulary",
            ),
        ],
        tags="embedding",
    )
