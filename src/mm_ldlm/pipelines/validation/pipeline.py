"""The graph of `validation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.validation import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.validate_data,
                inputs=[
                    "records",
                    "tokens",
                    "latents",
                    "images",
                    "tokenizer_files",
                    "params:encoder",
                    "params:embedding",
                    "params:validation",
                    "params:objective",
                    "params:evaluation",
                    "params:seed",
                    "params:quarantine_validation_workspace",
                ],
                outputs={
                    "report": "validation_report",
                    "quarantine": "quarantine_validation",
                    **{name: f"plot_{name}" for name in nodes.PLOTS},
                },
                name="validate_data",
            ),
            node(
                nodes.index_valid_examples,
                inputs=[
                    "validation_report",
                    "records",
                    "tokens",
                    "latents",
                    "quarantine_validation",
                    "params:objective",
                    "params:index_workspace",
                ],
                outputs="index",
                name="index_valid_examples",
            ),
            node(
                nodes.fit_normaliser,
                inputs=["latents", "index", "params:objective", "params:normaliser"],
                outputs="normaliser",
                name="fit_normaliser",
            ),
            node(
                nodes.fit_state_normaliser,
                inputs=["token_states", "tokens", "index", "params:objective"],
                outputs="state_normaliser",
                name="fit_state_normaliser",
            ),
            node(
                nodes.fit_image_normaliser,
                inputs=["images", "index", "params:objective", "params:image_normaliser"],
                outputs="image_normaliser",
                name="fit_image_normaliser",
            ),
            node(
                nodes.cluster_vocabulary,
                inputs=[
                    "tokenizer_files",
                    "token_vectors",
                    "params:objective",
                    "params:token_clusters",
                    "params:seed",
                    "params:token_clusters_workspace",
                ],
                outputs="token_clusters",
                name="cluster_vocabulary",
            ),
            node(
                nodes.index_labels,
                inputs=[
                    "records",
                    "index",
                    "tokenizer_files",
                    "params:objective",
                    *(f"params:{name}_workspace" for name in nodes.LABEL_STORES),
                ],
                outputs={name: name for name in nodes.LABEL_STORES},
                name="index_labels",
            ),
            node(
                nodes.commit_dataset,
                inputs=[
                    "records",
                    "tokens",
                    "index",
                    "tokenizer_files",
                    "latents",
                    "normaliser",
                    "images",
                    "image_normaliser",
                    "token_vectors",
                    "token_clusters",
                    "token_states",
                    "state_normaliser",
                    *nodes.LABEL_STORES,
                    "params:objective",
                    "params:model",
                ],
                outputs="dataset",
                name="commit_dataset",
            ),
        ],
        tags="validation",
        namespace="validation",
        prefix_datasets_with_namespace=False,
    )
