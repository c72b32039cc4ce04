"""The graph of `sanity`."""

from kedro.pipeline import Pipeline, node

from mm_ldlm.extras.sanity import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.check_configuration,
                inputs=[
                    "dataset",
                    "runs",
                    "params:model",
                    "params:objective",
                    "params:training",
                    "params:encoder",
                    "params:seed",
                    "params:sanity",
                ],
                outputs="sanity_report",
                name="check_configuration",
            ),
            node(nodes.judge_configuration, inputs="sanity_report", outputs=None, name="judge_configuration"),
        ],
        tags="sanity",
        namespace="sanity",
        prefix_datasets_with_namespace=False,
    )
