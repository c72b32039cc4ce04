"""The graph of `evaluation`: one model, and a node for each registered suite; no suite depends on another."""

from kedro.pipeline import Node, Pipeline, node

from mm_ldlm.evaluation.suites import Suite, suites
from mm_ldlm.pipelines.evaluation import nodes
from mm_ldlm.pipelines.trained import load_trained


def create_pipeline() -> Pipeline:
    loading = node(
        load_trained,
        inputs=["run", "runs", "dataset", "params:evaluation"],
        outputs="evaluation_model",
        name="load_model",
    )
    return Pipeline(
        [loading, *map(_evaluation, suites().values())],
        tags="evaluation",
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )


def _evaluation(suite: Suite) -> Node:
    inputs = {
        "model": "evaluation_model",
        "dataset": "dataset",
        "evaluation": "params:evaluation",
        "seed": "params:seed",
        **{f"samples_{task}": f"samples_{task}" for task in suite.samples},
        **{name: f"params:{name}" for name in suite.sections},
    }
    outputs = {"metrics": f"metrics_{suite.name}"} | ({"rows": f"{suite.name}_rows"} if suite.row_columns else {})
    return node(nodes.evaluation_of(suite), inputs=inputs, outputs=outputs, name=f"evaluate_{suite.name}")
