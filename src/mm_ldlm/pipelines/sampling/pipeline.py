"""The graph of `sampling`: one model, and a node for each task of the registry."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.sampling import TASKS, nodes


def create_pipeline() -> Pipeline:
    load = node(
        nodes.load_model,
        inputs=["run", "runs", "dataset", "params:sampling"],
        outputs="sampling_model",
        name="load_model",
    )
    tasks = []
    for name in TASKS:
        sections = {section: f"params:{section}" for section in TASKS.load(name).sections}
        inputs = {"model": "sampling_model", "dataset": "dataset", "seed": "params:seed", **sections}
        tasks.append(node(nodes.node_of(name), inputs=inputs, outputs=f"samples_{name}", name=f"sample_{name}"))
    return Pipeline(
        [load, *tasks],
        tags="sampling",
        namespace="sampling",
        prefix_datasets_with_namespace=False,
    )
