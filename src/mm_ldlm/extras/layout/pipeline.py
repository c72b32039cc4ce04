"""The graph of `export`."""

from kedro.pipeline import Pipeline, node

from mm_ldlm.extras.layout import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.export_layout,
                inputs=["records", "latents", "tokenizer_files", "params:export", "layout_workspace"],
                outputs="export_report",
                name="export_layout",
            ),
        ],
        tags="export",
        namespace="export",
        prefix_datasets_with_namespace=False,
    )
