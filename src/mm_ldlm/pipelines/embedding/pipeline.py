"""The graph of `embedding`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.embedding import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.embed_records,
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
                nodes.store_images,
                inputs=["records", "params:images", "params:objective", "params:images_workspace"],
                outputs="images",
                name="store_images",
            ),
            node(
                nodes.embed_vocabulary,
                inputs=[
                    "tokenizer_files",
                    "params:encoder",
                    "params:model",
                    "params:objective",
                    "params:token_vectors_workspace",
                ],
                outputs="token_vectors",
                name="embed_vocabulary",
            ),
            node(
                nodes.embed_tokens,
                inputs=[
                    "records",
                    "tokens",
                    "tokenizer_files",
                    "params:encoder",
                    "params:token_states",
                    "params:objective",
                    "params:token_states_workspace",
                ],
                outputs="token_states",
                name="embed_tokens",
            ),
        ],
        tags="embedding",
        namespace="embedding",
        prefix_datasets_with_namespace=False,
    )
