"""The graph of `embedding`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.data.features import sections
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
                nodes.make_features,
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
