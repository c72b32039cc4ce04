"""The graph of `training`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from mm_ldlm.pipelines.training import nodes


def create_pipeline() -> Pipeline:
    return pipeline(
        [
            node(
                nodes.plan_training,
                inputs=[
                    "tokens",
                    "latents",
                    "index",
                    "tokenizer_files",
                    "normaliser",
                    "token_vectors",
                    "tokenizer_folder",
                    "normaliser_folder",
                    "runs",
                    "params:model",
                    "params:objective",
                    "params:training",
                    "params:encoder",
                    "params:seed",
                    "tracking_reference",
                ],
                outputs="training_spec",
                name="plan_training",
            ),
            node(nodes.run_training, inputs=["training_spec", "runs"], outputs="run", name="run_training"),
        ],
        tags="training",
    )
