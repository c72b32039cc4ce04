"""The graph of `training`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.training import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.plan_training,
                inputs=[
                    "dataset",
                    "runs",
                    "params:model",
                    "params:objective",
                    "params:training",
                    "params:encoder",
                    "params:seed",
                ],
                outputs="training_spec",
                name="plan_training",
            ),
            node(nodes.run_training, inputs=["training_spec", "runs"], outputs="run", name="run_training"),
        ],
        tags="training",
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
